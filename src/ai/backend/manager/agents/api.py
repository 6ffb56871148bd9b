"""REST routes of agents and their devices (spec 03-08)."""

from __future__ import annotations

from typing import Annotated, Literal, TypedDict

import msgspec
from aiohttp import web
from msgspec import Meta

from ai.backend.common.wire.agent import DeviceOperation, DeviceOptions, OperateDevice
from ai.backend.infra.http.routes import Call, Nothing, Schema, route
from ai.backend.manager.access.requests import OBJECT_PROBLEMS, SESSION_PROBLEMS, caller_of
from ai.backend.manager.agents.fleet import FleetService, FleetView
from ai.backend.manager.agents.schemas import HistoryQuery, MetricSeries, metric_series
from ai.backend.manager.agents.service import AgentService, WatcherService

AgentName = Annotated[str, Meta(min_length=1, max_length=64)]


class DeviceOperationBody(Schema, frozen=True):
    action: Literal[
        "partition", "unpartition", "power-on", "power-off", "reset", "program", "attach", "detach",
        "cordon", "taint", "uncordon", "drain",
    ]  # fmt: skip
    device_id: Annotated[str, Meta(min_length=1, max_length=512)]
    argument: Annotated[str, Meta(max_length=4096)] = ""
    expires_after_s: Annotated[float, Meta(gt=0, le=10 * 365 * 86_400)] | None = None
    start_over: bool = False


class SchedulerBody(Schema, frozen=True):
    op: Literal["include-agents", "exclude-agents"]
    args: Annotated[list[Annotated[str, Meta(min_length=1, max_length=64)]], Meta(min_length=1, max_length=10_000)]


class AgentsApi:
    """Routes of agents, for superadmins."""

    problems = SESSION_PROBLEMS

    def __init__(self, agents: AgentService) -> None:
        self._agents = agents

    @route("GET", "/resource/agents/{agent_id}/devices/{device_name}/operations")
    async def device_operations(self, call: Call) -> DeviceOptions:
        """List the operations that the devices of an agent's plugin offer."""
        params = call.params
        return await self._agents.device_options(caller_of(call), params["agent_id"], params["device_name"])

    @route("POST", "/resource/agents/{agent_id}/devices/{device_name}/operations", body=DeviceOperationBody)
    async def operate_device(self, call: Call[DeviceOperationBody]) -> DeviceOperation:
        """Operate an unused device of an agent, or cordon any; answers when the operation is done.

        ``action`` is partition, unpartition, power-on, power-off, reset, program, attach or detach; the answer has the
        id of the device, or of the new partition. cordon takes a device out of scheduling with the reason ``argument``,
        until uncordon or for ``expires_after_s``; sessions on it go on. taint does so for sessions that do not tolerate
        the first word of ``argument``. drain cordons, and ends the sessions on it; with ``start_over`` batch sessions
        wait again instead.
        """
        fields = msgspec.structs.asdict(call.body)
        start_over = fields.pop("start_over")
        operation = OperateDevice(device_name=call.params["device_name"], **fields)
        return await self._agents.operate_device(
            caller_of(call), call.params["agent_id"], operation, start_over=start_over
        )

    @route("POST", "/manager/scheduler/operation", body=SchedulerBody)
    async def operate_scheduler(self, call: Call[SchedulerBody]) -> None:
        """Allow or forbid agents to take new sessions."""
        is_included = call.body.op == "include-agents"
        await self._agents.set_schedulable(caller_of(call), call.body.args, is_included)


class FleetApi:
    """Routes about all agents at once, for those who may see agents."""

    problems = OBJECT_PROBLEMS

    def __init__(self, fleet: FleetService, agents: AgentService) -> None:
        self._fleet = fleet
        self._agents = agents

    @route("GET", "/resource/fleet", reply=FleetView, also=(304,))
    async def fleet(self, call: Call) -> web.Response:
        """List all agents in a compact form; 304 if ``If-None-Match`` has the tag of what has not changed."""
        encoded_fleet = await self._fleet.fleet(caller_of(call))
        headers = {"ETag": encoded_fleet.etag, "Cache-Control": "private, no-cache"}
        if call.request.headers.get("If-None-Match") == encoded_fleet.etag:
            return web.Response(status=304, headers=headers, content_type="application/json")
        response = web.Response(body=encoded_fleet.body, headers=headers, content_type="application/json")
        response.enable_compression()
        return response

    @route("GET", "/resource/agents/{agent_id}/metrics/history", query=HistoryQuery)
    async def metric_history(self, call: Call[Nothing, HistoryQuery]) -> MetricSeries:
        """Report what an agent and its devices used in the last hour or day, by metric."""
        series = await self._agents.metric_history(caller_of(call), call.params["agent_id"], call.query.span)
        return metric_series(series)


class WatcherBody(Schema, frozen=True):
    agent_id: AgentName


WatcherReply = TypedDict("WatcherReply", {"agent-status": str})
"""The status of an agent's service, as systemd names it."""


class AgentAction(TypedDict):
    result: Literal["ok"]


class WatchersApi:
    """Routes of the watchers of agents, for superadmins."""

    problems = OBJECT_PROBLEMS

    def __init__(self, watchers: WatcherService) -> None:
        self._watchers = watchers

    @route("GET", "/resource/watcher", query=WatcherBody)
    async def status(self, call: Call[Nothing, WatcherBody]) -> WatcherReply:
        """Return the status of an agent from its watcher."""
        reply = await self._watchers.status(caller_of(call), call.query.agent_id)
        return {"agent-status": str(reply.get("agent-status", "unknown"))}

    @route("POST", "/resource/watcher/agent/start", body=WatcherBody)
    @route("POST", "/resource/watcher/agent/stop", body=WatcherBody)
    @route("POST", "/resource/watcher/agent/restart", body=WatcherBody)
    async def act(self, call: Call[WatcherBody]) -> AgentAction:
        """Start, stop or restart an agent; its sessions go on."""
        action = call.endpoint.path.rpartition("/")[2]
        await self._watchers.act(caller_of(call), call.body.agent_id, action)
        return {"result": "ok"}
