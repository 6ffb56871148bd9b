"""A runtime, plugins and a manager that live in memory, for tests of the agent.

The runtime keeps its workloads when the agent goes, as a real one does: hand the same object to the next agent.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
from collections.abc import AsyncIterator, Mapping, Sequence
from decimal import Decimal
from typing import Any, ClassVar

from ai.backend.common.devices import (
    AllocMapSpec,
    ComputeDevice,
    DeviceAllocation,
    DeviceHealth,
    DeviceSlot,
    SlotDisplay,
)
from ai.backend.common.errors import Conflict, Unavailable
from ai.backend.common.ids import DeviceId, DeviceName, KernelId, SessionId, SlotName
from ai.backend.common.states import Enforcement, SlotType
from ai.backend.common.wire.reports import (
    AgentReport,
    BeatReply,
    BeatReport,
    HeartbeatReply,
    KeptDevices,
    KeptDevicesOf,
    KernelObservation,
    KernelPresence,
    ObservationReport,
    StatReport,
)
from ai.backend.core.allocation.stock_maps import build_alloc_map
from ai.backend.plugin.accelerator import (
    AbstractAllocMap,
    AbstractComputePlugin,
    AbstractLifecycleHook,
    AttachedDevice,
    Measurement,
    MetricKind,
    WorkloadConfig,
)
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


class FakeRunner:
    """A runner with its shim's replay buffer; code is lines: ``out X``, ``err X``, ``wait``, ``input``, ``exit N``."""

    def __init__(self) -> None:
        self.buffer: list[dict[str, Any]] = []
        self.seq = 0
        self.channel: FakeChannel | None = None
        self.epoch = 0
        self.release = asyncio.Event()
        self.inputs: asyncio.Queue[str] = asyncio.Queue()
        self.received: list[Mapping[str, Any]] = []
        self.busy: asyncio.Task[None] | None = None
        self.files: dict[str, bytes] = {}
        self.acked = 0
        self.deaf = False

    def emit(self, **frame: Any) -> None:
        self.seq += 1
        frame["seq"] = self.seq
        self.buffer.append(frame)
        if self.channel is not None:
            self.channel.queue.put_nowait(frame)

    def handle(self, frame: Mapping[str, Any]) -> None:
        self.received.append(frame)
        kind = frame["t"]
        if self.deaf:
            return
        if kind == "run":
            self.busy = asyncio.create_task(self._run(frame))
        elif kind == "input":
            self.inputs.put_nowait(frame["text"])
        elif kind == "cancel" and self.busy is not None:
            self.busy.cancel()
            self.emit(t="finished", id=frame["id"], exitCode=137, reason=f"cancelled:{frame['reason']}", files=[])
        elif kind == "file-write":
            self.files[frame["path"]] = self.files.get(frame["path"], b"") + base64.b64decode(frame["data"])
            self.emit(t="reply", req=frame["req"], ok=True, data={})
        elif kind == "file-read":
            self._read_files(frame)
        elif kind == "complete":
            self.emit(t="reply", req=frame["req"], ok=True, data={"matches": [frame["code"] + "!"]})
        elif kind == "pty-input":
            self.emit(t="pty-output", pty=frame["pty"], data=frame["data"])
        elif "req" in frame:
            self.emit(t="reply", req=frame["req"], ok=True, data={})

    def _read_files(self, frame: Mapping[str, Any]) -> None:
        for index, path in enumerate(frame["paths"]):
            if path not in self.files:
                error = {"type": "not-found", "message": f"no such file: {path}"}
                self.emit(t="reply", req=frame["req"], ok=False, error=error)
                return
            data = base64.b64encode(self.files[path]).decode()
            self.emit(t="chunk", req=frame["req"], index=index, name=path, data=data, eof=True)
        self.emit(t="reply", req=frame["req"], ok=True, data={})

    async def _run(self, frame: Mapping[str, Any]) -> None:
        run_id, code = frame["id"], frame.get("code") or (frame.get("options") or {}).get("exec") or ""
        self.emit(t="started", id=run_id)
        exit_code = 0
        for line in code.splitlines():
            word, _, rest = line.partition(" ")
            if word in ("out", "err"):
                self.emit(t="console", id=run_id, items=[["std" + word, rest]])
            elif word == "wait":
                await self.release.wait()
            elif word == "input":
                self.emit(t="waiting-input", id=run_id, is_password=False)
                self.emit(t="console", id=run_id, items=[["stdout", await self.inputs.get()]])
            elif word == "exit":
                exit_code = int(rest)
        self.emit(t="finished", id=run_id, exitCode=exit_code, reason=None, files=[])


