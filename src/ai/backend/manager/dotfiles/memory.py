"""Stores dotfiles and bootstrap scripts in memory."""

from __future__ import annotations

from collections.abc import Sequence

from ai.backend.common.ids import AccessKey
from ai.backend.manager.db.fence import check_fence
from ai.backend.manager.dotfiles.model import Dotfile, DotfileOwner, DotfileScope, with_dotfile


class MemoryDotfileStore:
    """Implements :class:`ai.backend.manager.dotfiles.store.DotfileStore`."""

    def __init__(self) -> None:
        self._dotfiles: dict[DotfileOwner, list[Dotfile]] = {}
        self._scripts: dict[AccessKey, str] = {}

    async def dotfiles(self, owner: DotfileOwner) -> list[Dotfile]:
        return list(self._dotfiles.get(owner, ()))

    async def put_dotfile(self, owner: DotfileOwner, dotfile: Dotfile, *, is_new: bool) -> None:
        check_fence()
        self._dotfiles[owner] = with_dotfile(self._dotfiles.get(owner, ()), dotfile, is_new=is_new)

    async def drop_dotfile(self, owner: DotfileOwner, path: str) -> bool:
        check_fence()
        stored = self._dotfiles.get(owner, [])
        self._dotfiles[owner] = [dotfile for dotfile in stored if dotfile.path != path]
        return len(self._dotfiles[owner]) < len(stored)

    async def dotfiles_of(self, owners: Sequence[DotfileOwner]) -> list[tuple[DotfileScope, Dotfile]]:
        ordered = sorted(owners, key=lambda owner: owner.scope)
        return [(owner.scope, dotfile) for owner in ordered for dotfile in self._dotfiles.get(owner, ())]

    async def bootstrap_script(self, access_key: AccessKey) -> str:
        return self._scripts.get(access_key, "")

    async def put_bootstrap_script(self, access_key: AccessKey, script: str) -> None:
        check_fence()
        self._scripts[access_key] = script
