"""Agents and their watchers (client wire contract 3)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack
from urllib.parse import quote

from ai.backend.client.func.admin import AsyncAdmin, PaginatedResult, Paging
from ai.backend.client.func.base import Mutations, ResourceClient
from ai.backend.client.portal import Facade, blocking
from ai.backend.client.wire import Call

AGENT_FIELDS = (
    "id",
    "status",
    "status_changed",
    "region",
    "architecture",
    "scaling_group",
    "schedulable",
    "available_slots",
    "occupied_slots",
    "addr",
    "first_contact",
    "version",
    "runtime",
    "tier",
    "enforcement",
    "overlay",
    "location",
    "max_kernels",
    "compute_plugins",
    "devices",
)


class AsyncAgent(ResourceClient):
    """The agents, for administrators."""

    async def paginated_list(
        self,
        status: str | None = "ALIVE",
        scaling_group: str | None = None,
        *,
        fields: Sequence[str] = AGENT_FIELDS,
        **paging: Unpack[Paging],
    ) -> PaginatedResult:
        arguments = {
            "status": ("String", status),
            "scaling_group": ("String", scaling_group),
        }
        admin = AsyncAdmin(self._transport)
        return await admin.fetch_page("agent_list", fields, arguments, **paging)

    async def detail(self, agent_id: str, *, fields: Sequence[str] = AGENT_FIELDS) -> dict[str, Any] | None:
        """Returns an agent, or None."""
        query = f"query($agent_id: String!) {{ agent(agent_id: $agent_id) {{ {' '.join(fields)} }} }}"
        agent = (await AsyncAdmin(self._transport).query(query, {"agent_id": agent_id})).get("agent")
        return dict(agent) if agent else None

    async def update(self, agent_id: str, /, **props: Any) -> None:
        """Change ``schedulable`` (it takes sessions) or ``scaling_group`` (its resource group); for superadmins."""
        await Mutations(self._transport).mutate(
            "modify_agent", {"id": ("String!", agent_id)}, "ModifyAgentInput", props
        )

    async def device_options(self, agent_id: str, device_name: str) -> dict[str, Any]:
        """Returns the operations of a plugin's devices for superadmins: ``actions``, ``profiles``, ``images``, ..."""
        return await self._get(_operations(agent_id, device_name))

    async def operate_device(
        self, agent_id: str, device_name: str, action: str, device_id: str, argument: str = ""
    ) -> str:
        """Apply an action to a device that is not in use; returns the id of the device, or of the resulting one."""
        body = {"action": action, "device_id": device_id, "argument": argument}
        call = Call(method="POST", path=_operations(agent_id, device_name), json=body)
        return str((await self._transport.request(call)).object()["device_id"])


class Agent(Facade[AsyncAgent]):
    """``api_session.Agent`` of a blocking session."""

    paginated_list = blocking(AsyncAgent.paginated_list)
    detail = blocking(AsyncAgent.detail)
    update = blocking(AsyncAgent.update)


class AsyncAgentWatcher(ResourceClient):
    """Starts and stops an agent by its watcher, for superadmins."""

    async def get_status(self, agent_id: str) -> dict[str, Any]:
        """Returns ``agent-status``, as systemd says it."""
        return await self._get("/resource/watcher", agent_id=agent_id)

    async def agent_start(self, agent_id: str) -> dict[str, Any]:
        return await self._act("start", agent_id)

    async def agent_stop(self, agent_id: str) -> dict[str, Any]:
        """Stop the agent; its sessions go on."""
        return await self._act("stop", agent_id)

    async def agent_restart(self, agent_id: str) -> dict[str, Any]:
        return await self._act("restart", agent_id)

    async def _act(self, action: str, agent_id: str) -> dict[str, Any]:
        return await self._send("POST", f"/resource/watcher/agent/{action}", {"agent_id": agent_id})


class AgentWatcher(Facade[AsyncAgentWatcher]):
    """``api_session.AgentWatcher`` of a blocking session."""

    get_status = blocking(AsyncAgentWatcher.get_status)
    agent_start = blocking(AsyncAgentWatcher.agent_start)
    agent_stop = blocking(AsyncAgentWatcher.agent_stop)
    agent_restart = blocking(AsyncAgentWatcher.agent_restart)


def _operations(agent_id: str, device_name: str) -> str:
    return f"/resource/agents/{quote(agent_id, safe='')}/devices/{quote(device_name, safe='')}/operations"