class FakeChannel(RunnerChannel):
    def __init__(self, runner: FakeRunner, last_seq: int) -> None:
        self.queue: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        self._runner = runner
        self.closed = False
        for frame in runner.buffer:
            if frame["seq"] > last_seq:
                self.queue.put_nowait(frame)

    async def send(self, frame: Mapping[str, Any]) -> None:
        if self.closed:
            raise Unavailable("closed")
        self._runner.handle(frame)

    async def recv(self) -> AsyncIterator[dict[str, Any]]:
        while True:
            frame = await self.queue.get()
            if frame is None:
                return
            yield frame
            if frame["t"] == "exited":
                return

    async def ack(self, seq: int) -> None:
        self._runner.acked = max(self._runner.acked, seq)
        self._runner.buffer = [frame for frame in self._runner.buffer if frame["seq"] > seq]

    async def close(self) -> None:
        self.closed = True
        self.queue.put_nowait(None)


class FakeRuntime(AbstractRuntime):
    name: ClassVar[str] = "fake"

    def __init__(self) -> None:
        self.specs: dict[WorkloadKey, WorkloadSpec] = {}
        self.runners: dict[WorkloadKey, FakeRunner] = {}
        self.exits: dict[WorkloadKey, WorkloadExit] = {}
        self.calls: list[tuple[str, str]] = []
        self.ready = True
        self.images = ["python"]
        self.create_error: Exception | None = None
        self.list_gate: asyncio.Event | None = None
        self.create_gate: asyncio.Event | None = None
        self.removed_keeping_home: list[WorkloadKey] = []
        self.networks: dict[SessionId, NetworkView] = {}
        self._events: asyncio.Queue[WorkloadExited] = asyncio.Queue()
        self._pids = itertools.count(1000)

    async def setup(self) -> None:
        self._events = asyncio.Queue()

    async def shutdown(self) -> None: ...

    def info(self) -> RuntimeInfo:
        return RuntimeInfo(
            name="fake",
            version="1",
            workload_type="process_tree",
            tier="none",
            enforcement={"memory": Enforcement.WATCHED},
            capabilities=frozenset({"session-networks"}),
        )

    async def create_network(
        self, session_id: SessionId, hosts: Sequence[str], overlay: Overlay | None = None
    ) -> NetworkView:
        addresses = {host: f"10.0.0.{n}" for n, host in enumerate(hosts, 1)}
        return self.networks.setdefault(
            session_id, NetworkView(session_id=session_id, network_id=f"fake-{session_id}", addresses=addresses)
        )

    async def remove_network(self, session_id: SessionId) -> None:
        self.networks.pop(session_id, None)

    async def list_networks(self) -> Sequence[SessionId]:
        return tuple(self.networks)

    async def list_images(self) -> Sequence[RuntimeImage]:
        return [RuntimeImage(name=name, architecture="x86_64") for name in self.images]

    async def create(self, spec: WorkloadSpec) -> WorkloadView:
        self.calls.append(("create", str(spec.key)))
        if self.create_gate is not None:
            await self.create_gate.wait()
        if self.create_error is not None:
            raise self.create_error
        if spec.key not in self.specs:
            self.specs[spec.key] = spec
            runner = self.runners[spec.key] = FakeRunner()
            if self.ready:
                runner.emit(t="ready", protocol=1, runtime="python", version="3", features=["query"])
        return self._view(spec.key)

    def _view(self, key: WorkloadKey) -> WorkloadView:
        ended = self.exits.get(key)
        state = WorkloadState.RUNNING if ended is None else WorkloadState.EXITED
        return WorkloadView(
            key=key, session_id=self.specs[key].session_id, state=state, workload_id="pid-1", exit=ended
        )

    def die(self, key: WorkloadKey, ended: WorkloadExit, *, quietly: bool = False) -> None:
        """End a workload from outside."""
        self.exits[key] = ended
        if not quietly:
            self.runners[key].emit(t="exited", code=ended.code, signal=ended.signal, reason=ended.reason)
            self._events.put_nowait(WorkloadExited(key=key, exit=ended))

    async def stop(self, key: WorkloadKey, *, grace_s: float) -> WorkloadExit | None:
        self.calls.append(("stop", str(key)))
        if key not in self.specs:
            return None
        return self.exits.setdefault(key, WorkloadExit(signal=15))

    async def remove(self, key: WorkloadKey, *, keep_home: bool = False) -> None:
        self.calls.append(("remove", str(key)))
        if keep_home:
            self.removed_keeping_home.append(key)
        self.specs.pop(key, None)
        runner = self.runners.pop(key, None)
        if runner is not None and runner.busy is not None:
            runner.busy.cancel()
        self.exits.pop(key, None)

    async def inspect(self, key: WorkloadKey) -> WorkloadView | None:
        return self._view(key) if key in self.specs else None

    async def list_workloads(self) -> Sequence[WorkloadView]:
        """What is there now, told once ``list_gate`` opens."""
        views = [self._view(key) for key in self.specs]
        if self.list_gate is not None:
            await self.list_gate.wait()
        return views

    async def open_channel(self, key: WorkloadKey, *, epoch: int, last_seq: int = 0) -> RunnerChannel:
        runner = self.runners.get(key)
        if runner is None or key in self.exits:
            raise Unavailable("no live runner")
        if epoch < runner.epoch:
            raise Conflict("a newer epoch drives it")
        if runner.channel is not None:
            await runner.channel.close()
        runner.epoch = epoch
        runner.channel = FakeChannel(runner, last_seq)
        return runner.channel

    async def events(self) -> AsyncIterator[WorkloadExited]:
        while True:
            yield await self._events.get()

    async def read_logs(self, key: WorkloadKey, *, max_bytes: int) -> bytes:
        return b"log"[:max_bytes]

    async def measure(self, keys: Sequence[WorkloadKey]) -> Mapping[WorkloadKey, Sequence[Measurement]]:
        metric = Measurement(key="mem", value=50.0, unit_hint="bytes", capacity=200.0, stats=frozenset({"max"}))
        used = Measurement(key="cpu_used", value=1.0, unit_hint="msec", kind=MetricKind.ACCUMULATED)
        return {key: [metric, used] for key in keys if key in self.specs}

    async def pids(self, key: WorkloadKey) -> tuple[int, ...]:
        return (next(self._pids),)


