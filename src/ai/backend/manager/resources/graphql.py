"""GraphQL fields of resource presets and device variants (spec 03-09)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from ai.backend.common.errors import InvalidInput, InvalidQuantity
from ai.backend.common.slots import BinarySize, ResourceSlot
from ai.backend.core.allocation.requests.compiled import RequestCompiler
from ai.backend.manager.graphql.context import Info, context_of, decode_json_text, run_mutation
from ai.backend.manager.graphql.resolvers import mutation, query
from ai.backend.manager.graphql.values import View, slots_json
from ai.backend.manager.resources.model import OfferedVariant, ResourcePreset
from ai.backend.manager.resources.presets import PresetService
from ai.backend.manager.resources.service import ResourceService


def _preset_values(props: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of a preset that the arguments of a mutation change.

    ``shared_memory`` is a size such as ``64m``, or bytes; 0 is none. Raises InvalidInput, which names the field.
    """
    values: dict[str, Any] = {}
    if props.get("resource_slots") is not None:
        slots = decode_json_text("resource_slots", props["resource_slots"])
        if not isinstance(slots, dict):
            raise InvalidInput("Resource slots are an object.", data={"resource_slots": "malformed"})
        with _name_field_in_errors("resource_slots"):
            values["resource_slots"] = ResourceSlot.parse(slots)
    if props.get("shared_memory") is not None:
        with _name_field_in_errors("shared_memory"):
            values["shared_memory"] = int(BinarySize.parse(str(props["shared_memory"]))) or None
    if props.get("device_requests") is not None:
        values["device_requests"] = RequestCompiler().check(props["device_requests"], "device_requests")
    return values


@contextmanager
def _name_field_in_errors(field: str) -> Iterator[None]:
    """Context manager that adds the name of a field to the InvalidQuantity errors of its block."""
    try:
        yield
    except InvalidQuantity as e:
        raise InvalidQuantity(e.message, data={field: "malformed"}) from None


def preset_view(preset: ResourcePreset) -> View:
    return {
        "name": preset.name,
        "resource_slots": slots_json(preset.resource_slots),
        "shared_memory": preset.shared_memory,
        "device_requests": list(preset.device_requests),
    }


def variant_view(variant: OfferedVariant) -> View:
    return {**variant.to_json(), "devices": json.dumps(dict(variant.devices))}


class PresetResolvers:
    """Answers the GraphQL fields of resource presets and device variants."""

    def __init__(self, presets: PresetService, resources: ResourceService) -> None:
        self._presets = presets
        self._resources = resources

    @mutation("create_resource_preset")
    @mutation("modify_resource_preset")
    async def put_preset(self, info: Info, name: str, props: View) -> View:
        context = context_of(info)
        service = self._presets

        async def work() -> Any:
            values = _preset_values(props)
            if info.field_name.startswith("modify"):
                return await service.modify(context.caller, name, values)
            return await service.create(context.caller, name, {"resource_slots": ResourceSlot(), **values})

        return await run_mutation(info, "resource_preset", name, work, preset_view)

    @mutation("delete_resource_preset")
    async def delete_preset(self, info: Info, name: str) -> View:
        context = context_of(info)
        return await run_mutation(info, "resource_preset", name, lambda: self._presets.delete(context.caller, name))

    @query("resource_presets")
    async def resource_presets(self, info: Info) -> list[View]:
        return [preset_view(preset) for preset in await self._presets.presets()]

    @query("resource_preset")
    async def resource_preset(self, info: Info, name: str) -> View | None:
        return next((preset for preset in await self.resource_presets(info) if preset["name"] == name), None)

    @query("variant_properties")
    async def variant_properties(self, info: Info, scaling_group: str | None = None) -> list[View]:
        context = context_of(info)
        return [variant_view(variant) for variant in await self._resources.variants(context.caller, scaling_group)]
