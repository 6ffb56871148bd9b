"""Creates the private network of a cluster session with its first kernel on this node and removes it with the last.

The connection to another node is secured, and encrypted if a network requires it, before its device is created and
until
it is removed. The holders of a network are computed from the kernels' records alone, so that they survive a crash.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from weakref import WeakValueDictionary

from ai.backend.agent.kernels.model import KernelRecord
from ai.backend.common.errors import CreationDenied, WorkloadError
from ai.backend.common.ids import SessionId
from ai.backend.common.states import ClusterMode
from ai.backend.common.wire.agent import OverlayInfo
from ai.backend.node.linux.ipsec import SecuredLine
from ai.backend.plugin.runtime import AbstractRuntime, NetworkView, Overlay

log = logging.getLogger(__name__)


def needs_network(record: KernelRecord) -> bool:
    """Returns True if a kernel needs the private network of its session: the session has several kernels.

    A session over several nodes also needs the parameters of its network.
    """
    cluster = record.spec.cluster
    return cluster.size > 1 and (cluster.mode is ClusterMode.SINGLE_NODE or cluster.overlay is not None)


def overlay_of(info: OverlayInfo) -> Overlay:
    return Overlay(
        vni=info.vni,
        subnet=info.subnet,
        addresses=info.addresses,
        gateway=info.gateway,
        mtu=info.mtu,
        local=(info.local.address, info.local.port),
        peers={host: (info.peers[index].address, info.peers[index].port) for host, index in info.places.items()},
    )


def secured_lines(info: OverlayInfo) -> frozenset[SecuredLine]:
    """Returns the connections of a network to be secured: one to each peer node. They are encrypted if they have keys.

    Without peers it is one to the node itself, so that no other node can send to it.
    """
    local_address = info.local.address, info.local.port
    return frozenset(
        SecuredLine(local=local_address, peer=(peer.address, peer.port), key_out=peer.key_out, key_in=peer.key_in)
        for peer in info.peers.values() or [info.local]
    )


class Networks:
    """Counts the holders of each network, and creates, secures and removes networks accordingly.

    ``secure`` secures exactly these connections to other nodes, and encrypts those with keys. It blocks and raises
    OSError.
    """

    def __init__(
        self, runtime: AbstractRuntime, secure: Callable[[Collection[SecuredLine]], None] | None = None
    ) -> None:
        self._runtime = runtime
        self._apply = secure
        self._lines: dict[SessionId, frozenset[SecuredLine]] = {}
        self._secured: frozenset[SecuredLine] | None = None
        """None until they are applied: the kernel's present state is then unknown."""
        self._securing = asyncio.Lock()
        self._holders: dict[SessionId, set[str]] = {}
        self._locks: WeakValueDictionary[SessionId, asyncio.Lock] = WeakValueDictionary()

    def _lock(self, session_id: SessionId) -> asyncio.Lock:
        return self._locks.setdefault(session_id, asyncio.Lock())

    def hold(self, record: KernelRecord) -> None:
        """Counts a kernel as a holder of its network until :meth:`leave`."""
        if needs_network(record):
            self._holders.setdefault(record.session_id, set()).add(record.spec.kernel_id)
            overlay = record.spec.cluster.overlay
            if overlay is not None:
                self._lines[record.session_id] = secured_lines(overlay)

    async def _secure(self) -> None:
        """Applies the encryption and filter rules of exactly the present connections. Raises OSError if that fails and
        a connection is or was encrypted.
        """
        async with self._securing:
            lines = frozenset[SecuredLine]().union(*self._lines.values())
            if self._apply is None or lines == self._secured:
                return
            try:
                await asyncio.to_thread(self._apply, lines)
            except OSError as e:
                if any(line.is_encrypted for line in lines.union(self._secured or ())):
                    raise
                reason = e.strerror or e
                if lines:
                    log.warning(
                        "other hosts that know the numbers of sessions' networks can send into them: %s", reason
                    )
                else:
                    log.debug("nothing was ever encrypted here: %s", reason)
            self._secured = lines

    async def join(self, record: KernelRecord) -> NetworkView | None:
        """Returns the network of a kernel, and creates it for the session's first kernel; None for a single kernel.

        Raises CreationDenied if this node does not support it, WorkloadError or Unavailable if it failed for now.
        """
        if not needs_network(record):
            return None
        async with self._lock(record.session_id):
            self.hold(record)
            cluster_spec = record.spec.cluster
            if cluster_spec.overlay is None:
                return await self._runtime.create_network(record.session_id, cluster_spec.hosts)
            await self._join_secured(record.session_id)
            return await self._runtime.create_network(
                record.session_id, cluster_spec.hosts, overlay_of(cluster_spec.overlay)
            )

    async def _join_secured(self, session_id: SessionId) -> None:
        is_encrypted = any(line.is_encrypted for line in self._lines[session_id])
        if self._apply is None and is_encrypted:
            raise CreationDenied("this agent encrypts no networks")
        self._secured = None  # the state of the Linux kernel may have been changed by others
        try:
            await self._secure()
        except OSError as e:
            if is_encrypted:
                raise WorkloadError(f"the session's network cannot be encrypted: {e.strerror or e}") from e
            log.warning("the network of session %s is not guarded: %s", session_id, e.strerror or e)

    async def broken(self) -> frozenset[SessionId]:
        """Returns the sessions whose network on this node was removed outside of the agent."""
        if not self._holders:
            return frozenset()
        return frozenset(await self._runtime.broken_networks()) & self._holders.keys()

    async def leave(self, record: KernelRecord) -> None:
        """Removes a kernel as a holder, and the network with the last holder. Idempotent; raises runtime errors."""
        if not needs_network(record):
            return
        async with self._lock(record.session_id):
            holder_ids = self._holders.get(record.session_id, set())
            if not holder_ids - {record.spec.kernel_id}:
                await self._runtime.remove_network(record.session_id)
                self._lines.pop(record.session_id, None)
                await self._secure()
                self._holders.pop(record.session_id, None)
            else:
                holder_ids.discard(record.spec.kernel_id)

    async def sweep(self) -> None:
        """Removes networks that no kernel holds, and the encryption keys of connections that no network needs."""
        for session_id in await self._runtime.list_networks():
            async with self._lock(session_id):
                if self._holders.get(session_id):
                    continue
                log.warning("the network of session %s belongs to no kernel of this agent and is removed", session_id)
                await self._runtime.remove_network(session_id)
        await self._secure()
