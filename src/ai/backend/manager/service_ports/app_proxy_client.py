"""Calls coordinators of the app proxy over HTTP (spec 03-14)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote
from uuid import UUID

import aiohttp
import msgspec

from ai.backend.common.errors import NotFound, PeerRefused, Unavailable
from ai.backend.common.ids import SessionId
from ai.backend.common.wire.appproxy import TOKEN_HEADER
from ai.backend.common.wire.execution import RouteOpened
from ai.backend.infra.http.client_traces import client_traces
from ai.backend.manager.service_ports.app_proxy_gateway import CoordinatorAddress
from ai.backend.manager.sessions.model import Session

_TIMEOUT = aiohttp.ClientTimeout(total=10.0, sock_connect=3.0)
_MAX_REPLY_BYTES = 64 << 20


class HttpCoordinators:
    """Implements :class:`ai.backend.manager.service_ports.app_proxy_gateway.CoordinatorGateway`."""

    def __init__(self) -> None:
        self._http: aiohttp.ClientSession | None = None

    async def authority(self, coordinator: CoordinatorAddress) -> str:
        return str((await self.call(coordinator, "GET", "/api/gateway-authority"))["certificate"])

    async def permit(self, coordinator: CoordinatorAddress, session: Session, app: str, route: RouteOpened) -> str:
        gateway = {"name": route.name, "certificate": route.certificate} if route.certificate is not None else None
        body = {
            "login_session_token": None,
            "kernel_host": route.host,
            "kernel_port": route.port,
            "session": {
                "id": session.id,
                "user_uuid": session.user_id,
                "group_id": str(session.group_id),
                "access_key": session.access_key,
                "domain_name": session.domain_name,
            },
            "app": app,
            "gateway": gateway,
        }
        return str((await self.call(coordinator, "POST", "/v2/conf", body))["token"])

    async def sessions(self, coordinator: CoordinatorAddress) -> Sequence[SessionId]:
        reply = await self.call(coordinator, "GET", "/api/session")
        return [SessionId(UUID(session_id)) for session_id in reply["session_ids"]]

    async def remove_sessions(self, coordinator: CoordinatorAddress, ids: Sequence[SessionId]) -> None:
        await self.call(coordinator, "DELETE", "/api/session/_/bulk", {"session_ids": list(ids)})

    async def workers(self, coordinator: CoordinatorAddress) -> Sequence[Mapping[str, Any]]:
        return list((await self.call(coordinator, "GET", "/api/worker"))["workers"])

    async def circuits(self, coordinator: CoordinatorAddress, worker_id: str) -> Sequence[Mapping[str, Any]]:
        return list(
            (await self.call(coordinator, "GET", f"/api/worker/{quote(worker_id, safe='')}/circuits"))["circuits"]
        )

    async def remove_circuit(self, coordinator: CoordinatorAddress, circuit_id: str) -> None:
        await self.call(coordinator, "DELETE", f"/api/circuit/{quote(circuit_id, safe='')}")

    async def close(self) -> None:
        if self._http is not None:
            await self._http.close()
            self._http = None

    async def call(self, coordinator: CoordinatorAddress, method: str, path: str, body: Any = None) -> dict[str, Any]:
        """Sends an HTTP request to a coordinator of the app proxy and returns the decoded reply.

        Raises Unavailable, PeerRefused; NotFound if the coordinator does not have the object that the path names.
        """
        if self._http is None or self._http.closed:
            self._http = aiohttp.ClientSession(timeout=_TIMEOUT, trace_configs=client_traces())
        headers = {TOKEN_HEADER: coordinator.secret, "Content-Type": "application/json"}
        try:
            async with self._http.request(
                method,
                coordinator.url + path,
                data=msgspec.json.encode(body) if body is not None else None,
                headers=headers,
                allow_redirects=False,
            ) as response:
                reply_bytes = await response.content.read(_MAX_REPLY_BYTES)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as e:
            raise Unavailable(f"The app proxy {coordinator.url} does not answer: {str(e) or type(e).__name__}") from e
        try:
            document = msgspec.json.decode(reply_bytes, type=dict[str, Any])
        except msgspec.MsgspecError:
            document = {}
        if response.status == 404:
            raise NotFound(str(document.get("detail") or "The app proxy does not have that."))
        if response.status != 200 or not document:
            reason = str(document.get("detail") or document.get("title") or f"HTTP {response.status}")
            raise PeerRefused(f"The app proxy {coordinator.url} refuses: {reason[:500]}")
        return document
