"""Manages device claims, which keep accelerators for their owner between sessions.

claim = await api.DeviceClaim.create("gpus", resources={"cuda.device": 2})
session = await api.ComputeSession.get_or_create("python", claim="gpus")
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ai.backend.client.func.base import Area
from ai.backend.client.transport import Transport
from ai.backend.client.wire import Call, encode_segment, new_token


class AsyncDeviceClaim(Area):
    """Manages one device claim, given by its id or name. Constructing it sends no request."""

    def __init__(self, transport: Transport, name: str, owner_access_key: str | None = None) -> None:
        super().__init__(transport)
        self.name = name
        self.owner_access_key = owner_access_key

    async def info(self) -> dict[str, Any]:
        """Returns ``id``, ``name``, ``status``, ``devices``, the ``sessions`` that name it, and further properties."""
        return await self._get(self._path(), owner_access_key=self.owner_access_key)

    async def release(self) -> dict[str, Any]:
        """Gives back the devices of the claim.

        No session may hold them, and the next session allocates new devices. Returns the claim.
        """
        return await self._send_change("POST", "/release")

    async def delete(self) -> dict[str, Any]:
        """Deletes the claim when the last live session that names it ends. Returns the claim's state afterwards."""
        return await self._send_change("DELETE")

    def _path(self, operation: str = "") -> str:
        return f"/claims/{encode_segment(self.name)}{operation}"

    async def _send_change(self, method: str, operation: str = "") -> dict[str, Any]:
        owner = {"owner_access_key": self.owner_access_key} if self.owner_access_key else {}
        call = Call(method=method, path=self._path(operation), params=owner, repeatable=True, token=new_token())
        return (await self._transport.request(call)).object()


class AsyncDeviceClaims(Area):
    """Creates and lists device claims (``api_session.DeviceClaim``). Called with a name or id, returns a handle."""

    def __call__(self, name: str, owner_access_key: str | None = None) -> AsyncDeviceClaim:
        return AsyncDeviceClaim(self._transport, name, owner_access_key)

    async def create(
        self,
        name: str,
        *,
        resources: Mapping[str, str | int | float] | None = None,
        device_requests: Sequence[str] = (),
        idle_timeout: float | str | None = None,
        group_name: str | None = None,
        scaling_group: str | None = None,
        owner_access_key: str | None = None,
    ) -> dict[str, Any]:
        """Creates a device claim.

        The claim holds no devices until a session uses it. ``resources`` are accelerators only; ``idle_timeout`` is in
        seconds, or ``30m``, ``2h``; zero is the longest time that the policy allows.
        """
        config = self._transport.config
        body = {
            "name": name,
            "resources": {slot: str(amount) for slot, amount in (resources or {}).items()},
            "device_requests": list(device_requests),
            "idle_timeout": idle_timeout,
            "domain": config.domain,
            "group": group_name or config.group,
            "scaling_group": scaling_group,
            "owner_access_key": owner_access_key,
        }
        return await self._change("POST", "/claims", body)

    async def list(self, *, limit: int = 20, offset: int = 0, owner_access_key: str | None = None) -> dict[str, Any]:
        """Returns ``items``, the newest first, and ``total_count``."""
        return await self._get("/claims", limit=limit, offset=offset, owner_access_key=owner_access_key)
