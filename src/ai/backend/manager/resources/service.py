"""The cluster as users and administrators see it: agents, slots, images, presets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal

from ai.backend.common.devices import DeviceHealth, VariantMatchMode, VariantProperty
from ai.backend.common.errors import Conflict, NotFound
from ai.backend.common.ids import AgentId, DeviceName, ResourceGroupName
from ai.backend.common.slots import ResourceSlot
from ai.backend.common.states import AgentStatus
from ai.backend.common.wire.agent import DeviceOperation, DeviceOptions, DeviceOptionsOf, OperateDevice
from ai.backend.common.wire.link import AgentCommands
from ai.backend.core.allocation.variants import features_of, version_of
from ai.backend.manager.access.caller import Caller
from ai.backend.manager.access.checks import is_permitted, require
from ai.backend.manager.access.permissions import Operation
from ai.backend.manager.agents.capabilities import DeviceReader
from ai.backend.manager.agents.gateway import AgentGateway
from ai.backend.manager.agents.model import Agent, KernelOccupancy, SlotTypeInfo
from ai.backend.manager.agents.slots import SlotCatalogue
from ai.backend.manager.agents.store import AgentStore
from ai.backend.manager.identity.service import IdentityService
from ai.backend.manager.images.model import Image
from ai.backend.manager.images.service import merge_images
from ai.backend.manager.metrics.live import LiveMetrics
from ai.backend.manager.query.model import ListQuery, Page
from ai.backend.manager.resource_groups.service import ResourceGroupService
from ai.backend.manager.resources.model import OfferedVariant, PresetCheck, ResourcePreset
from ai.backend.manager.resources.quotas import policy_limits, scope_limits
from ai.backend.manager.sessions.model import SlotAudit
from ai.backend.manager.sessions.store import SessionStore

_ALL = 100_000


def merge_variants(agents: Iterable[Agent], devices: DeviceReader) -> list[OfferedVariant]:
    """The properties of healthy devices, in the order of namespace, feature and value."""
    modes: dict[tuple[str, str], VariantMatchMode] = {}
    counts: dict[VariantProperty, dict[ResourceGroupName, int]] = {}
    names: dict[VariantProperty, set[DeviceName]] = {}
    for agent in agents:
        for plugin in devices.plugins_of(agent):
            modes.update({key: feature.match_mode for key, feature in features_of(plugin.namespaces).items()})
            healthy = Counter(d.properties for d in plugin.devices if d.health is DeviceHealth.HEALTHY)
            for properties, count in healthy.items():
                for stated in properties:
                    of_groups = counts.setdefault(stated, {})
                    of_groups[agent.scaling_group] = of_groups.get(agent.scaling_group, 0) + count
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


class ClusterService:
    """What users and administrators see of the cluster, and what superadmins do to its devices."""

    def __init__(
        self,
        agents: AgentStore,
        sessions: SessionStore,
        identity: IdentityService,
        resource_groups: ResourceGroupService,
        slots: SlotCatalogue,
        stats: LiveMetrics,
        gateway: AgentGateway,
        devices: DeviceReader,
    ) -> None:
        self._devices = devices
        self._agents = agents
        self._sessions = sessions
        self._identity = identity
        self._resource_groups = resource_groups
        self._slots = slots
        self._stats = stats
        self._gateway = gateway

    async def agents(
        self, caller: Caller, query: ListQuery, *, status: str | None = None, scaling_group: str | None = None
    ) -> Page[Agent]:
        """Superadmins and monitors; an empty page for others. Live statistics are filled in."""
        if not is_permitted(caller, Operation.SEE_AGENTS):
            return Page(items=[], total_count=0)
        page = await self._agents.page(query, status=status, scaling_group=scaling_group)
        return replace(page, items=[self._stats.fill_agent(a) for a in page.items])

    async def agent(self, caller: Caller, agent_id: str) -> Agent:
        """Raises NotFound, also for those who may not see agents."""
        agent = await self._agents.agent(AgentId(agent_id)) if is_permitted(caller, Operation.SEE_AGENTS) else None
        if agent is None:
            raise NotFound(f"There is no agent {agent_id[:64]!r}.")
        return self._stats.fill_agent(agent)

    async def operate_device(self, caller: Caller, agent_id: str, operation: OperateDevice) -> DeviceOperation:
        """Cut, switch, program, attach a device of an agent; answered when it is done.

        Raises:
            Forbidden: not a superadmin. NotFound: no such agent or device. Conflict: the agent is not alive, or a
            session holds the device. InvalidInput: not an operation that the device knows.
        """
        return await (await self._operated(caller, agent_id)).operate_device(operation)

    async def device_options(self, caller: Caller, agent_id: str, device_name: str) -> DeviceOptions:
        """What can be done with a plugin's devices. Raises as :meth:`operate_device`."""
        return await (await self._operated(caller, agent_id)).device_options(DeviceOptionsOf(device_name=device_name))

    async def _operated(self, caller: Caller, agent_id: str) -> AgentCommands:
        require(caller, Operation.OPERATE_DEVICES)
        agent = await self.agent(caller, agent_id)
        if agent.status is not AgentStatus.ALIVE:
            raise Conflict(f"The agent {agent.id} is {agent.status}.", data={"status": agent.status.value})
        return self._gateway.agent(agent.id)

    async def set_schedulable(self, caller: Caller, agent_ids: Sequence[str], schedulable: bool) -> None:
        """Let agents take new sessions, or none; what runs there goes on.

        Raises:
            Forbidden: not a superadmin. NotFound: one of them does not exist, and none is changed.
        """
        require(caller, Operation.CHANGE_AGENTS)
        for agent_id in agent_ids:
            if await self._agents.agent(AgentId(agent_id)) is None:
                raise NotFound(f"There is no agent {agent_id[:64]!r}.", data={"args": "unknown agent"})
        for agent_id in agent_ids:
            await self._agents.set_schedulable(AgentId(agent_id), schedulable)

    async def recount(self, caller: Caller) -> SlotAudit:
        """Count again what kernels hold and compare it with what is recorded of the agents.

        There is nothing to correct: slots are recorded in the transactions that give and take them. Raises Forbidden.
        """
        require(caller, Operation.RECOUNT_SLOTS)
        return await self._sessions.audit()

    def slot_types(self) -> Sequence[SlotTypeInfo]:
        """Every slot that was ever reported (``/config/resource-slots``), by name."""
        return tuple(self._slots.known.values())

    async def offered_slots(self, caller: Caller, scaling_group: str) -> frozenset[str]:
        """What the living agents of a resource group have; nothing where the group is not open to the caller."""
        if scaling_group not in {g.name for g in await self._resource_groups.available(caller)}:
            return frozenset()
        agents = await self._agents.agents(scaling_group=scaling_group)
        return frozenset(slot for a in agents if a.status is AgentStatus.ALIVE for slot in a.available_slots)

    async def variants(self, caller: Caller, scaling_group: str | None = None) -> Sequence[OfferedVariant]:
        """What the devices of living agents are, in the resource groups that are open to the caller or in one of them.

        Raises:
            NotFound: that resource group is not open to the caller.
        """
        open_groups = {g.name for g in await self._resource_groups.available(caller)}
        if scaling_group is not None and scaling_group not in open_groups:
            raise NotFound(f"There is no resource group {scaling_group[:64]!r} for you.")
        agents = await self._agents.agents(scaling_group=scaling_group)
        alive = (a for a in agents if a.scaling_group in open_groups and a.status is AgentStatus.ALIVE)
        return merge_variants(alive, self._devices)

    async def holdings(self, caller: Caller, agent_ids: Collection[str]) -> Mapping[str, Sequence[KernelOccupancy]]:
        """What occupies agents, by agent; for those who may see agents."""
        if not is_permitted(caller, Operation.SEE_AGENTS):
            return {}
        found: dict[str, list[KernelOccupancy]] = {}
        for holding in await self._sessions.held([AgentId(agent_id) for agent_id in agent_ids]):
            found.setdefault(holding.agent, []).append(holding)
        return found

    async def images(self) -> Sequence[Image]:
        """What the living agents offer, merged by name and architecture."""
        return merge_images(a for a in await self._agents.agents() if a.status is AgentStatus.ALIVE)

    async def presets(self) -> Sequence[ResourcePreset]:
        return await self._agents.presets()

    async def check_presets(
        self, caller: Caller, *, group: str | None = None, scaling_group: str | None = None
    ) -> PresetCheck:
        """What the caller can have now, in one resource group or in all that are open to them."""
        policy = await self._identity.resource_policy(caller)
        names = list(self._slots.known)
        nothing = ResourceSlot(dict.fromkeys(names, Decimal(0)))
        limits = policy_limits(names, policy)
        groups = await self._identity.groups(caller)
        chosen = next((g for g in groups if group in (None, g.name, str(g.id))), None)
        domain = await self._identity.domain(caller, chosen.domain_name if chosen is not None else None)
        group_limits = scope_limits(names, chosen.total_resource_slots if chosen is not None else ResourceSlot())
        domain_limits = scope_limits(names, domain.total_resource_slots)
        using = nothing + await self._sessions.occupied(access_key=caller.access_key)
        group_using = nothing
        if chosen is not None:
            group_using += await self._sessions.occupied(group_id=chosen.id)
        domain_using = nothing + await self._sessions.occupied(domain_name=domain.name)
        left = (limits - using, group_limits - group_using, domain_limits - domain_using)
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
                and not any(preset.resource_slots[name] > its[name] for its in left for name in preset.resource_slots),
            )
            for preset in await self._agents.presets()
        ]
        return PresetCheck(
            presets=tuple(presets),
            keypair_limits=limits,
            keypair_using=using,
            keypair_remaining=left[0],
            group_limits=group_limits,
            group_using=group_using,
            group_remaining=left[1],
            domain_limits=domain_limits,
            domain_using=domain_using,
            domain_remaining=left[2],
            scaling_groups={
                name: (
                    sum((a.occupied_slots for a in agents if a.scaling_group == name), ResourceSlot()),
                    sum((remaining[a.id] for a in agents if a.scaling_group == name), ResourceSlot()),
                )
                for name in open_groups
            },
        )

    async def gauges(self) -> Mapping[str, float]:
        """For ``/metrics``: name -> value."""
        agents = await self._agents.agents()
        live = await self._sessions.count_live()
        return {
            "agents_alive": sum(a.status is AgentStatus.ALIVE for a in agents),
            "agents_lost": sum(a.status is AgentStatus.LOST for a in agents),
            "sessions_live": sum(live.values()),
        }
