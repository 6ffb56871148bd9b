"""Mutations of resource presets and agents (spec 03-09)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ariadne import MutationType

from ai.backend.common.errors import InvalidInput
from ai.backend.common.slots import BinarySize, ResourceSlot
from ai.backend.manager.api.graphql import views
from ai.backend.manager.api.graphql.administration import answer, structured
from ai.backend.manager.api.graphql.resolvers import Info, context_of

mutation = MutationType()


def _preset_values(props: Mapping[str, Any]) -> dict[str, Any]:
    """``shared_memory`` is a size as people write it, ``64m``, or bytes."""
    values: dict[str, Any] = {}
    if props.get("resource_slots") is not None:
        slots = structured("resource_slots", props["resource_slots"])
        if not isinstance(slots, dict):
            raise InvalidInput("Resource slots are an object.", data={"resource_slots": "malformed"})
        values["resource_slots"] = ResourceSlot.parse(slots)
    if props.get("shared_memory") is not None:
        values["shared_memory"] = int(BinarySize.parse(str(props["shared_memory"])))
    return values


@mutation.field("create_resource_preset")
@mutation.field("modify_resource_preset")
async def put_preset(_: Any, info: Info, name: str, props: views.View) -> views.View:
    context = context_of(info)
    service = context.services.equipment

    async def work() -> Any:
        values = _preset_values(props)
        if info.field_name.startswith("modify"):
            return await service.modify_preset(context.caller, name, values)
        return await service.create_preset(context.caller, name, {"resource_slots": ResourceSlot(), **values})

    return await answer(info, "resource_preset", name, work, views.preset_view)


@mutation.field("delete_resource_preset")
async def delete_preset(_: Any, info: Info, name: str) -> views.View:
    context = context_of(info)
    return await answer(
        info, "resource_preset", name, lambda: context.services.equipment.delete_preset(context.caller, name)
    )


@mutation.field("modify_agent")
async def modify_agent(_: Any, info: Info, id: str, props: views.View) -> views.View:  # noqa: A002  # the wire's name
    context = context_of(info)
    return await answer(
        info,
        "agent",
        id,
        lambda: context.services.equipment.modify_agent(
            context.caller, id, schedulable=props.get("schedulable"), scaling_group=props.get("scaling_group")
        ),
    )


EQUIPMENT_BINDABLES = (mutation,)
