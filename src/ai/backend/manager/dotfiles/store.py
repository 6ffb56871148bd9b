"""Declares the store of dotfiles and bootstrap scripts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ai.backend.common.ids import AccessKey
from ai.backend.manager.dotfiles.model import Dotfile, DotfileOwner, DotfileScope


class DotfileStore(Protocol):
    """Stores dotfiles and bootstrap scripts. Every method is one transaction."""

    async def dotfiles(self, owner: DotfileOwner) -> list[Dotfile]:
        """Returns the dotfiles of an owner, by path."""
        ...

    async def put_dotfile(self, owner: DotfileOwner, dotfile: Dotfile, *, is_new: bool) -> None:
        """Adds a dotfile if ``is_new``, or else replaces the dotfile of the same path.

        Raises:
            Conflict: a new one has the path of another, or is a directory of another path, or lies below one.
            NotFound: there is no dotfile to replace.
            LimitExceeded: the owner would have more than MAX_DOTFILES, or more than MAX_DOTFILE_BYTES.
        """

    async def drop_dotfile(self, owner: DotfileOwner, path: str) -> bool: ...

    async def dotfiles_of(self, owners: Sequence[DotfileOwner]) -> list[tuple[DotfileScope, Dotfile]]:
        """Returns the dotfiles of several owners."""
        ...

    async def bootstrap_script(self, access_key: AccessKey) -> str:
        """Returns a keypair's bootstrap script, or an empty text if it has none."""
        ...

    async def put_bootstrap_script(self, access_key: AccessKey, script: str) -> None: ...
