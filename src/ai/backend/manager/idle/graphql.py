"""GraphQL fields of idle."""

from __future__ import annotations

import json

from ariadne import ObjectType

from ai.backend.manager.graphql import values
from ai.backend.manager.graphql.context import Info, context_of

session_type = ObjectType("ComputeSession")


@session_type.field("idle_checks")
async def session_idle_checks(view: values.View, info: Info) -> str:
    return json.dumps(await context_of(info).idle_checks(view["id"]))


IDLE_BINDABLES = (session_type,)
