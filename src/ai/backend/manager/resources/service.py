"""Lists the slots, variants of devices and presets that sessions can request."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any

import msgspec

from ai.backend.common.devices import DeviceHealth, VariantMatchMode, VariantProperty
from ai.backend.common.errors import NotFound
from ai.backend.common.ids import DeviceName, ResourceGroupName
from ai.backend.common.slots import ResourceSlot
from ai.backend.common.states import AgentStatus
from ai.backend.core.allocation.requests.compiled import RequestCompiler
from ai.backend.core.allocation.variants import features_of, version_of
from ai.backend.manager.access.caller import Caller
from ai.backend.manager.agents.capabilities import DeviceReader
from ai.backend.manager.agents.model import Agent, SlotTypeInfo
from ai.backend.manager.agents.plugin_options import schemas_of
from ai.backend.manager.agents.slots import SlotCatalogue
from ai.backend.manager.agents.store import AgentStore
from ai.backend.manager.identity.service import IdentityService
from ai.backend.manager.resource_groups.service import ResourceGroupService
from ai.backend.manager.resources.model import OfferedVariant, PresetCheck, QuotaState, ResourcePreset
from ai.backend.manager.resources.presets import PresetStore
from ai.backend.manager.resources.quotas import policy_limits, scope_limits
from ai.backend.manager.sessions.store import SessionStore


def merge_variants(agents: Iterable[Agent], devices: DeviceReader) -> list[OfferedVariant]:
    """Returns the variant properties of the healthy devices of agents, with the numbers of devices.

    They are ordered by namespace, feature and value.
    """
    match_modes: dict[tuple[str, str], VariantMatchMode] = {}
    counts_by_property: dict[VariantProperty, dict[ResourceGroupName, int]] = {}
    device_names: dict[VariantProperty, set[DeviceName]] = {}
    for agent in agents:
        for plugin in devices.plugins_of(agent):
            match_modes.update({key: feature.match_mode for key, feature in features_of(plugin.namespaces).items()})
            healthy_device_counts = Counter(
                device.properties for device in plugin.devices if device.health is DeviceHealth.HEALTHY
            )
            for properties, device_count in healthy_device_counts.items():
                for device_property in properties:
                    group_counts = counts_by_property.setdefault(device_property, {})
                    group_counts[agent.scaling_group] = group_counts.get(agent.scaling_group, 0) + device_count
                    device_names.setdefault(device_property, set()).add(plugin.name)
    return [
        OfferedVariant(
            property=device_property,
            match_mode=match_modes.get((device_property.namespace, device_property.feature), VariantMatchMode.EXACT),
            device_names=tuple(sorted(device_names[device_property])),
            devices=counts_by_property[device_property],
        )
        for device_property in sorted(
            counts_by_property, key=lambda p: (p.namespace, p.feature, version_of(p.value), p.value)
        )
    ]


def _slot_alternatives(preset: ResourcePreset, names: Collection[str], compiler: RequestCompiler) -> list[ResourceSlot]:
    """Returns the slots that a session of a preset may take, one alternative for each device request of the preset.

    Each alternative has the known slots of the preset, with the amounts of the device request. Without device requests,
    there is one alternative.
    """
    slots = ResourceSlot({name: amount for name, amount in preset.resource_slots.items() if name in names})
    amounts_of_requests = [compiler.compile(request_text).amounts for request_text in preset.device_requests]
    return [ResourceSlot({**slots, **amounts}) for amounts in amounts_of_requests] or [slots]


class ResourceService(msgspec.Struct, frozen=True):
    """Lists the slots, variants and presets that users can request, and computes what is left of their quotas."""

    agents: AgentStore
    sessions: SessionStore
    identity: IdentityService
    resource_groups: ResourceGroupService
    slots: SlotCatalogue
    presets: PresetStore
    devices: DeviceReader
    request_compiler: RequestCompiler = msgspec.field(default_factory=RequestCompiler)

    def slot_types(self) -> Sequence[SlotTypeInfo]:
        """Returns every slot that an agent has ever reported, ordered by name."""
        return tuple(self.slots.slot_types.values())

    async def offered_slots(self, caller: Caller, scaling_group: str) -> frozenset[str]:
        """Returns the slots of the living agents of a resource group, or no slots if the caller may not
        use the group.
        """
        if scaling_group not in {group.name for group in await self.resource_groups.available_groups(caller)}:
            return frozenset()
        agents = await self.agents.agents(scaling_group=scaling_group)
        return frozenset(
            slot for agent in agents if agent.status is AgentStatus.ALIVE for slot in agent.available_slots
        )

    async def variants(self, caller: Caller, scaling_group: str | None = None) -> Sequence[OfferedVariant]:
        """Returns the properties of devices in one resource group, or in all resource groups that the caller may use.
        Raises NotFound: the resource group is not open to the caller.
        """
        open_groups = {group.name for group in await self.resource_groups.available_groups(caller)}
        if scaling_group is not None and scaling_group not in open_groups:
            raise NotFound(f"There is no resource group {scaling_group[:64]!r} for you.")
        agents = await self.agents.agents(scaling_group=scaling_group)
        alive_agents = (
            agent for agent in agents if agent.scaling_group in open_groups and agent.status is AgentStatus.ALIVE
        )
        return merge_variants(alive_agents, self.devices)

    async def plugin_options(self, caller: Caller) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        """Returns, by accelerator plugin, the JSON Schemas of the options that sessions may give to the plugin. Only
        agents in resource groups that the caller may use count.
        """
        open_groups = {group.name for group in await self.resource_groups.available_groups(caller)}
        return schemas_of(agent for agent in await self.agents.agents() if agent.scaling_group in open_groups)

    async def check_presets(
        self, caller: Caller, *, group: str | None = None, scaling_group: str | None = None
    ) -> PresetCheck:
        """Returns presets and quotas as the caller can use them now. They are computed for one resource group, or for
        all that the caller may use. Slots that no agent ever offered are left out of presets (spec 03-07:809). Raises
        NotFound for a group or resource group that is not open to the caller.
        """
        slot_names = list(self.slots.slot_types)
        no_slots = ResourceSlot(dict.fromkeys(slot_names, Decimal(0)))
        keypair_limits = policy_limits(slot_names, await self.identity.resource_policy(caller))
        groups = await self.identity.groups(caller)
        project = next(
            (
                candidate_group
                for candidate_group in groups
                if group in (None, candidate_group.name, str(candidate_group.id))
            ),
            None,
        )
        if group is not None and project is None:
            raise NotFound(f"There is no group {group[:64]!r} for you.", data={"group": "unknown"})
        domain = await self.identity.domain(caller, project.domain_name if project is not None else None)
        keypair_using = await self.sessions.occupied(access_key=caller.access_key)
        group_limits = group_using = ResourceSlot()
        if project is not None:
            group_limits, group_using = project.total_resource_slots, await self.sessions.occupied(group_id=project.id)
        domain_using = await self.sessions.occupied(domain_name=domain.name)
        quotas = {
            "keypair": QuotaState(keypair_limits, no_slots + keypair_using),
            "group": QuotaState(scope_limits(slot_names, group_limits), no_slots + group_using),
            "domain": QuotaState(scope_limits(slot_names, domain.total_resource_slots), no_slots + domain_using),
        }
        visible_groups = await self.resource_groups.available_groups(caller, group=group)
        open_groups = [
            candidate_group.name for candidate_group in visible_groups if scaling_group in (None, candidate_group.name)
        ]
        if scaling_group is not None and not open_groups:
            message = f"There is no resource group {scaling_group[:64]!r} for you."
            raise NotFound(message, data={"scaling_group": "unknown"})
        agents = [agent for agent in await self.agents.agents() if agent.status is AgentStatus.ALIVE]
        group_agents = {name: [agent for agent in agents if agent.scaling_group == name] for name in open_groups}
        free_slots = [
            agent.available_slots - agent.occupied_slots for name in open_groups for agent in group_agents[name]
        ]
        remaining_of_quotas = [quota.remaining for quota in quotas.values()]

        def fits(slot_alternatives: Sequence[ResourceSlot]) -> bool:
            is_within_quotas = all(
                slots[name] <= remaining_slots[name]
                for slots in slot_alternatives
                for remaining_slots in remaining_of_quotas
                for name in slots
            )
            return is_within_quotas and any(slots <= amount for slots in slot_alternatives for amount in free_slots)

        return PresetCheck(
            presets=[
                (preset, fits(_slot_alternatives(preset, slot_names, self.request_compiler)))
                for preset in await self.presets.presets()
            ],
            quotas=quotas,
            scaling_groups={
                name: (
                    sum((agent.occupied_slots for agent in group_agents[name]), ResourceSlot()),
                    sum((agent.available_slots - agent.occupied_slots for agent in group_agents[name]), ResourceSlot()),
                )
                for name in open_groups
            },
        )