class FakePlugin(AbstractComputePlugin):
    """Four units of ``cpu`` on two devices. ``journal`` and the faults are of the class: subclass for each test."""

    key: ClassVar[DeviceName] = DeviceName("cpu")
    version = "1.0"
    journal: ClassVar[list[str]] = []
    hook_errors: ClassVar[dict[str, Exception]] = {}
    config: ClassVar[WorkloadConfig] = WorkloadConfig(env_vars={"FAKE": "1"}, resource_data={"FAKE_DATA": "x"})
    unhealthy: ClassVar[set[str]] = set()

    async def list_devices(self) -> Sequence[ComputeDevice]:
        return [
            ComputeDevice(
                device_name=self.key,
                device_id=DeviceId(str(i)),
                hw_location="root",
                slots=(DeviceSlot(slot_name=SlotName(self.key), slot_type=SlotType.COUNT, amount=Decimal(2)),),
                health=DeviceHealth.UNHEALTHY if str(i) in self.unhealthy else DeviceHealth.HEALTHY,
            )
            for i in range(2)
        ]

    async def configurable_slots(self) -> Sequence[SlotDisplay]:
        return [SlotDisplay(slot_name=SlotName(self.key), slot_type=SlotType.COUNT)]

    async def available_slots(self) -> Mapping[SlotName, Any]:
        return {SlotName(self.key): Decimal(4 - 2 * len(self.unhealthy))}

    def alloc_map_spec(self) -> AllocMapSpec | None:
        return AllocMapSpec(kind="discrete")

    async def create_alloc_map(self) -> AbstractAllocMap:
        return build_alloc_map(AllocMapSpec(kind="discrete"), await self.list_devices())

    async def alloc_to_devices(self, device_alloc: DeviceAllocation) -> Sequence[AttachedDevice]:
        return [AttachedDevice(device_id=d, model_name="Fake") for d in sorted(device_alloc.device_ids())]

    def create_lifecycle_hook(self, workload: Any, device_alloc: Any, context: Any) -> AbstractLifecycleHook:
        return FakeHook(type(self), workload, device_alloc, context)

    async def gather_workload_metrics(
        self, ctx: Any, kernels: Sequence[KernelId]
    ) -> Mapping[KernelId, Sequence[Measurement]]:
        return {kernel: [Measurement(key="fake_util", value=5.0, unit_hint="percent")] for kernel in kernels}


