"""What users and administrators keep for future sessions: templates, dotfiles, bootstrap scripts.

One contract suite (tests/contract/store) runs on every implementation. Every method is one transaction.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ai.backend.common.ids import AccessKey
from ai.backend.manager.dotfiles.model import Dotfile, DotfileOwner, DotfileScope


class DotfileStore(Protocol):
    async def dotfiles(self, owner: DotfileOwner) -> list[Dotfile]:
        """In the order of their paths."""
        ...

    async def put_dotfile(self, owner: DotfileOwner, dotfile: Dotfile, *, is_new: bool) -> None:
        """Add one, or replace the one of that path.

        Raises:
            Conflict: there is one of that path already, and it is to be new; or the path is a directory of another.
            NotFound: there is none to replace.
            LimitExceeded: the owner would have more than MAX_DOTFILES, or more than MAX_DOTFILE_BYTES.
        """

    async def drop_dotfile(self, owner: DotfileOwner, path: str) -> bool: ...

    async def dotfiles_of(self, owners: Sequence[DotfileOwner]) -> list[tuple[DotfileScope, Dotfile]]:
        """Those of several owners at once."""
        ...

    async def bootstrap_script(self, access_key: AccessKey) -> str:
        """What runs at the start of sessions that bring none of their own; empty for nothing."""
        ...

    async def put_bootstrap_script(self, access_key: AccessKey, script: str) -> None: ...
