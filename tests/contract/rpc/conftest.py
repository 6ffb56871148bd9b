"""Both adapters of the link behind the same fixtures."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Protocol

import pytest
import pytest_asyncio

from ai.backend.common.errors import Unavailable
from ai.backend.common.states import RunStatus
from ai.backend.common.wire.agent import (
    DeviceOperation,
    DeviceOptions,
    ImageJob,
    ImageJobState,
    OperateDevice,
    PartitionOption,
)
from ai.backend.common.wire.execution import (
    Execute,
    FileListing,
    ProcessInfo,
    PtyFrame,
    RouteOpened,
    RunResult,
    ServiceState,
    TarFile,
)
from ai.backend.common.wire.link import ByteStream, PtyStream
from ai.backend.common.wire.reports import (
    AgentReport,
    BeatReply,
    BeatReport,
    HeartbeatReply,
    KeptDevices,
    KeptDevicesOf,
    LogLine,
    ObservationReport,
    StatReport,
)
from ai.backend.infra.rpc.data.server import DataServer
from ai.backend.infra.rpc.endpoints import AgentEndpoint, ManagerEndpoint
from ai.backend.infra.rpc.memory import MemoryLink
from ai.backend.infra.rpc.zmq.agent import ZmqAgentEndpoint
from ai.backend.infra.rpc.zmq.keys import AgentKeyDirectory, generate_keypair
from ai.backend.infra.rpc.zmq.manager import ZmqManagerEndpoint
from tests.support.cluster import free_port

SCALE = 0.02
"""Deadlines of seconds become tens of milliseconds."""
LOST_AFTER_S = 2.0
"""Longer than the two ends' common loop is busy with two hundred calls on a loaded machine."""


class Echo:
    """A terminal that echoes; ``exit`` closes it, ``flood`` prints much."""

    def __init__(self) -> None:
        self.out: asyncio.Queue[PtyFrame] = asyncio.Queue()
        self.is_closed = asyncio.Event()
        self.sent = 0

    async def send(self, frame: PtyFrame) -> None:
        if frame.data == b"exit":
            self.out.put_nowait(PtyFrame(kind="closed"))
        elif frame.data == b"flood":
            for i in range(1000):
                self.out.put_nowait(PtyFrame(kind="out", data=b"%d " % i))
        else:
            self.out.put_nowait(PtyFrame(kind="out", data=frame.data))

    async def __aiter__(self) -> AsyncIterator[PtyFrame]:
        while True:
            frame = await self.out.get()
            self.sent += 1
            yield frame
            if frame.kind == "closed":
                return

    async def close(self) -> None:
        self.is_closed.set()


class Loop:
    """A connection to something that sends back what it gets. ``taken`` counts what it has read."""

    def __init__(self) -> None:
        self.pieces: asyncio.Queue[bytes] = asyncio.Queue(4)
        self.taken = 0
        self.has_ended = False
        self.is_cut = asyncio.Event()

    async def read(self) -> bytes:
        if self.has_ended:
            return b""
        piece: bytes = await self._unless_cut(self.pieces.get())
        self.has_ended = not piece
        return piece

    async def write(self, data: bytes) -> None:
        self.taken += len(data)
        await self._unless_cut(self.pieces.put(data))

    async def write_eof(self) -> None:
        await self._unless_cut(self.pieces.put(b""))

    async def _unless_cut(self, step: Any) -> Any:
        stepping, cut = asyncio.ensure_future(step), asyncio.ensure_future(self.is_cut.wait())
        try:
            await asyncio.wait({stepping, cut}, return_when=asyncio.FIRST_COMPLETED)
            if not stepping.done():
                raise Unavailable("cut")
            return stepping.result()
        finally:
            stepping.cancel()
            cut.cancel()

    async def close(self) -> None:
        self.is_cut.set()


