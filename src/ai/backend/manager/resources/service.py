"""Use cases on the resources that sessions can request: slots, variants of devices, presets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
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
from ai.backend.manager.resources.model import OfferedVariant, PresetCheck
from ai.backend.manager.resources.quotas import policy_limits, scope_limits
from ai.backend.manager.resources.store import PresetStore
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


class ResourceService:
    """Tells users which slots, variants and presets they can request, and what remains of their quotas."""

    def __init__(
        self,
        agents: AgentStore,
        sessions: SessionStore,
        identity: IdentityService,
        resource_groups: ResourceGroupService,
        slots: SlotCatalogue,
        presets: PresetStore,
        devices: DeviceReader,
    ) -> None:
        self._devices = devices
        self._agents = agents
        self._sessions = sessions
        self._identity = identity
        self._resource_groups = resource_groups
        self._slots = slots
        self._presets = presets

    def slot_types(self) -> Sequence[SlotTypeInfo]:
        """Returns every slot that was ever reported, ordered by name."""
        return tuple(self._slots.slot_types.values())

    async def offered_slots(self, caller: Caller, scaling_group: str) -> frozenset[str]:
        """Returns the slots of the living agents of a resource group; none if the group is not open to the caller."""
        if scaling_group not in {g.name for g in await self._resource_groups.available(caller)}:
            return frozenset()
        agents = await self._agents.agents(scaling_group=scaling_group)
        return frozenset(slot for a in agents if a.status is AgentStatus.ALIVE for slot in a.available_slots)

    async def variants(self, caller: Caller, scaling_group: str | None = None) -> Sequence[OfferedVariant]:
        """Returns the properties of devices in one resource group, or in all that are open to the caller.

        Raises:
            NotFound: the resource group is not open to the caller.
        """
        open_groups = {g.name for g in await self._resource_groups.available(caller)}
        if scaling_group is not None and scaling_group not in open_groups:
            raise NotFound(f"There is no resource group {scaling_group[:64]!r} for you.")
        agents = await self._agents.agents(scaling_group=scaling_group)
        alive = (a for a in agents if a.scaling_group in open_groups and a.status is AgentStatus.ALIVE)
        return merge_variants(alive, self._devices)

    async def check_presets(
        self, caller: Caller, *, group: str | None = None, scaling_group: str | None = None
    ) -> PresetCheck:
        """Returns what the caller can have now, in one resource group or in all that are open to them."""
        policy = await self._identity.resource_policy(caller)
        names = list(self._slots.slot_types)
        nothing = ResourceSlot(dict.fromkeys(names, Decimal(0)))
        limits = policy_limits(names, policy)
        groups = await self._identity.groups(caller)
        project = next((g for g in groups if group in (None, g.name, str(g.id))), None)
        domain = await self._identity.domain(caller, project.domain_name if project is not None else None)
        group_limits = scope_limits(names, project.total_resource_slots if project is not None else ResourceSlot())
        domain_limits = scope_limits(names, domain.total_resource_slots)
        using = nothing + await self._sessions.occupied(access_key=caller.access_key)
        group_using = nothing
        if project is not None:
            group_using += await self._sessions.occupied(group_id=project.id)
        domain_using = nothing + await self._sessions.occupied(domain_name=domain.name)
        remaining_quotas = (limits - using, group_limits - group_using, domain_limits - domain_using)
        open_groups = [
            g.name
            for g in await self._resource_groups.available(caller, group=group)
            if scaling_group in (None, g.name)
        ]
        agents = [
            a for a in await self._agents.agents() if a.scaling_group in open_groups and a.status is AgentStatus.ALIVE
        ]
        remaining = {a.id: a.available_slots - a.occupied_slots for a in agents}
        presets = [
            (
                preset,
                any(preset.resource_slots <= remaining[a.id] for a in agents)
                and all(
                    preset.resource_slots[name] <= quota[name]
                    for quota in remaining_quotas
                    for name in preset.resource_slots
                ),
            )
            for preset in await self._presets.presets()
        ]
        return PresetCheck(
            presets=tuple(presets),
            keypair_limits=limits,
            keypair_using=using,
            keypair_remaining=remaining_quotas[0],
            group_limits=group_limits,
            group_using=group_using,
            group_remaining=remaining_quotas[1],
            domain_limits=domain_limits,
            domain_using=domain_using,
            domain_remaining=remaining_quotas[2],
            scaling_groups={
                name: (
                    sum((a.occupied_slots for a in agents if a.scaling_group == name), ResourceSlot()),
                    sum((remaining[a.id] for a in agents if a.scaling_group == name), ResourceSlot()),
                )
                for name in open_groups
            },
        )
