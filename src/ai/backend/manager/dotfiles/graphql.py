"""GraphQL fields of keypairs for dotfiles and bootstrap scripts."""

from __future__ import annotations

import json
from dataclasses import asdict

from ariadne import ObjectType

from ai.backend.common.errors import Forbidden
from ai.backend.manager.graphql import values
from ai.backend.manager.graphql.context import Info, context_of

keypair_type = ObjectType("KeyPair")


@keypair_type.field("bootstrap_script")
async def keypair_script(view: values.View, info: Info) -> str | None:
    context = context_of(info)
    try:
        return await context.services.defaults.bootstrap_script(context.caller, view["access_key"])
    except Forbidden:
        return None


@keypair_type.field("dotfiles")
async def keypair_dotfiles(view: values.View, info: Info) -> str | None:
    context = context_of(info)
    try:
        owner = await context.services.defaults.of_user(context.caller, view["access_key"])
    except Forbidden:
        return None
    return json.dumps([asdict(dotfile) for dotfile in await context.services.defaults.list(owner)])


DOTFILE_BINDABLES = (keypair_type,)
