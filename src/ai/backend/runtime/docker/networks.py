"""Creates, finds and removes the private networks of sessions, which are bridge networks of the Docker engine.

Each is found by its labels, which hold all parameters. One that reaches over several nodes has one more port, which
leads to the bridges there (:mod:`.overlay`); each bridge has its own address in it. Every kernel has its address before
its container is made, so that each finds the others by name from its start, without a name server.
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
from ai.backend.node.linux.netlink import RouteSocket
from ai.backend.node.network import overlay
from ai.backend.node.network.overlay import addresses_of, busy_networks, prefix_for
from ai.backend.plugin.crash_points import crash_point
from ai.backend.plugin.runtime import NetworkView, Overlay
from ai.backend.runtime.docker.engine import Container, Engine, EngineRefusal
from ai.backend.runtime.docker.records import INSTANCE_LABEL, DockerState

log = logging.getLogger(__name__)
SESSION_LABEL = "ai.backend.session-network"
ADDRESSES_LABEL = "ai.backend.addresses"
VNI_LABEL = "ai.backend.vni"
_MAX_SUBNET_TRIES = 64
_BRIDGE_PREFIX = "bai-"


def why_no_multi_node_networks(engine_url: str, state_directory: Path) -> str:
    """Returns the reason that the engine at ``unix://...`` cannot create multi-node networks; empty if it can."""
    if os.geteuid() != 0:
        return "networks over several nodes need root, and the agent runs as another user"
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect(engine_url.removeprefix("unix://"))
            engine_pid = struct.unpack("=iII", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
            engine_namespace, agent_namespace = (
                Path(f"/proc/{proc_entry}/ns/net").stat().st_ino for proc_entry in (engine_pid, "self")
            )
        except OSError as error:
            return f"it cannot be told which network the engine is in: {error.strerror or error}"
    if engine_namespace != agent_namespace:
        return "the agent is not in the network of the engine, and cannot lead its bridges to other nodes"
    return overlay.why_no_overlays(overlay.device_name("probe ", f"{state_directory} {os.getpid()}", "v"))


class SessionNetworks:
    """Creates and removes the networks of sessions. Calls for one session run one after the other."""

    def __init__(self, engine: Engine, state: DockerState, pool: IPv4Network, *, is_internal: bool) -> None:
        self._engine = engine
        self._state = state
        self._pool = pool
        self._is_internal = is_internal
        self._choice_lock = asyncio.Lock()

    @property
    def _device_mark(self) -> str:
        return f"backendai {self._state.instance[:16]} "

    def _overlay_device(self, session_id: SessionId) -> str:
        """Returns the name of the host device that connects the bridge of a session's network to other nodes."""
        return overlay.device_name(self._device_mark, str(session_id), "v")

    def _network_name(self, session_id: SessionId) -> str:
        return f"backendai-{self._state.instance[:8]}-net-{session_id}"

    async def _find_networks(self, session_id: SessionId) -> list[Container]:
        """Returns the engine's networks of a session, oldest first.

        There are several only if an interrupted call was executed late.
        """
        labels = [f"{INSTANCE_LABEL}={self._state.instance}", f"{SESSION_LABEL}={session_id}"]
        return sorted(await self._engine.networks(labels), key=lambda network: str(network.get("Created")))

    async def create(self, session_id: SessionId, hosts: Sequence[str], vxlan: Overlay | None = None) -> NetworkView:
        """Creates the network of a session, or returns the existing network.

        Raises:
            CreationDenied: no addresses are left, or the engine has no bridges.
            CreationDeferred: the given addresses are in use here.
            WorkloadError: the kernel of Linux refuses.
        """
        network_view = await self._find_existing(session_id, hosts, vxlan)
        if network_view is None:
            crash_point("network.looked")
            async with self._choice_lock:
                network_view = await self._create_network(session_id, hosts, vxlan)
        if vxlan is not None:
            device, device_mark = self._overlay_device(session_id), f"{self._device_mark}{session_id}"
            try:
                await asyncio.to_thread(
                    overlay.create_device,
                    device,
                    device_mark,
                    vxlan,
                    bridge=_bridge_name(self._network_name(session_id)),
                )
            except OSError as error:
                reason = error.strerror or error
                raise WorkloadError(f"the session's network cannot be led to other nodes: {reason}") from error
        return network_view

    async def _find_existing(
        self, session_id: SessionId, hosts: Sequence[str], vxlan: Overlay | None
    ) -> NetworkView | None:
        for network in await self._find_networks(session_id):
            view = _network_view(network, session_id)
            vni = (network.get("Labels") or {}).get(VNI_LABEL)
            if set(view.addresses) == set(hosts) and vni == (None if vxlan is None else str(vxlan.vni)):
                return view
            await self._remove_network(network)  # of another life of the session, which had other kernels
        return None

    async def _create_network(self, session_id: SessionId, hosts: Sequence[str], vxlan: Overlay | None) -> NetworkView:
        refusal: EngineRefusal | None = None
        subnets = (
            await self._free_subnets(session_id, len(hosts)) if vxlan is None else [await self._check_subnet(vxlan)]
        )
        for subnet in subnets:
            addresses = addresses_of(subnet, hosts) if vxlan is None else dict(vxlan.addresses)
            create_body = self._network_body(session_id, subnet, addresses, vxlan)
            try:
                network_id = await self._engine.create_network(create_body)
            except EngineRefusal as error:
                refusal, has_same_name = error, "exists" in error.message.lower()
                if has_same_name and (view := await self._find_existing(session_id, hosts, vxlan)) is not None:
                    return view  # an interrupted call was executed late
                if has_same_name or "overlap" in error.message.lower():
                    continue  # somebody else was faster
                raise CreationDenied(f"the engine makes no network for the session: {error.message}") from error
            crash_point("network.made")
            return NetworkView(session_id=session_id, network_id=network_id, addresses=addresses)
        if vxlan is not None and refusal is not None:
            raise CreationDeferred(f"the session's network cannot be {vxlan.subnet} here: {refusal.message}")
        reason = refusal.message if refusal is not None else f"all of {self._pool} is in use"
        raise CreationDenied(f"no addresses are left for the session's network: {reason}")

    async def _check_subnet(self, vxlan: Overlay) -> IPv4Network:
        """Returns the overlay's subnet. Raises CreationDeferred if the subnet is in use on this node."""
        subnet = IPv4Network(vxlan.subnet)
        for taken_subnet in await self._taken_subnets():
            if subnet.overlaps(taken_subnet):
                raise CreationDeferred(f"the session's network cannot be {subnet} here: {taken_subnet} is in use")
        return subnet

    def _network_body(
        self, session_id: SessionId, subnet: IPv4Network, addresses: dict[str, str], vxlan: Overlay | None
    ) -> dict[str, Any]:
        network_name = self._network_name(session_id)
        gateway = str(subnet[1]) if vxlan is None else vxlan.gateway
        return {
            "Name": network_name,
            "CheckDuplicate": True,
            "Driver": "bridge",
            "Internal": self._is_internal,
            "EnableIPv6": False,
            "IPAM": {"Driver": "default", "Config": [{"Subnet": str(subnet), "Gateway": gateway}]},
            "Options": {
                "com.docker.network.bridge.name": _bridge_name(network_name),
                **({} if vxlan is None else {"com.docker.network.driver.mtu": str(vxlan.mtu)}),
            },
            "Labels": {
                INSTANCE_LABEL: self._state.instance,
                SESSION_LABEL: str(session_id),
                ADDRESSES_LABEL: json.dumps(addresses),
                **({} if vxlan is None else {VNI_LABEL: str(vxlan.vni)}),
            },
        }

    async def _free_subnets(self, session_id: SessionId, host_count: int) -> list[IPv4Network]:
        """Returns free subnets in random order, which overlap no network of the engine and no route of the host."""
        taken_subnets = await self._taken_subnets()
        prefix_length = prefix_for(host_count)
        if prefix_length < self._pool.prefixlen:
            raise CreationDenied(f"{self._pool} has no room for a network of {host_count} kernels")
        free_subnets: list[IPv4Network] = []
        for subnet in _rotated_subnets(self._pool, prefix_length, int(session_id.hex[:8], 16)):
            if not any(subnet.overlaps(taken_subnet) for taken_subnet in taken_subnets):
                free_subnets.append(subnet)
                if len(free_subnets) == _MAX_SUBNET_TRIES:
                    break
        return free_subnets

    async def _taken_subnets(self) -> list[IPv4Network]:
        taken_subnets = await asyncio.to_thread(busy_networks)
        for network in await self._engine.networks():
            for address_config in (network.get("IPAM") or {}).get("Config") or ():
                if "." in str(address_config.get("Subnet")):
                    taken_subnets.append(IPv4Network(address_config["Subnet"], strict=False))
        return taken_subnets

    async def remove(self, session_id: SessionId) -> None:
        """Removes the network of a session. Raises OSError or an error of the engine."""
        if os.geteuid() == 0:
            await asyncio.to_thread(self._remove_overlay_device, session_id)
        for network in await self._find_networks(session_id):
            await self._remove_network(network)

    def _remove_overlay_device(self, session_id: SessionId) -> None:
        with RouteSocket() as route:
            route.remove(self._overlay_device(session_id))

    async def _remove_network(self, network: Container) -> None:
        network_id = str(network["Id"])
        description = await self._engine.network(network_id)
        for container_id in (description or {}).get("Containers") or {}:
            await self._engine.disconnect(network_id, container_id)
        crash_point("network.emptied")
        await self._engine.remove_network(network_id)
        crash_point("network.removed")

    async def sessions(self) -> Sequence[SessionId]:
        network_labels = [f"{INSTANCE_LABEL}={self._state.instance}", SESSION_LABEL]
        sessions: list[SessionId] = []
        if os.geteuid() == 0:
            with suppress(OSError):  # no devices to other nodes; their bridges may have been removed with the engine
                session_by_device = await asyncio.to_thread(overlay.marked_devices, self._device_mark)
                sessions += [SessionId(UUID(session_text)) for session_text in session_by_device.values()]
        for network in await self._engine.networks(network_labels):
            try:
                sessions.append(SessionId(UUID(network["Labels"][SESSION_LABEL])))
            except ValueError:
                log.warning("the network %s names no session and is removed", network["Name"])
                await self._remove_network(network)
        return tuple(dict.fromkeys(sessions))


def _bridge_name(network_name: str) -> str:
    """Returns the name of a network's bridge on the host."""
    return _BRIDGE_PREFIX + sha256(network_name.encode()).hexdigest()[:10]


def _rotated_subnets(pool: IPv4Network, prefix_length: int, first_number: int) -> Iterator[IPv4Network]:
    """Yields every subnet of the given prefix length in the pool once, from subnet ``first_number`` on.

    After the last subnet of the pool the first ones follow.
    """
    subnet_count = 1 << (prefix_length - pool.prefixlen)
    subnet_size = 1 << (32 - prefix_length)
    for subnet_step in range(subnet_count):
        subnet_number = (first_number + subnet_step) % subnet_count
        yield IPv4Network((int(pool.network_address) + subnet_number * subnet_size, prefix_length))


def _network_view(network: Container, session_id: SessionId) -> NetworkView:
    addresses = json.loads((network.get("Labels") or {}).get(ADDRESSES_LABEL) or "{}")
    return NetworkView(session_id=session_id, network_id=str(network["Id"]), addresses=dict(addresses))
