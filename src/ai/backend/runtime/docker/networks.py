"""Private networks of sessions: a bridge of the engine each, found again by its labels, which say all that is known.

Every kernel has its address before its container is made, so that each finds the others by name from its start, without
a name server. Whether a network leads out is as it is for sessions of one kernel.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator, Sequence
from hashlib import sha256
from ipaddress import IPv4Network
from typing import Any
from uuid import UUID

from ai.backend.common.errors import CreationDenied
from ai.backend.common.ids import SessionId
from ai.backend.plugin.node.crash_points import reach
from ai.backend.plugin.node.subnets import addresses_of, busy_networks, prefix_for
from ai.backend.plugin.runtime import NetworkView
from ai.backend.runtime.docker.engine import Container, Engine, EngineRefusal
from ai.backend.runtime.docker.records import INSTANCE_LABEL, DockerState

log = logging.getLogger(__name__)
SESSION_LABEL = "ai.backend.session-network"
ADDRESSES_LABEL = "ai.backend.addresses"
_TRIES = 64
_MARK = "bai-"


class SessionNetworks:
    """See the module. Calls for one session come one after the other."""

    def __init__(self, engine: Engine, state: DockerState, pool: IPv4Network, *, is_internal: bool) -> None:
        self._engine = engine
        self._state = state
        self._pool = pool
        self._is_internal = is_internal
        self._choosing = asyncio.Lock()

    def _name(self, session_id: SessionId) -> str:
        return f"backendai-{self._state.instance[:8]}-net-{session_id}"

    async def _find(self, session_id: SessionId) -> list[Container]:
        """More than one only if a call that was cut off was carried out late."""
        labels = [f"{INSTANCE_LABEL}={self._state.instance}", f"{SESSION_LABEL}={session_id}"]
        found = await self._engine.networks(labels)
        return sorted(found, key=lambda network: str(network.get("Created")))

    async def create(self, session_id: SessionId, hosts: Sequence[str]) -> NetworkView:
        """Raises CreationDenied if no addresses are left, or the engine has no bridges."""
        if (view := await self._kept(session_id, hosts)) is not None:
            return view
        reach("network.looked")
        async with self._choosing:
            return await self._create(session_id, hosts)

    async def _kept(self, session_id: SessionId, hosts: Sequence[str]) -> NetworkView | None:
        for network in await self._find(session_id):
            view = _view(network, session_id)
            if set(view.addresses) == set(hosts):
                return view
            await self._remove(network)  # of another life of the session, which had other kernels
        return None

    async def _create(self, session_id: SessionId, hosts: Sequence[str]) -> NetworkView:
        refusal: EngineRefusal | None = None
        for subnet in await self._free_subnets(session_id, len(hosts)):
            addresses = addresses_of(subnet, hosts)
            body = self._body(session_id, subnet, addresses)
            try:
                network_id = await self._engine.create_network(body)
            except EngineRefusal as error:
                refusal = error
                if "exists" in error.message.lower() and (view := await self._kept(session_id, hosts)) is not None:
                    return view  # a call that was cut off was carried out late
                if "overlap" in error.message.lower() or "exists" in error.message.lower():
                    continue  # somebody else was faster
                raise CreationDenied(f"the engine makes no network for the session: {error.message}") from error
            reach("network.made")
            return NetworkView(session_id=session_id, network_id=network_id, addresses=addresses)
        reason = refusal.message if refusal is not None else f"all of {self._pool} is in use"
        raise CreationDenied(f"no addresses are left for the session's network: {reason}")

    def _body(self, session_id: SessionId, subnet: IPv4Network, addresses: dict[str, str]) -> dict[str, Any]:
        name = self._name(session_id)
        bridge = _MARK + sha256(name.encode()).hexdigest()[:10]
        return {
            "Name": name,
            "CheckDuplicate": True,
            "Driver": "bridge",
            "Internal": self._is_internal,
            "EnableIPv6": False,
            "IPAM": {"Driver": "default", "Config": [{"Subnet": str(subnet), "Gateway": str(subnet[1])}]},
            "Options": {"com.docker.network.bridge.name": bridge},
            "Labels": {
                INSTANCE_LABEL: self._state.instance,
                SESSION_LABEL: str(session_id),
                ADDRESSES_LABEL: json.dumps(addresses),
            },
        }

    async def _free_subnets(self, session_id: SessionId, hosts: int) -> list[IPv4Network]:
        """Some that overlap neither a network of the engine nor a route of the host; where to begin is chance."""
        taken = await asyncio.to_thread(busy_networks)
        for network in await self._engine.networks():
            for entry in (network.get("IPAM") or {}).get("Config") or ():
                if "." in str(entry.get("Subnet")):
                    taken.append(IPv4Network(entry["Subnet"], strict=False))
        prefix = prefix_for(hosts)
        if prefix < self._pool.prefixlen:
            raise CreationDenied(f"{self._pool} has no room for a network of {hosts} kernels")
        free: list[IPv4Network] = []
        for subnet in _rotated(self._pool, prefix, int(session_id.hex[:8], 16)):
            if not any(subnet.overlaps(other) for other in taken):
                free.append(subnet)
                if len(free) == _TRIES:
                    break
        return free

    async def remove(self, session_id: SessionId) -> None:
        for network in await self._find(session_id):
            await self._remove(network)

    async def _remove(self, network: Container) -> None:
        network_id = str(network["Id"])
        shown = await self._engine.network(network_id)
        for container_id in (shown or {}).get("Containers") or {}:
            await self._engine.disconnect(network_id, container_id)
        reach("network.emptied")
        await self._engine.remove_network(network_id)
        reach("network.removed")

    async def sessions(self) -> Sequence[SessionId]:
        labels = [f"{INSTANCE_LABEL}={self._state.instance}", SESSION_LABEL]
        found: list[SessionId] = []
        for network in await self._engine.networks(labels):
            try:
                found.append(SessionId(UUID(network["Labels"][SESSION_LABEL])))
            except ValueError:
                log.warning("the network %s names no session and is removed", network["Name"])
                await self._remove(network)
        return tuple(dict.fromkeys(found))


def _rotated(pool: IPv4Network, prefix: int, start: int) -> Iterator[IPv4Network]:
    """All parts of the pool of that size, once, beginning somewhere."""
    count = 1 << (prefix - pool.prefixlen)
    size = 1 << (32 - prefix)
    for step in range(count):
        number = (start + step) % count
        yield IPv4Network((int(pool.network_address) + number * size, prefix))


def _view(network: Container, session_id: SessionId) -> NetworkView:
    addresses = json.loads((network.get("Labels") or {}).get(ADDRESSES_LABEL) or "{}")
    return NetworkView(session_id=session_id, network_id=str(network["Id"]), addresses=dict(addresses))
