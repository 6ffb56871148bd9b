"""Implements a runtime in memory that passes :class:`~ai.backend.plugin.testing.runtime.contract.RuntimeContract`.

A :class:`FakeNode` outlives the agent (workloads, homes): a restart of the agent is a second FakeRuntime on the same
node. :class:`FakeBehaviour` scripts bad neighbours: slow, refusing, never ready, dying, ignoring the polite signal.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from ai.backend.common.errors import BackendError, Conflict, CreationDenied, Unavailable
from ai.backend.common.ids import KernelId, SessionId
from ai.backend.common.states import Enforcement
from ai.backend.plugin.accelerator import Measurement, MetricKind
from ai.backend.plugin.runtime import (
    AbstractRuntime,
    NetworkView,
    Overlay,
    RunnerChannel,
    RuntimeImage,
    RuntimeInfo,
    WorkloadExit,
    WorkloadExited,
    WorkloadKey,
    WorkloadSpec,
    WorkloadState,
    WorkloadView,
)
from ai.backend.plugin.testing.runtime.fake_runner import FakeRunner

FAKE_IMAGE = "fake/python:3"


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeBehaviour:
    """Settings of one fake workload's behaviour.

    Attributes:
        create_error: raised by ``create``, which then leaves nothing.
        is_ready: whether the runner ever says ``ready``.
        dies_after_s: it exits by itself so long after the start, with ``dies_with``.
        stubborn: it ignores the polite signal, so that ``stop`` takes its whole grace.
    """

    create_delay_s: float = 0.0
    create_error: BackendError | None = None
    is_ready: bool = True
    dies_after_s: float | None = None
    dies_with: WorkloadExit = WorkloadExit(code=1, reason="died")  # noqa: RUF009  # frozen
    stubborn: bool = False


@dataclass(slots=True)
class _Workload:
    """Holds the state of one workload of the fake runtime, with its runner and its stored frames.

    Frames are stored until they are acknowledged, as by a shim, but without a limit of their memory.
    """

    spec: WorkloadSpec
    workload_id: str
    behaviour: FakeBehaviour
    exit: WorkloadExit | None = None
    epoch: int = 0
    next_seq: int = 1
    buffer: list[dict[str, Any]] = field(default_factory=list)
    log: bytearray = field(default_factory=bytearray)
    channel: FakeChannel | None = None
    runner: FakeRunner | None = None
    timer: asyncio.TimerHandle | None = None
    exited: asyncio.Event = field(default_factory=asyncio.Event)

    def emit(self, message: dict[str, Any]) -> None:
        numbered_message = {**message, "seq": self.next_seq}
        self.next_seq += 1
        self.buffer.append(numbered_message)
        if self.channel is not None:
            self.channel.deliver(numbered_message)

    def view(self) -> WorkloadView:
        return WorkloadView(
            key=self.spec.key,
            session_id=self.spec.session_id,
            state=WorkloadState.RUNNING if self.exit is None else WorkloadState.EXITED,
            workload_id=self.workload_id,
            exit=self.exit,
            labels=dict(self.spec.labels),
        )


class FakeNode:
    """Holds the workloads and networks of a fake node, which survive a restart of the agent.

    ``creating`` are the names that the node gives to one creation at a time, as an engine or a file system does: a
    creation that an agent began before it died goes on, and the same one of the next agent waits for it.
    """

    def __init__(self) -> None:
        self.workloads: dict[WorkloadKey, _Workload] = {}
        self.homes: dict[KernelId, dict[str, bytes]] = {}
        self.networks: dict[SessionId, NetworkView] = {}
        self.listeners: list[asyncio.Queue[WorkloadExited | None]] = []
        self.creating: dict[WorkloadKey, asyncio.Lock] = {}
        self.next_pid = 1000

    def end(self, workload: _Workload, workload_exit: WorkloadExit) -> None:
        """Ends a workload. If it is ended several times, the first reason counts."""
        if workload.exit is not None:
            return
        workload.exit = workload_exit
        if workload.timer is not None:
            workload.timer.cancel()
        if workload.runner is not None:
            workload.runner.stop()
        workload.emit(
            {"t": "exited", "code": workload_exit.code, "signal": workload_exit.signal, "reason": workload_exit.reason}
        )
        workload.exited.set()
        for event_queue in self.listeners:
            event_queue.put_nowait(WorkloadExited(key=workload.spec.key, exit=workload_exit))


class FakeChannel(RunnerChannel):
    """Connects to the fake runner of a workload in memory."""

    def __init__(self, workload: _Workload, last_seq: int) -> None:
        self._workload = workload
        self._queue: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        self._closed = False
        for message in workload.buffer:
            if message["seq"] > last_seq:
                self.deliver(message)

    def deliver(self, message: dict[str, Any]) -> None:
        self._queue.put_nowait(message)

    def end(self) -> None:
        """Ends the channel after it was closed or replaced by another channel."""
        if not self._closed:
            self._closed = True
            self._queue.put_nowait(None)

    async def send(self, frame: Mapping[str, Any]) -> None:
        if self._closed or self._workload.exit is not None or self._workload.runner is None:
            raise Unavailable("the channel is closed")
        self._workload.runner.handle(frame)

    async def recv(self) -> AsyncIterator[dict[str, Any]]:
        while (message := await self._queue.get()) is not None:
            yield message
            if message["t"] == "exited":
                return

    async def ack(self, seq: int) -> None:
        self._workload.buffer = [message for message in self._workload.buffer if message["seq"] > seq]

    async def close(self) -> None:
        if self._workload.channel is self:
            self._workload.channel = None
        self.end()


class FakeRuntime(AbstractRuntime):
    """Implements the runtime SPI in memory."""

    name: ClassVar[str] = "fake"

    def __init__(
        self,
        node: FakeNode | None = None,
        *,
        behave: Callable[[WorkloadSpec], FakeBehaviour] | FakeBehaviour = FakeBehaviour(),
        images: Sequence[str] = (FAKE_IMAGE,),
    ) -> None:
        self.node = node or FakeNode()
        self._behave = behave
        self._images = tuple(images)
        self._events: asyncio.Queue[WorkloadExited | None] = asyncio.Queue()

    async def setup(self) -> None:
        self.node.listeners.append(self._events)

    async def shutdown(self) -> None:
        if self._events in self.node.listeners:
            self.node.listeners.remove(self._events)
            self._events.put_nowait(None)

    def info(self) -> RuntimeInfo:
        return RuntimeInfo(
            name=self.name,
            version="1",
            workload_type="process_tree",
            tier="fake",
            enforcement={"cpu": Enforcement.NONE, "memory": Enforcement.NONE},
            capabilities=frozenset({"keep-home", "session-networks"}),
        )

    async def list_images(self) -> Sequence[RuntimeImage]:
        return [RuntimeImage(name=name, architecture="x86_64", aliases=("python",)) for name in self._images]

    async def create(self, spec: WorkloadSpec) -> WorkloadView:
        async with self.node.creating.setdefault(spec.key, asyncio.Lock()):
            existing_workload = self.node.workloads.get(spec.key)
            return existing_workload.view() if existing_workload is not None else await self._create(spec)

    async def _create(self, spec: WorkloadSpec) -> WorkloadView:
        behaviour = self._behave if isinstance(self._behave, FakeBehaviour) else self._behave(spec)
        if spec.image not in self._images:
            raise CreationDenied(f"There is no image {spec.image} here.", data={"image": spec.image})
        await asyncio.sleep(behaviour.create_delay_s)
        if behaviour.create_error is not None:
            raise behaviour.create_error
        self.node.next_pid += 1
        workload = _Workload(spec=spec, workload_id=str(self.node.next_pid), behaviour=behaviour)
        home = self.node.homes.setdefault(spec.key.kernel_id, {})
        if not spec.keep_home:
            home.clear()
        home.update(spec.files)
        workload.runner = FakeRunner(
            emit=workload.emit,
            log=lambda text: workload.log.extend(text.encode()),
            end=lambda code: self.node.end(workload, WorkloadExit(code=code, reason="shutdown")),
            environ=dict(spec.environ),
            files=home,
        )
        self.node.workloads[spec.key] = workload
        if behaviour.is_ready:
            workload.runner.start()
        if behaviour.dies_after_s is not None:
            loop = asyncio.get_running_loop()
            workload.timer = loop.call_later(behaviour.dies_after_s, self.node.end, workload, behaviour.dies_with)
        return workload.view()

    async def create_network(
        self, session_id: SessionId, hosts: Sequence[str], overlay: Overlay | None = None
    ) -> NetworkView:
        if overlay is not None:
            return await super().create_network(session_id, hosts, overlay)
        addresses = {host: f"10.213.0.{host_number}" for host_number, host in enumerate(hosts, 2)}
        view = NetworkView(session_id=session_id, network_id=f"fake-{session_id}", addresses=addresses)
        return self.node.networks.setdefault(session_id, view)

    async def remove_network(self, session_id: SessionId) -> None:
        self.node.networks.pop(session_id, None)

    async def list_networks(self) -> Sequence[SessionId]:
        return tuple(self.node.networks)

    async def stop(self, key: WorkloadKey, *, grace_s: float) -> WorkloadExit | None:
        workload = self.node.workloads.get(key)
        if workload is None:
            return None
        if workload.exit is None and workload.behaviour.stubborn:
            try:
                await asyncio.wait_for(workload.exited.wait(), grace_s)
            except TimeoutError:
                self.node.end(workload, WorkloadExit(signal=9, reason="killed"))
        self.node.end(workload, WorkloadExit(signal=15, reason="stopped"))
        return workload.exit

    async def remove(self, key: WorkloadKey, *, keep_home: bool = False) -> None:
        workload = self.node.workloads.pop(key, None)
        if workload is not None:
            self.node.end(workload, WorkloadExit(signal=9, reason="removed"))
        if not keep_home and not any(other_key.kernel_id == key.kernel_id for other_key in self.node.workloads):
            self.node.homes.pop(key.kernel_id, None)

    async def inspect(self, key: WorkloadKey) -> WorkloadView | None:
        workload = self.node.workloads.get(key)
        return workload.view() if workload is not None else None

    async def list_workloads(self) -> Sequence[WorkloadView]:
        return [workload.view() for workload in self.node.workloads.values()]

    async def open_channel(self, key: WorkloadKey, *, epoch: int, last_seq: int = 0) -> RunnerChannel:
        workload = self.node.workloads.get(key)
        if workload is None:
            raise Unavailable(f"There is no workload {key}.")
        if epoch < workload.epoch:
            raise Conflict(f"A newer agent (epoch {workload.epoch}) drives {key}.")
        workload.epoch = epoch
        if workload.channel is not None:
            workload.channel.end()
        workload.channel = FakeChannel(workload, last_seq)
        return workload.channel

    async def events(self) -> AsyncIterator[WorkloadExited]:
        while (event := await self._events.get()) is not None:
            yield event

    async def read_logs(self, key: WorkloadKey, *, max_bytes: int) -> bytes:
        workload = self.node.workloads.get(key)
        return bytes(workload.log[-max_bytes:]) if workload is not None and max_bytes > 0 else b""

    async def measure(self, keys: Sequence[WorkloadKey]) -> Mapping[WorkloadKey, Sequence[Measurement]]:
        live_keys = [
            key for key in keys if (workload := self.node.workloads.get(key)) is not None and workload.exit is None
        ]
        cpu_used = Measurement(key="cpu_used", value=1.0, unit_hint="msec", kind=MetricKind.ACCUMULATED)
        return {key: (cpu_used, Measurement(key="mem", value=4096.0, unit_hint="bytes")) for key in live_keys}

    async def pids(self, key: WorkloadKey) -> tuple[int, ...]:
        workload = self.node.workloads.get(key)
        return (int(workload.workload_id),) if workload is not None and workload.exit is None else ()
