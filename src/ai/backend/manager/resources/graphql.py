"""GraphQL fields of resource presets and variants of devices (spec 03-09)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ariadne import MutationType, QueryType

from ai.backend.common.errors import InvalidInput
from ai.backend.common.slots import BinarySize, ResourceSlot
from ai.backend.manager.graphql import values
from ai.backend.manager.graphql.context import Info, answer, context_of, structured
from ai.backend.manager.graphql.values import slots_json
from ai.backend.manager.resources.model import OfferedVariant, ResourcePreset

query = QueryType()

mutation = MutationType()


def _preset_values(props: Mapping[str, Any]) -> dict[str, Any]:
    """Reads the fields of a preset; ``shared_memory`` is a size such as ``64m``, or bytes."""
    fields: dict[str, Any] = {}
    if props.get("resource_slots") is not None:
        slots = structured("resource_slots", props["resource_slots"])
        if not isinstance(slots, dict):
            raise InvalidInput("Resource slots are an object.", data={"resource_slots": "malformed"})
        fields["resource_slots"] = ResourceSlot.parse(slots)
    if props.get("shared_memory") is not None:
        fields["shared_memory"] = int(BinarySize.parse(str(props["shared_memory"])))
    return fields


@mutation.field("create_resource_preset")
@mutation.field("modify_resource_preset")
async def put_preset(_: Any, info: Info, name: str, props: values.View) -> values.View:
    context = context_of(info)
    service = context.services.presets

    async def work() -> Any:
        fields = _preset_values(props)
        if info.field_name.startswith("modify"):
            return await service.modify(context.caller, name, fields)
        return await service.create(context.caller, name, {"resource_slots": ResourceSlot(), **fields})

    return await answer(info, "resource_preset", name, work, preset_view)


@mutation.field("delete_resource_preset")
async def delete_preset(_: Any, info: Info, name: str) -> values.View:
    context = context_of(info)
    return await answer(info, "resource_preset", name, lambda: context.services.presets.delete(context.caller, name))


@query.field("resource_presets")
async def resource_presets(_: Any, info: Info) -> list[values.View]:
    return [preset_view(p) for p in await context_of(info).services.presets.presets()]


@query.field("resource_preset")
async def resource_preset(_: Any, info: Info, name: str) -> values.View | None:
    presets: list[values.View] = await resource_presets(_, info)
    return next((p for p in presets if p["name"] == name), None)


@query.field("variant_properties")
async def variant_properties(_: Any, info: Info, scaling_group: str | None = None) -> list[values.View]:
    context = context_of(info)
    return [variant_view(v) for v in await context.services.resources.variants(context.caller, scaling_group)]


def preset_view(preset: ResourcePreset) -> values.View:
    return {
        "name": preset.name,
        "resource_slots": slots_json(preset.resource_slots),
        "shared_memory": preset.shared_memory,
    }


def variant_view(variant: OfferedVariant) -> values.View:
    return {**variant.to_json(), "devices": json.dumps(dict(variant.devices))}


RESOURCE_BINDABLES = (query, mutation)
