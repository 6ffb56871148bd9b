"""Keeps the workers that are linked to this coordinator up to date with their circuits.

The database is the truth. A link sends what differs from what it has sent before; all coordinators compare the versions
of workers twice a second, so that one learns of what another one wrote.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from uuid import UUID

import msgspec

from ai.backend.appproxy.coordinator.circuits.model import Delivery
from ai.backend.appproxy.coordinator.circuits.store import CircuitStore
from ai.backend.appproxy.coordinator.workers.service import WorkerService
from ai.backend.common.appproxy_errors import FrontendTimeout, NoSuchObject, RouteNotDelivered, WorkerSilent
from ai.backend.common.errors import InvalidInput
from ai.backend.common.wire.appproxy import Ack, Change, Counted, EndpointLoads, State, ToCoordinator, ToWorker
from ai.backend.infra.bus import Signal
from ai.backend.infra.clock import Clock
from ai.backend.infra.loop import PeriodicLoop, cancel_all

POLL_S = 0.5
_FIRST_PAUSE_S = 0.05
Send = Callable[[ToWorker], Awaitable[None]]
_decode = msgspec.json.Decoder(ToCoordinator).decode


@dataclass(eq=False, slots=True)
class Link:
    """Represents the link of one worker node, with the version and the circuits that were sent to the node."""

    worker_id: UUID
    node: str
    send: Send
    version: int = -1
    sent: set[UUID] = field(default_factory=set)
    signal: Signal = field(default_factory=Signal)


class Links(PeriodicLoop):
    """Holds the links of worker nodes to this coordinator. Periodically wakes each link that lacks changes of circuits.

    A link lacks changes if its worker has another version.
    """

    period_s = POLL_S

    def __init__(self, store: CircuitStore, workers: WorkerService, clock: Clock, *, timeout_s: float) -> None:
        self._store = store
        self._workers = workers
        self._clock = clock
        self._timeout_s = timeout_s
        self._links: set[Link] = set()
        self._acked = asyncio.Event()
        self._reported = asyncio.Event()
        self._latest: dict[UUID, int] = {}

    @property
    def count(self) -> int:
        return len(self._links)

    async def once(self) -> None:
        if self._links:
            versions = await self._store.versions()
            for link in self._links:
                if versions.get(link.worker_id) != link.version:
                    link.signal.set()

    async def serve(self, worker_id: UUID, node: str, send: Send, frames: AsyncIterator[str]) -> None:
        """Serves a worker link until its frames end.

        Raises NoSuchObject without the worker; InvalidInput for a bad frame.
        """
        await self._workers.touch(worker_id, node)
        await self._store.link(worker_id, node, is_linked=True, now=self._clock.now())
        link = Link(worker_id, node, send)
        self._links.add(link)
        send_task = asyncio.ensure_future(self._keep_sending(link))
        receive_task = asyncio.ensure_future(self._receive(link, frames))
        try:
            await asyncio.wait((send_task, receive_task), return_when=asyncio.FIRST_COMPLETED)
            for task in (send_task, receive_task):
                if task.done():
                    task.result()
        finally:
            self._links.discard(link)
            await cancel_all(send_task, receive_task)
            if not any((other_link.worker_id, other_link.node) == (worker_id, node) for other_link in self._links):
                await self._store.link(worker_id, node, is_linked=False, now=self._clock.now())

    async def wait_delivered(self, circuit_id: UUID) -> None:
        """Waits until the linked nodes of a circuit's worker serve the circuit.

        Raises WorkerSilent: no node is alive. RouteNotDelivered: none has acknowledged it in time. FrontendTimeout:
        a node cannot serve it; the message has the reason.
        """
        self.wake()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._timeout_s
        pause_s = _FIRST_PAUSE_S
        while True:
            delivery = await self._store.delivery(circuit_id, self._workers.alive_since())
            if delivery is None:
                raise NoSuchObject("circuit")
            if delivery.failure is not None:
                raise FrontendTimeout(f"{FrontendTimeout.title}: {delivery.failure}")
            is_served_by_node = [version >= delivery.version for version in delivery.acked]
            if is_served_by_node and all(is_served_by_node):
                return
            remaining_s = deadline - loop.time()
            if remaining_s <= 0:
                if any(is_served_by_node):
                    return
                raise RouteNotDelivered if delivery.nodes else WorkerSilent
            await self._pause(delivery, min(pause_s, remaining_s))
            pause_s = min(2 * pause_s, POLL_S)

    async def loads(self, since: int | None, wait_s: float) -> EndpointLoads:
        """Returns the loads of endpoints.

        If their version is still ``since``, waits for another version or until the time is over. Reports to other
        coordinators are seen half a second later.
        """
        deadline = asyncio.get_running_loop().time() + wait_s
        while True:
            report_event = self._reported
            loads = await self._store.loads(self._workers.alive_since())
            remaining_s = deadline - asyncio.get_running_loop().time()
            if since is None or loads.version != since or remaining_s <= 0:
                return loads
            with suppress(TimeoutError):
                async with asyncio.timeout(min(remaining_s, POLL_S)):
                    await report_event.wait()

    async def _pause(self, delivery: Delivery, pause_s: float) -> None:
        """Waits until a node linked to this coordinator acknowledges the delivery's version, at most ``pause_s``.

        If one has acknowledged it already, waits for the whole ``pause_s``. Acknowledgements at other coordinators
        appear in the database within ``pause_s``.
        """
        if self._latest.get(delivery.worker_id, -1) >= delivery.version:
            await asyncio.sleep(pause_s)
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                while self._latest.get(delivery.worker_id, -1) < delivery.version:
                    await self._acked.wait()

    async def _keep_sending(self, link: Link) -> None:
        while True:
            await self._send_changes(link)
            await link.signal.wait(None)

    async def _send_changes(self, link: Link) -> None:
        version, circuit_ids, changed_circuits = await self._store.changes(link.worker_id, link.version)
        if version == link.version:
            return
        frame: ToWorker = State(version=version, circuits=list(changed_circuits))
        if link.version >= 0:
            frame = Change(version=version, set=list(changed_circuits), removed=list(link.sent.difference(circuit_ids)))
        link.version, link.sent = version, {*circuit_ids, *(circuit.id for circuit in changed_circuits)}
        await link.send(frame)

    async def _receive(self, link: Link, frames: AsyncIterator[str]) -> None:
        async for frame_text in frames:
            try:
                frame = _decode(frame_text)
            except msgspec.MsgspecError as e:
                raise InvalidInput(f"A frame of the link is malformed: {e}") from None
            if isinstance(frame, Ack):
                await self._store.acknowledge(link.worker_id, link.node, frame)
                self._latest[link.worker_id] = max(frame.version, self._latest.get(link.worker_id, -1))
                self._acked.set()
                self._acked = asyncio.Event()
            else:
                has_waiting_requests = any(circuit_usage.waits for circuit_usage in frame.circuits)
                sequence = await self._store.count(link.worker_id, link.node, frame, self._clock.now())
                if has_waiting_requests:
                    self._reported.set()
                    self._reported = asyncio.Event()
                await link.send(Counted(sequence=sequence))
