"""Implements what administrators do with agents, devices (spec 03-09, "Agent") and watchers (spec 03-02)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ai.backend.common.errors import Conflict, NotFound
from ai.backend.common.ids import AgentId, ResourceGroupName
from ai.backend.common.states import AgentStatus
from ai.backend.common.structs import replace
from ai.backend.common.wire.agent import DeviceOperation, DeviceOptions, DeviceOptionsOf, OperateDevice
from ai.backend.common.wire.link import AgentCommands
from ai.backend.infra.bus import Bus
from ai.backend.infra.config_store import ConfigStore
from ai.backend.infra.loop import PeriodicLoop
from ai.backend.manager.access.caller import Caller
from ai.backend.manager.access.checks import is_permitted, require
from ai.backend.manager.access.permissions import Operation
from ai.backend.manager.agents.model import Agent, KernelOccupancy, counted_ids
from ai.backend.manager.agents.registration import Assignments
from ai.backend.manager.agents.store import AgentGateway, AgentStore, Drainage, Occupancy, WatcherGateway
from ai.backend.manager.metrics.history import Series, Span
from ai.backend.manager.metrics.live import LiveMetrics
from ai.backend.manager.query.model import ListQuery, Page
from ai.backend.manager.resource_groups.store import ResourceGroupStore
from ai.backend.manager.topics import AGENTS

DRAIN = "drain"
CORDONS = frozenset({"cordon", "taint", "uncordon"})
TOKEN_KEY = "config/watcher/token"
DEFAULT_PORT = 6009


@dataclass(slots=True, eq=False)
class AgentService:
    """Lists agents for superadmins and monitors, and lets superadmins change agents and operate their devices."""

    store: AgentStore
    occupancy: Occupancy
    resource_groups: ResourceGroupStore
    assignments: Assignments
    metrics: LiveMetrics
    gateway: AgentGateway
    bus: Bus
    drainage: Drainage = field(init=False)
    """Ends sessions on drained devices; set after the construction, as session services are built after agents."""
    after_change: list[PeriodicLoop] = field(default_factory=list, init=False)
    """Loops that are woken after an agent has changed."""

    async def agents(
        self, caller: Caller, query: ListQuery, *, status: str | None = None, scaling_group: str | None = None
    ) -> Page[Agent]:
        """Returns a page of agents with live statistics, or an empty page if the caller may not see agents."""
        if not is_permitted(caller, Operation.SEE_AGENTS):
            return Page(items=[], total_count=0)
        page = await self.store.page(query, status=status, scaling_group=scaling_group)
        return replace(page, items=[self._with_statistics(agent) for agent in page.items])

    async def agent(self, caller: Caller, agent_id: str) -> Agent:
        """Returns an agent with live statistics. Raises NotFound, also for callers who may not see agents."""
        if not is_permitted(caller, Operation.SEE_AGENTS):
            raise _not_found(agent_id)
        return self._with_statistics(await self._existing_agent(agent_id))

    async def metric_history(self, caller: Caller, agent_id: str, span: Span) -> Series:
        """Returns the recent use of resources on a node and on each of its devices. Raises NotFound, also for callers
        who may not see agents.
        """
        agent = await self.agent(caller, agent_id)
        return self.metrics.history_of_agent(agent.id, span)

    async def living_agents(self) -> Sequence[Agent]:
        return [agent for agent in await self.store.agents() if agent.status is AgentStatus.ALIVE]

    async def count_by_status(self) -> Mapping[AgentStatus, int]:
        return await self.store.count_by_status()

    async def holdings(self, caller: Caller, agent_ids: Collection[str]) -> Mapping[str, Sequence[KernelOccupancy]]:
        """Returns, for each of the agents, the kernels and device claims that occupy it.

        Returns an empty map if the caller may not see agents.
        """
        if not is_permitted(caller, Operation.SEE_AGENTS):
            return {}
        holdings: dict[str, list[KernelOccupancy]] = {}
        for holding in await self.occupancy.held([AgentId(agent_id) for agent_id in agent_ids]):
            holdings.setdefault(holding.agent, []).append(holding)
        return holdings

    def _with_statistics(self, agent: Agent) -> Agent:
        live_stat = self.metrics.agent_statistics(agent.id)
        return replace(agent, live_stat=live_stat) if live_stat is not None else agent

    async def _existing_agent(self, agent_id: str) -> Agent:
        agent = await self.store.agent(AgentId(agent_id))
        if agent is None:
            raise _not_found(agent_id)
        return agent

    async def operate_device(
        self, caller: Caller, agent_id: str, operation: OperateDevice, *, start_over: bool = False
    ) -> DeviceOperation:
        """Partitions, switches, programs or attaches a device of an agent, and returns when the operation has ended.

        ``drain`` cordons the device and asks the sessions that hold it to end, without waiting for that; with
        ``start_over`` batch sessions wait again.

        Raises:
            Forbidden: not a superadmin. NotFound: no such agent or device. InvalidInput: no operation of the device.
            Conflict: the agent is not alive, or a session or a device claim holds the device.
        """
        commands = await self._commands_of(caller, agent_id)
        if operation.action != DRAIN:
            await self._check_unclaimed(agent_id, operation)
            return await commands.operate_device(operation)
        cordon_operation = await commands.operate_device(replace(operation, action="cordon"))
        agent = await self._existing_agent(agent_id)
        holdings = await self.occupancy.held([agent.id])
        device_holdings = _holdings_of_device(holdings, agent, operation)
        claim_ids = {holding.claim_id for holding in device_holdings if holding.is_claim}
        holding_sessions = {
            holding.session_id
            for holding in holdings
            if not holding.is_claim and (holding in device_holdings or holding.claim_id in claim_ids)
        }
        await self.drainage.end(sorted(holding_sessions), start_over=start_over, stimulus_id=caller.stimulus_id)
        return cordon_operation

    async def _check_unclaimed(self, agent_id: str, operation: OperateDevice) -> None:
        """Raises Conflict if a device claim holds the device, even without a session, which the agent cannot know.
        Cordons and taints are always allowed, since they do not change the device.
        """
        if operation.action in CORDONS:
            return
        agent = await self._existing_agent(agent_id)
        claim_holdings = [holding for holding in await self.occupancy.held([agent.id]) if holding.is_claim]
        if claims := _holdings_of_device(claim_holdings, agent, operation):
            claim_ids = [str(claim.claim_id) for claim in claims]
            message = f"A device claim keeps {operation.device_id[:128]}: {claim_ids[0]}. Release it first."
            raise Conflict(message, data={"claims": claim_ids})

    async def device_options(self, caller: Caller, agent_id: str, device_name: str) -> DeviceOptions:
        """Returns the operations that the devices of a plugin offer, with drain if the agent supports cordons.

        Raises as :meth:`operate_device`.
        """
        commands = await self._commands_of(caller, agent_id)
        options = await commands.device_options(DeviceOptionsOf(device_name=device_name))
        if "cordon" not in options.actions:
            return options
        return replace(options, actions=sorted({*options.actions, DRAIN}))

    async def _commands_of(self, caller: Caller, agent_id: str) -> AgentCommands:
        require(caller, Operation.OPERATE_DEVICES)
        agent = await self._existing_agent(agent_id)
        if agent.status is not AgentStatus.ALIVE:
            raise Conflict(f"The agent {agent.id} is {agent.status}.", data={"status": agent.status.value})
        return self.gateway.agent(agent.id)

    async def set_schedulable(self, caller: Caller, agent_ids: Sequence[str], schedulable: bool) -> None:
        """Allows or forbids new sessions on agents; running sessions continue.

        Raises Forbidden unless the caller is a superadmin, and NotFound if one agent does not exist; none is changed
        then.
        """
        require(caller, Operation.CHANGE_AGENTS)
        for agent_id in agent_ids:
            if await self.store.agent(AgentId(agent_id)) is None:
                raise NotFound(f"There is no agent {agent_id[:64]!r}.", data={"args": "unknown agent"})
        for agent_id in agent_ids:
            await self.store.change(AgentId(agent_id), schedulable=schedulable)
        self.bus.publish(AGENTS)

    async def modify_agent(
        self, caller: Caller, agent_id: str, *, schedulable: bool | None = None, scaling_group: str | None = None
    ) -> Agent:
        """Allows or forbids new sessions on an agent, or moves the agent to another resource group; its sessions
        continue.

        Raises Forbidden unless the caller is a superadmin, and NotFound for an unknown agent or resource group.
        """
        require(caller, Operation.CHANGE_AGENTS)
        agent = await self._existing_agent(agent_id)
        if scaling_group is not None:
            if await self.resource_groups.resource_group(scaling_group) is None:
                raise NotFound(f"There is no resource group {scaling_group[:64]!r}.", data={"scaling_group": "unknown"})
            # The assignment first: the next report of the agent is registered by it.
            named_group = await self.assignments.reported_group(agent)
            await self.assignments.put(agent.id, scaling_group, replaced_group=named_group)
            await self.store.change(agent.id, scaling_group=ResourceGroupName(scaling_group))
        if schedulable is not None:
            await self.store.change(agent.id, schedulable=schedulable)
        self.bus.publish(AGENTS)
        for periodic_loop in self.after_change:
            periodic_loop.wake()
        return await self.store.agent(agent.id) or agent


def _not_found(agent_id: str) -> NotFound:
    return NotFound(f"There is no agent {agent_id[:64]!r}.")


class WatcherService:
    """Lets superadmins start, stop and restart agents through their watchers (client wire contract 2.9).

    A watcher's address and token are in the shared configuration (peer facts 4.5). Agents do not write them: the
    manager would send the token to any address that an agent names.
    """

    def __init__(self, agents: AgentStore, config: ConfigStore, gateway: WatcherGateway) -> None:
        self._agents = agents
        self._config = config
        self._gateway = gateway

    async def status(self, caller: Caller, agent_id: str) -> Mapping[str, Any]:
        """Returns the status of an agent that its watcher reports, as ``agent-status``. Raises Forbidden, NotFound,
        Unavailable.
        """
        return await self._call_watcher(caller, agent_id, "GET", "/")

    async def act(self, caller: Caller, agent_id: str, action: str) -> Mapping[str, Any]:
        """Starts, stops or restarts an agent through its watcher; the sessions of the agent continue. Raises as
        :meth:`status`.
        """
        return await self._call_watcher(caller, agent_id, "POST", f"/agent/{action}")

    async def _call_watcher(self, caller: Caller, agent_id: str, method: str, path: str) -> Mapping[str, Any]:
        require(caller, Operation.CONTROL_AGENT_DAEMONS)
        agent = await self._agents.agent(AgentId(agent_id))
        if agent is None:
            raise NotFound(f"There is no agent {agent_id[:64]!r}.", data={"agent_id": "unknown"})
        prefix = f"nodes/agents/{agent.id}"
        host, port = await self._config.get(f"{prefix}/ip"), await self._config.get(f"{prefix}/watcher_port")
        token = await self._config.get(TOKEN_KEY)
        for key, value in ((f"{prefix}/ip", host), (TOKEN_KEY, token)):
            if not value:
                message = f"The watcher of {agent.id} is not known: set {key} in the shared configuration."
                raise NotFound(message, data={"agent_id": "no watcher"})
        return await self._gateway.call(method, str(host), str(port or DEFAULT_PORT), path, token=str(token))


def _holdings_of_device(
    holdings: Sequence[KernelOccupancy], agent: Agent, operation: OperateDevice
) -> Sequence[KernelOccupancy]:
    """Returns the kernels and claims that hold a device or one of its partitions."""
    slot_names = _slots_of_plugin(agent, operation.device_name)
    device_ids = _ids_of_device(agent, operation.device_name, operation.device_id)
    return [
        holding
        for holding in holdings
        if any(not device_ids.isdisjoint(devices) for slot, devices in holding.devices.items() if slot in slot_names)
    ]


def _slots_of_plugin(agent: Agent, device_name: str) -> frozenset[str]:
    """Returns the names of the slots that the devices of a plugin offer on an agent."""
    return frozenset(
        str(slot.get("slot_name"))
        for device in agent.devices
        if device.get("device_name") == device_name
        for slot in device.get("slots", ())
    )


def _ids_of_device(agent: Agent, device_name: str, device_id: str) -> frozenset[str]:
    """Returns the id of a device and the ids of its partitions."""
    device_ids = {device_id}
    for device in agent.devices:
        own_id, parent_id = str(device.get("device_id")), device.get("parent_id")
        if device.get("device_name") == device_name and device_id in (own_id, parent_id):
            device_ids.update(counted_ids(device))
    return frozenset(device_ids)
