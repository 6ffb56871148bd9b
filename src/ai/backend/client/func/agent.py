"""Agents and their watchers (client wire contract 3)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack

from ai.backend.client.func.admin import PaginatedResult, Paging
from ai.backend.client.func.base import Area
from ai.backend.client.wire import encode_segment

AGENT_FIELDS = (
    "id", "status", "status_changed", "region", "architecture", "scaling_group", "schedulable", "available_slots",
    "occupied_slots", "addr", "first_contact", "version", "runtime", "tier", "enforcement", "overlay", "location",
    "max_kernels", "compute_plugins", "devices",
)  # fmt: skip


class AsyncAgent(Area):
    """Lists and changes agents, for administrators (``api_session.Agent``)."""

    async def paginated_list(
        self,
        status: str | None = "ALIVE",
        scaling_group: str | None = None,
        *,
        fields: Sequence[str] = AGENT_FIELDS,
        **paging: Unpack[Paging],
    ) -> PaginatedResult:
        arguments = {"status": ("String", status), "scaling_group": ("String", scaling_group)}
        return await self._admin.fetch_page("agent_list", fields, arguments, **paging)

    async def detail(self, agent_id: str, *, fields: Sequence[str] = AGENT_FIELDS) -> dict[str, Any] | None:
        """Returns the agent with this id, or None."""
        agent = await self._admin.select("agent", fields, agent_id=("String!", agent_id))
        return dict(agent) if agent else None

    async def update(self, agent_id: str, /, **props: Any) -> None:
        """Changes ``schedulable`` (it takes sessions) or ``scaling_group`` (its resource group); for superadmins."""
        await self._admin.mutate("modify_agent", {"id": ("String!", agent_id)}, "ModifyAgentInput", props)

    async def device_options(self, agent_id: str, device_name: str) -> dict[str, Any]:
        """Returns the operations that a plugin offers on its devices, for superadmins.

        The keys are ``actions``, ``profiles``, ``images``, ...
        """
        return await self._get(_operations_path(agent_id, device_name))

    async def operate_device(
        self,
        agent_id: str,
        device_name: str,
        action: str,
        device_id: str,
        argument: str = "",
        expires_after_s: float | None = None,
        *,
        start_over: bool = False,
    ) -> str:
        """Applies an action to a device of an agent, such as cordon, taint, drain, or an operation of its plugin.

        A device must not be in use, unless the action cordons, taints or drains it for the reason ``argument``, at most
        for ``expires_after_s``. Returns the id of the device, or of the resulting one. ``start_over``: batch sessions
        of a drained device wait again instead of ending.
        """
        body: dict[str, Any] = {"action": action, "device_id": device_id, "argument": argument}
        if start_over:
            body["start_over"] = True
        if expires_after_s is not None:
            body["expires_after_s"] = expires_after_s
        return str((await self._send("POST", _operations_path(agent_id, device_name), body))["device_id"])


class AsyncAgentWatcher(Area):
    """Starts and stops an agent by its watcher, for superadmins (``api_session.AgentWatcher``)."""

    async def get_status(self, agent_id: str) -> dict[str, Any]:
        """Returns ``agent-status``, as systemd reports it."""
        return await self._get("/resource/watcher", agent_id=agent_id)

    async def agent_start(self, agent_id: str) -> dict[str, Any]:
        return await self._request("start", agent_id)

    async def agent_stop(self, agent_id: str) -> dict[str, Any]:
        """Stops the agent; its sessions go on."""
        return await self._request("stop", agent_id)

    async def agent_restart(self, agent_id: str) -> dict[str, Any]:
        return await self._request("restart", agent_id)

    async def _request(self, action: str, agent_id: str) -> dict[str, Any]:
        return await self._send("POST", f"/resource/watcher/agent/{action}", {"agent_id": agent_id})


def _operations_path(agent_id: str, device_name: str) -> str:
    return f"/resource/agents/{encode_segment(agent_id)}/devices/{encode_segment(device_name)}/operations"