class FakeHook(AbstractLifecycleHook):
    def __init__(self, plugin: type[FakePlugin], workload: Any, device_alloc: Any, context: Any) -> None:
        super().__init__(workload, device_alloc, context)
        self._plugin = plugin

    def _note(self, what: str) -> None:
        self._plugin.journal.append(f"{self._plugin.key}.{what}")
        self.context.state.data[what] = self.context.state.data.get(what, 0) + 1
        if (error := self._plugin.hook_errors.get(what)) is not None:
            raise error

    async def pre_create(self) -> WorkloadConfig:
        self._note("pre_create")
        return self._plugin.config

    async def post_create(self) -> None:
        self._note("post_create")

    async def pre_terminate(self) -> None:
        self._note("pre_terminate")

    async def post_terminate(self) -> None:
        self._note("post_terminate")


def fake_plugin(key: str, **attributes: Any) -> type[FakePlugin]:
    """A plugin class of its own, with its own journal."""
    defaults: dict[str, Any] = {"key": DeviceName(key), "journal": [], "hook_errors": {}, "unhealthy": set()}
    return type(f"Fake{key.title()}", (FakePlugin,), {**defaults, **attributes})


class FakeManager:
    """Takes reports. ``deaf`` makes it unreachable."""

    def __init__(self) -> None:
        self.observations: list[KernelObservation] = []
        self.heartbeats: list[AgentReport] = []
        self.stats: list[StatReport] = []
        self.unknown: list[KernelPresence] = []
        self.unobserved: list[KernelPresence] = []
        self.kept: dict[str, dict[str, dict[str, str]]] = {}
        self.deaf = False
        self.news = asyncio.Event()
        self._beat = asyncio.Event()

    async def heartbeat(self, report: AgentReport) -> HeartbeatReply:
        self._listen()
        self.heartbeats.append(report)
        self._beat.set()
        unobserved, self.unobserved = self.unobserved, []
        return HeartbeatReply(interval_s=0.05, unknown_kernels=self.unknown, unobserved_kernels=unobserved)

    async def beat(self, report: BeatReport) -> BeatReply:
        return BeatReply(stale=list(report.agent_ids))

    async def observe(self, report: ObservationReport) -> int:
        self._listen()
        self.observations.extend(report.observations)
        self.news.set()
        return report.observations[-1].seq

    async def report_stats(self, report: StatReport) -> None:
        self._listen()
        self.stats.append(report)
        self.news.set()

    async def kept_devices(self, req: KeptDevicesOf) -> KeptDevices:
        self._listen()
        return KeptDevices(devices=self.kept)

    async def next_heartbeat(self) -> None:
        self._beat.clear()
        await self._beat.wait()

    def _listen(self) -> None:
        if self.deaf:
            raise Unavailable("nobody hears you")

    async def wait_for(self, condition: Any, timeout_s: float = 30.0) -> Any:
        """The first observation for which ``condition`` holds."""
        async with asyncio.timeout(timeout_s):
            while True:
                for observation in self.observations:
                    if condition(observation):
                        return observation
                self.news.clear()
                await self.news.wait()
