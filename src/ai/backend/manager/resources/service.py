"""Use cases on the resources that sessions can request: slots, variants of devices, presets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal

from ai.backend.common.devices import DeviceHealth, VariantMatchMode, VariantProperty
from ai.backend.common.errors import NotFound
from ai.backend.common.ids import DeviceName, ResourceGroupName
from ai.backend.common.slots import ResourceSlot
from ai.backend.common.states import AgentStatus
from ai.backend.core.allocation.variants import features_of, version_of
from ai.backend.manager.access.caller import Caller
from ai.backend.manager.agents.capabilities import DeviceReader
from ai.backend.manager.agents.model import Agent, SlotTypeInfo
from ai.backend.manager.agents.slots import SlotCatalogue
from ai.backend.manager.agents.store import AgentStore
from ai.backend.manager.identity.service import IdentityService
from ai.backend.manager.resource_groups.service import ResourceGroupService
from ai.backend.manager.resources.model import OfferedVariant, PresetCheck, QuotaState
from ai.backend.manager.resources.presets import PresetStore
from ai.backend.manager.resources.quotas import policy_limits, scope_limits
from ai.backend.manager.sessions.store import SessionStore


def merge_variants(agents: Iterable[Agent], devices: DeviceReader) -> list[OfferedVariant]:
    """Returns the properties of healthy devices, ordered by namespace, feature and value."""
    modes: dict[tuple[str, str], VariantMatchMode] = {}
    counts: dict[VariantProperty, dict[ResourceGroupName, int]] = {}
    names: dict[VariantProperty, set[DeviceName]] = {}
    for agent in agents:
        for plugin in devices.plugins_of(agent):
            modes.update({key: feature.match_mode for key, feature in features_of(plugin.namespaces).items()})
            healthy = Counter(d.properties for d in plugin.devices if d.health is DeviceHealth.HEALTHY)
            for properties, count in healthy.items():
                for stated in properties:
                    group_counts = counts.setdefault(stated, {})
                    group_counts[agent.scaling_group] = group_counts.get(agent.scaling_group, 0) + count
                    names.setdefault(stated, set()).add(plugin.name)
    return [
        OfferedVariant(
            property=stated,
            match_mode=modes.get((stated.namespace, stated.feature), VariantMatchMode.EXACT),
            device_names=tuple(sorted(names[stated])),
            devices=counts[stated],
        )
        for stated in sorted(counts, key=lambda p: (p.namespace, p.feature, version_of(p.value), p.value))
    ]


@dataclass(frozen=True, slots=True)
class ResourceService:
    """Returns the slots, variants and presets that users can request, and the rest of their quotas."""

    agents: AgentStore
    sessions: SessionStore
    identity: IdentityService
    resource_groups: ResourceGroupService
    slots: SlotCatalogue
    presets: PresetStore
    devices: DeviceReader

    def slot_types(self) -> Sequence[SlotTypeInfo]:
        """Returns every slot that was ever reported, ordered by name."""
        return tuple(self.slots.slot_types.values())

    async def offered_slots(self, caller: Caller, scaling_group: str) -> frozenset[str]:
        """Returns the slots of the living agents of a resource group; none if the group is not open to the caller."""
        if scaling_group not in {g.name for g in await self.resource_groups.available(caller)}:
            return frozenset()
        agents = await self.agents.agents(scaling_group=scaling_group)
        return frozenset(slot for a in agents if a.status is AgentStatus.ALIVE for slot in a.available_slots)

    async def variants(self, caller: Caller, scaling_group: str | None = None) -> Sequence[OfferedVariant]:
        """Returns the properties of devices in one resource group, or in all that are open to the caller. Raises
        NotFound: the resource group is not open to the caller."""
        open_groups = {g.name for g in await self.resource_groups.available(caller)}
        if scaling_group is not None and scaling_group not in open_groups:
            raise NotFound(f"There is no resource group {scaling_group[:64]!r} for you.")
        agents = await self.agents.agents(scaling_group=scaling_group)
        alive = (a for a in agents if a.scaling_group in open_groups and a.status is AgentStatus.ALIVE)
        return merge_variants(alive, self.devices)

    async def check_presets(
        self, caller: Caller, *, group: str | None = None, scaling_group: str | None = None
    ) -> PresetCheck:
        """Returns what the caller can have now, in one resource group or in all that are open to them."""
        names = list(self.slots.slot_types)
        nothing = ResourceSlot(dict.fromkeys(names, Decimal(0)))
        keypair_limits = policy_limits(names, await self.identity.resource_policy(caller))
        groups = await self.identity.groups(caller)
        project = next((g for g in groups if group in (None, g.name, str(g.id))), None)
        domain = await self.identity.domain(caller, project.domain_name if project is not None else None)
        keypair_using = await self.sessions.occupied(access_key=caller.access_key)
        group_limits = group_using = ResourceSlot()
        if project is not None:
            group_limits, group_using = project.total_resource_slots, await self.sessions.occupied(group_id=project.id)
        domain_using = await self.sessions.occupied(domain_name=domain.name)
        quotas = {
            "keypair": QuotaState(keypair_limits, nothing + keypair_using),
            "group": QuotaState(scope_limits(names, group_limits), nothing + group_using),
            "domain": QuotaState(scope_limits(names, domain.total_resource_slots), nothing + domain_using),
        }
        available = await self.resource_groups.available(caller, group=group)
        open_groups = [g.name for g in available if scaling_group in (None, g.name)]
        agents = [a for a in await self.agents.agents() if a.status is AgentStatus.ALIVE]
        members = {name: [a for a in agents if a.scaling_group == name] for name in open_groups}
        free = [a.available_slots - a.occupied_slots for name in open_groups for a in members[name]]
        remaining = [quota.remaining for quota in quotas.values()]

        def fits(slots: ResourceSlot) -> bool:
            is_within = all(slots[name] <= rest[name] for rest in remaining for name in slots)
            return is_within and any(slots <= amount for amount in free)

        return PresetCheck(
            presets=[(preset, fits(preset.resource_slots)) for preset in await self.presets.presets()],
            quotas=quotas,
            scaling_groups={
                name: (
                    sum((a.occupied_slots for a in members[name]), ResourceSlot()),
                    sum((a.available_slots - a.occupied_slots for a in members[name]), ResourceSlot()),
                )
                for name in open_groups
            },
        )
