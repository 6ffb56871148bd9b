"""The private networks of cluster sessions: there while a kernel of the session is here, and gone with the last.

Those over several nodes are as the manager has settled them; what it told is kept in the kernels' records. The line to
a node is guarded, and encrypted if a network wants it, from before its device is there until after it is gone.

Who holds a network is known from the kernels' records alone, so that an agent that was killed at any step knows it
again. One operation at a time works on the network of a session.
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
    """Whether the kernel is one of several: on this node, or on several where the manager gave them a network."""
    cluster = record.spec.cluster
    return cluster.size > 1 and (cluster.mode is ClusterMode.SINGLE_NODE or cluster.overlay is not None)


def overlay_of(told: OverlayInfo) -> Overlay:
    """What the runtime needs to know of it."""
    return Overlay(
        vni=told.vni,
        subnet=told.subnet,
        addresses=told.addresses,
        gateway=told.gateway,
        mtu=told.mtu,
        local=(told.local.address, told.local.port),
        peers={host: (told.peers[place].address, told.peers[place].port) for host, place in told.places.items()},
    )


def secured_lines(told: OverlayInfo) -> frozenset[SecuredLine]:
    """Those to its peers, with the keys that it was given; without peers one to itself, so that nobody sends to it."""
    here = told.local.address, told.local.port
    return frozenset(
        SecuredLine(local=here, peer=(peer.address, peer.port), key_out=peer.key_out, key_in=peer.key_in)
        for peer in told.peers.values() or [told.local]
    )


class Networks:
    """See the module.

    Args:
        runtime: makes the networks.
        secure: guards these lines to other nodes, and no other ones any more; encrypts those with keys. Blocks;
            raises OSError.
    """

    def __init__(
        self, runtime: AbstractRuntime, secure: Callable[[Collection[SecuredLine]], None] | None = None
    ) -> None:
        self._runtime = runtime
        self._tell = secure
        self._lines: dict[SessionId, frozenset[SecuredLine]] = {}
        self._secured: frozenset[SecuredLine] | None = None
        """None: whatever an earlier life of the agent has left."""
        self._securing = asyncio.Lock()
        self._holders: dict[SessionId, set[str]] = {}
        self._locks: WeakValueDictionary[SessionId, asyncio.Lock] = WeakValueDictionary()

    def _lock(self, session_id: SessionId) -> asyncio.Lock:
        return self._locks.setdefault(session_id, asyncio.Lock())

    def hold(self, record: KernelRecord) -> None:
        """A kernel of an earlier life of the agent may be in its network; its end lets go of it."""
        if needs_network(record):
            self._holders.setdefault(record.session_id, set()).add(record.spec.kernel_id)
            overlay = record.spec.cluster.overlay
            if overlay is not None:
                self._lines[record.session_id] = secured_lines(overlay)

    async def _secure(self) -> None:
        """Secure what is to be, and nothing else. What is in plain goes on without its guard where the kernel has none.

        Raises OSError if something is or was encrypted.
        """
        async with self._securing:
            wanted = frozenset[SecuredLine]().union(*self._lines.values())
            if self._tell is None or wanted == self._secured:
                return
            try:
                await asyncio.to_thread(self._tell, wanted)
            except OSError as e:
                if any(line.is_encrypted for line in wanted.union(self._secured or ())):
                    raise
                why = e.strerror or e
                if wanted:
                    log.warning("whoever knows the numbers of sessions' networks can send into them: %s", why)
                else:
                    log.debug("nothing was ever encrypted here: %s", why)
            self._secured = wanted

    async def join(self, record: KernelRecord) -> NetworkView | None:
        """The network of a kernel, made by the first of its session; None for a session of one kernel.

        Raises:
            CreationDenied: this node has no such networks. WorkloadError, Unavailable: it failed for now.
        """
        if not needs_network(record):
            return None
        async with self._lock(record.session_id):
            self.hold(record)
            cluster = record.spec.cluster
            if cluster.overlay is None:
                return await self._runtime.create_network(record.session_id, cluster.hosts)
            await self._join_secured(record.session_id)
            return await self._runtime.create_network(record.session_id, cluster.hosts, overlay_of(cluster.overlay))

    async def _join_secured(self, session_id: SessionId) -> None:
        is_encrypted = any(line.is_encrypted for line in self._lines[session_id])
        if self._tell is None and is_encrypted:
            raise CreationDenied("this agent encrypts no networks")
        self._secured = None  # somebody may have changed what the kernel was told
        try:
            await self._secure()
        except OSError as e:
            if is_encrypted:
                raise WorkloadError(f"the session's network cannot be encrypted: {e.strerror or e}") from e
            log.warning("the network of session %s is not guarded: %s", session_id, e.strerror or e)

    async def broken(self) -> frozenset[SessionId]:
        """Sessions with kernels here whose network somebody else has removed."""
        if not self._holders:
            return frozenset()
        return frozenset(await self._runtime.broken_networks()) & self._holders.keys()

    async def leave(self, record: KernelRecord) -> None:
        """A kernel is over. Idempotent; raises what the runtime raises, to be tried again."""
        if not needs_network(record):
            return
        async with self._lock(record.session_id):
            held = self._holders.get(record.session_id, set())
            if not held - {record.spec.kernel_id}:
                await self._runtime.remove_network(record.session_id)
                self._lines.pop(record.session_id, None)
                await self._secure()
                self._holders.pop(record.session_id, None)
            else:
                held.discard(record.spec.kernel_id)

    async def sweep(self) -> None:
        """Remove networks that no kernel of ours is in, and guards that no network needs."""
        for session_id in await self._runtime.list_networks():
            async with self._lock(session_id):
                if self._holders.get(session_id):
                    continue
                log.warning("the network of session %s belongs to no kernel of this agent and is removed", session_id)
                await self._runtime.remove_network(session_id)
        await self._secure()