class Commands:
    """An agent that notes what it is told. ``raising`` is raised by every command, ``gate`` holds ``execute``."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []
        self.raising: Exception | None = None
        self.gate: asyncio.Event | None = None
        self.cancelled = asyncio.Event()
        self.finished = asyncio.Event()
        self.terminals: list[Echo] = []
        self.connections: list[Loop] = []
        self.log = b"log \xff\x00"

    def _note(self, name: str, request: Any) -> None:
        self.calls.append((name, request))
        if self.raising is not None:
            raise self.raising

    async def _hold(self) -> None:
        if self.gate is not None:
            try:
                await self.gate.wait()
            except asyncio.CancelledError:
                self.cancelled.set()
                raise
        self.finished.set()

    async def create_kernels(self, req: Any) -> None:
        self._note("create_kernels", req)
        await self._hold()

    async def destroy_kernel(self, req: Any) -> None:
        self._note("destroy_kernel", req)

    async def restart_kernel(self, req: Any) -> None:
        self._note("restart_kernel", req)

    async def execute(self, req: Execute) -> RunResult:
        self._note("execute", req)
        await self._hold()
        return RunResult(run_id=req.run_id, status=RunStatus.FINISHED, exit_code=0, console=[["stdout", req.code]])

    async def interrupt(self, req: Any) -> None:
        self._note("interrupt", req)

    async def complete(self, req: Any) -> list[str]:
        self._note("complete", req)
        return ["print"]

    async def upload_files(self, req: Any) -> None:
        self._note("upload_files", req)

    async def download_files(self, req: Any) -> list[TarFile]:
        self._note("download_files", req)
        return [TarFile(name=path, tar=b"\x00" * 10) for path in req.paths]

    async def list_files(self, req: Any) -> FileListing:
        self._note("list_files", req)
        return FileListing(entries=[], folder_path=req.path)

    async def read_logs(self, req: Any) -> bytes:
        self._note("read_logs", req)
        return self.log

    async def read_session_log(self, req: Any) -> list[LogLine]:
        self._note("read_session_log", req)
        return [LogLine(at=1.0, daemon="agent", level="info", logger="x", message=f"about {req.ids[0]}")]

    async def list_processes(self, req: Any) -> list[ProcessInfo]:
        self._note("list_processes", req)
        return [ProcessInfo(pid=7, command="python", metrics={"mem": {"current": "1", "capacity": None}})]

    async def operate_device(self, req: OperateDevice) -> DeviceOperation:
        self._note("operate_device", req)
        return DeviceOperation(device_id=f"{req.device_id}/{req.argument}")

    async def device_options(self, req: Any) -> DeviceOptions:
        self._note("device_options", req)
        part = PartitionOption(name="1g", slot_name="mock.device:1g-mig", available=2)
        return DeviceOptions(actions=["reset"], devices=["a"], profiles={"a": [part]})

    async def start_service(self, req: Any) -> ServiceState:
        self._note("start_service", req)
        return ServiceState(name=req.name, protocol="tcp", ports=[2200], status="running")

    async def stop_service(self, req: Any) -> None:
        self._note("stop_service", req)

    async def list_services(self, req: Any) -> list[ServiceState]:
        self._note("list_services", req)
        return [ServiceState(name="sshd", protocol="tcp")]

    async def image_job(self, req: ImageJob) -> ImageJobState:
        self._note("image_job", req)
        return ImageJobState(state="running", message=req.image, current=1, total=2)

    async def open_pty(self, req: Any) -> PtyStream:
        self._note("open_pty", req)
        self.terminals.append(Echo())
        return self.terminals[-1]

    async def open_port(self, req: Any) -> ByteStream:
        self._note("open_port", req)
        self.connections.append(Loop())
        return self.connections[-1]

    async def open_route(self, req: Any) -> RouteOpened:
        self._note("open_route", req)
        return RouteOpened(name="r0", host="127.0.0.1", port=req.port, certificate="PEM")

    async def close_route(self, req: Any) -> None:
        self._note("close_route", req)


class Reports:
    """A manager that notes what it is told."""

    def __init__(self) -> None:
        self.heartbeats: list[AgentReport] = []
        self.beats: list[BeatReport] = []
        self.observed: list[ObservationReport] = []
        self.stats: list[StatReport] = []
        self.asked_for_kept: list[KeptDevicesOf] = []

    async def heartbeat(self, report: AgentReport) -> HeartbeatReply:
        self.heartbeats.append(report)
        return HeartbeatReply(interval_s=7.0)

    async def beat(self, report: BeatReport) -> BeatReply:
        self.beats.append(report)
        return BeatReply(interval_s=8.0)

    async def observe(self, report: ObservationReport) -> int:
        self.observed.append(report)
        return report.observations[-1].seq

    async def report_stats(self, report: StatReport) -> None:
        self.stats.append(report)

    async def kept_devices(self, req: KeptDevicesOf) -> KeptDevices:
        self.asked_for_kept.append(req)
        return KeptDevices(devices={"claim": {"mock.device": {f"of {req.agent_id}": "1"}}})


class Link(Protocol):
    """One adapter: makes ends, and waits until they have met."""

    def manager(self) -> ManagerEndpoint: ...
    def agent(self, agent_id: str) -> AgentEndpoint: ...


class MemoryAdapter:
    def __init__(self) -> None:
        self._link = MemoryLink(deadline_scale=SCALE)

    def manager(self) -> ManagerEndpoint:
        return self._link.manager

    def agent(self, agent_id: str) -> AgentEndpoint:
        return self._link.agent_endpoint(agent_id)


class ZmqAdapter:
    """At an address where a manager that starts anew is found again; ``data``: what carries streams."""

    def __init__(self, directory: Path, data: str = "unix") -> None:
        self.data = data
        self.socket = directory / ("a path that is longer than an address of a socket may be " * 2) / "data.sock"
        self.address = f"tcp://127.0.0.1:{free_port()}" if data == "tls" else f"ipc://{directory}/link.sock"
        self.manager_keys = generate_keypair()
        self.agent_keys = AgentKeyDirectory(directory / "agents")

    def manager(self) -> ZmqManagerEndpoint:
        return ZmqManagerEndpoint(
            bind=self.address,
            keypair=self.manager_keys,
            agent_keys=self.agent_keys,
            lost_after_s=LOST_AFTER_S,
            deadline_scale=SCALE,
            data=DataServer(path=self.socket if self.data == "unix" else None),
        )

    def agent(self, agent_id: str) -> ZmqAgentEndpoint:
        keys = generate_keypair()
        self.agent_keys.allow(agent_id, keys.public)
        return self.agent_with(agent_id, keys)

    def agent_with(self, agent_id: str, keys: Any, manager_key: str | None = None) -> ZmqAgentEndpoint:
        return ZmqAgentEndpoint(
            connect=self.address,
            agent_id=agent_id,
            keypair=keys,
            manager_key=manager_key or self.manager_keys.public,
            hello_every_s=0.1,
            lost_after_s=LOST_AFTER_S,
            deadline_scale=SCALE,
        )


class Pair:
    """A manager and any number of agents on one adapter."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.reports = Reports()
        self.commands = Commands()
        self.manager = link.manager()
        self._ends: list[ManagerEndpoint | AgentEndpoint] = [self.manager]

    async def join(self, agent_id: str = "i-1", commands: Commands | None = None) -> AgentEndpoint:
        """Start another agent and wait until the manager has it."""
        end = self.link.agent(agent_id)
        self._ends.append(end)
        await end.start(commands or self.commands)
        await self.met(agent_id)
        return end

    def also(self, end: Any) -> Any:
        self._ends.append(end)
        return end

    async def met(self, agent_id: str, *, is_there: bool = True) -> None:
        async with asyncio.timeout(30):
            while (agent_id in self.manager.agents) is not is_there:  # noqa: ASYNC110  # a mapping has no event
                await asyncio.sleep(0.01)

    async def call_until_up(self, call: Any) -> Any:
        """Repeat a call while it is Unavailable, as every caller of the link does."""
        async with asyncio.timeout(30):
            while True:
                try:
                    return await call()
                except Unavailable:
                    await asyncio.sleep(0.02)

    async def close(self) -> None:
        for end in reversed(self._ends):
            await end.stop()


@pytest.fixture
def zmq_adapter(tmp_path: Path) -> ZmqAdapter:
    return ZmqAdapter(tmp_path)


@pytest.fixture(params=["memory", "zmq"])
def link(request: pytest.FixtureRequest, tmp_path: Path) -> Link:
    return MemoryAdapter() if request.param == "memory" else ZmqAdapter(tmp_path)


@pytest_asyncio.fixture
async def pair(link: Link) -> AsyncIterator[Pair]:
    made = Pair(link)
    await made.manager.start(made.reports)
    yield made
    await made.close()
