"""GraphQL fields of keypairs for dotfiles and bootstrap scripts."""

from __future__ import annotations

import json

from msgspec.structs import asdict

from ai.backend.common.errors import Forbidden
from ai.backend.manager.dotfiles.service import DotfileService
from ai.backend.manager.graphql.context import Info, caller_of
from ai.backend.manager.graphql.resolvers import field
from ai.backend.manager.graphql.values import View


class DotfileResolvers:
    """Answers the fields of keypairs that hold dotfiles and bootstrap scripts."""

    def __init__(self, dotfiles: DotfileService) -> None:
        self._dotfiles = dotfiles

    @field("KeyPair", "bootstrap_script")
    async def keypair_script(self, view: View, info: Info) -> str | None:
        try:
            return await self._dotfiles.bootstrap_script(caller_of(info), view["access_key"])
        except Forbidden:
            return None

    @field("KeyPair", "dotfiles")
    async def keypair_dotfiles(self, view: View, info: Info) -> str | None:
        try:
            owner = await self._dotfiles.user_as_owner(caller_of(info), view["access_key"])
        except Forbidden:
            return None
        return json.dumps([asdict(dotfile) for dotfile in await self._dotfiles.list(owner)])
