"""Private networks of sessions: a bridge of the engine for each, found by its labels, which hold all parameters.

One that reaches over several nodes has one more port, which leads to the bridges there (:mod:`.overlay`); each bridge
has its own address in it. Every kernel has its address before its container is made, so that each finds the others by
name from its start, without a name server.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress
from hashlib import sha256
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any
from uuid import UUID

from ai.backend.common.errors import CreationDeferred, CreationDenied, WorkloadError
from ai.backend.common.ids import SessionId
from ai.backend.node.linux.netlink import Route
from ai.backend.node.network import overlay
from ai.backend.node.network.subnets import addresses_of, busy_networks, prefix_for
from ai.backend.plugin.crash_points import crash_point
from ai.backend.plugin.runtime import NetworkView, Overlay
from ai.backend.runtime.docker.engine import Container, Engine, EngineRefusal
from ai.backend.runtime.docker.records import INSTANCE_LABEL, DockerState

log = logging.getLogger(__name__)
SESSION_LABEL = "ai.backend.session-network"
ADDRESSES_LABEL = "ai.backend.addresses"
VNI_LABEL = "ai.backend.vni"
_TRIES = 64
_MARK = "bai-"


def why_none_over_nodes(host: str, state: Path) -> str:
    """Returns why the engine at ``unix://...`` cannot create multi-node networks; empty if it can."""
    if os.geteuid() != 0:
        return "networks over several nodes need root, and the agent runs as another user"
    with socket.socket(socket.AF_UNIX) as line:
        try:
            line.connect(host.removeprefix("unix://"))
            pid = struct.unpack("=iII", line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
            theirs, ours = (Path(f"/proc/{process}/ns/net").stat().st_ino for process in (pid, "self"))
        except OSError as error:
            return f"it cannot be told which network the engine is in: {error.strerror or error}"
    if theirs != ours:
        return "the agent is not in the network of the engine, and cannot lead its bridges to other nodes"
    return overlay.why_none(overlay.device_name("probe ", f"{state} {os.getpid()}", "v"))


class SessionNetworks:
    """Creates and removes the networks. Calls for one session run one after the other."""

    def __init__(self, engine: Engine, state: DockerState, pool: IPv4Network, *, is_internal: bool) -> None:
        self._engine = engine
        self._state = state
        self._pool = pool
        self._is_internal = is_internal
        self._choosing = asyncio.Lock()

    @property
    def _mark(self) -> str:
        return f"backendai {self._state.instance[:16]} "

    def _device(self, session_id: SessionId) -> str:
        """Returns the name of the device that leads from the session's bridge to other nodes."""
        return overlay.device_name(self._mark, str(session_id), "v")

    def _name(self, session_id: SessionId) -> str:
        return f"backendai-{self._state.instance[:8]}-net-{session_id}"

    async def _find(self, session_id: SessionId) -> list[Container]:
        """Returns the engine's networks of a session. There are several only if an interrupted call was run late."""
        labels = [f"{INSTANCE_LABEL}={self._state.instance}", f"{SESSION_LABEL}={session_id}"]
        return sorted(await self._engine.networks(labels), key=lambda network: str(network.get("Created")))

    async def create(self, session_id: SessionId, hosts: Sequence[str], over: Overlay | None = None) -> NetworkView:
        """Creates the network of a session, or returns it.

        Raises:
            CreationDenied: no addresses are left, or the engine has no bridges.
            CreationDeferred: the given addresses are in use here.
            WorkloadError: the kernel of Linux refuses.
        """
        view = await self._existing(session_id, hosts, over)
        if view is None:
            crash_point("network.looked")
            async with self._choosing:
                view = await self._create(session_id, hosts, over)
        if over is not None:
            device, mark = self._device(session_id), f"{self._mark}{session_id}"
            try:
                await asyncio.to_thread(overlay.set_up, device, mark, over, bridge=_bridge(self._name(session_id)))
            except OSError as error:
                what = error.strerror or error
                raise WorkloadError(f"the session's network cannot be led to other nodes: {what}") from error
        return view

    async def _existing(self, session_id: SessionId, hosts: Sequence[str], over: Overlay | None) -> NetworkView | None:
        for network in await self._find(session_id):
            view = _view(network, session_id)
            vni = (network.get("Labels") or {}).get(VNI_LABEL)
            if set(view.addresses) == set(hosts) and vni == (None if over is None else str(over.vni)):
                return view
            await self._remove(network)  # of another life of the session, which had other kernels
        return None

    async def _create(self, session_id: SessionId, hosts: Sequence[str], over: Overlay | None) -> NetworkView:
        refusal: EngineRefusal | None = None
        subnets = await self._free_subnets(session_id, len(hosts)) if over is None else [await self._checked(over)]
        for subnet in subnets:
            addresses = addresses_of(subnet, hosts) if over is None else dict(over.addresses)
            body = self._body(session_id, subnet, addresses, over)
            try:
                network_id = await self._engine.create_network(body)
            except EngineRefusal as error:
                refusal, exists = error, "exists" in error.message.lower()
                if exists and (view := await self._existing(session_id, hosts, over)) is not None:
                    return view  # an interrupted call was executed late
                if exists or "overlap" in error.message.lower():
                    continue  # somebody else was faster
                raise CreationDenied(f"the engine makes no network for the session: {error.message}") from error
            crash_point("network.made")
            return NetworkView(session_id=session_id, network_id=network_id, addresses=addresses)
        if over is not None and refusal is not None:
            raise CreationDeferred(f"the session's network cannot be {over.subnet} here: {refusal.message}")
        reason = refusal.message if refusal is not None else f"all of {self._pool} is in use"
        raise CreationDenied(f"no addresses are left for the session's network: {reason}")

    async def _checked(self, over: Overlay) -> IPv4Network:
        """Checks the addresses. Raises CreationDeferred if they are in use here: the manager then chooses others."""
        subnet = IPv4Network(over.subnet)
        for other in await self._taken():
            if subnet.overlaps(other):
                raise CreationDeferred(f"the session's network cannot be {subnet} here: {other} is in use")
        return subnet

    def _body(
        self, session_id: SessionId, subnet: IPv4Network, addresses: dict[str, str], over: Overlay | None
    ) -> dict[str, Any]:
        name = self._name(session_id)
        gateway = str(subnet[1]) if over is None else over.gateway
        return {
            "Name": name,
            "CheckDuplicate": True,
            "Driver": "bridge",
            "Internal": self._is_internal,
            "EnableIPv6": False,
            "IPAM": {"Driver": "default", "Config": [{"Subnet": str(subnet), "Gateway": gateway}]},
            "Options": {
                "com.docker.network.bridge.name": _bridge(name),
                **({} if over is None else {"com.docker.network.driver.mtu": str(over.mtu)}),
            },
            "Labels": {
                INSTANCE_LABEL: self._state.instance,
                SESSION_LABEL: str(session_id),
                ADDRESSES_LABEL: json.dumps(addresses),
                **({} if over is None else {VNI_LABEL: str(over.vni)}),
            },
        }

    async def _free_subnets(self, session_id: SessionId, hosts: int) -> list[IPv4Network]:
        """Chooses a random subnet that overlaps neither a network of the engine nor a route of the host."""
        taken = await self._taken()
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

    async def _taken(self) -> list[IPv4Network]:
        taken = await asyncio.to_thread(busy_networks)
        for network in await self._engine.networks():
            for entry in (network.get("IPAM") or {}).get("Config") or ():
                if "." in str(entry.get("Subnet")):
                    taken.append(IPv4Network(entry["Subnet"], strict=False))
        return taken

    async def remove(self, session_id: SessionId) -> None:
        """Removes the network of a session. Raises OSError, or what the engine raises."""
        if os.geteuid() == 0:
            await asyncio.to_thread(self._remove_device, session_id)
        for network in await self._find(session_id):
            await self._remove(network)

    def _remove_device(self, session_id: SessionId) -> None:
        with Route() as route:
            route.remove(self._device(session_id))

    async def _remove(self, network: Container) -> None:
        network_id = str(network["Id"])
        shown = await self._engine.network(network_id)
        for container_id in (shown or {}).get("Containers") or {}:
            await self._engine.disconnect(network_id, container_id)
        crash_point("network.emptied")
        await self._engine.remove_network(network_id)
        crash_point("network.removed")

    async def sessions(self) -> Sequence[SessionId]:
        labels = [f"{INSTANCE_LABEL}={self._state.instance}", SESSION_LABEL]
        sessions: list[SessionId] = []
        if os.geteuid() == 0:
            with suppress(OSError):  # no devices to other nodes; their bridges may have been removed with the engine
                marked = await asyncio.to_thread(overlay.marked, self._mark)
                sessions += [SessionId(UUID(name)) for name in marked.values()]
        for network in await self._engine.networks(labels):
            try:
                sessions.append(SessionId(UUID(network["Labels"][SESSION_LABEL])))
            except ValueError:
                log.warning("the network %s names no session and is removed", network["Name"])
                await self._remove(network)
        return tuple(dict.fromkeys(sessions))


def _bridge(name: str) -> str:
    """Returns the name of a network's bridge on the host."""
    return _MARK + sha256(name.encode()).hexdigest()[:10]


def _rotated(pool: IPv4Network, prefix: int, start: int) -> Iterator[IPv4Network]:
    """Yields all subnets of that size in the pool once, from a random start."""
    count = 1 << (prefix - pool.prefixlen)
    size = 1 << (32 - prefix)
    for step in range(count):
        number = (start + step) % count
        yield IPv4Network((int(pool.network_address) + number * size, prefix))


def _view(network: Container, session_id: SessionId) -> NetworkView:
    addresses = json.loads((network.get("Labels") or {}).get(ADDRESSES_LABEL) or "{}")
    return NetworkView(session_id=session_id, network_id=str(network["Id"]), addresses=dict(addresses))
