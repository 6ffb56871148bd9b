"""A scripted agent that speaks the real link in memory."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from ipaddress import IPv4Address
from typing import Any
from zlib import crc32

from ai.backend.common.errors import BackendError, Conflict, NotFound, Unavailable
from ai.backend.common.states import Enforcement, KernelEventReason, KernelStatus, RunStatus
from ai.backend.common.wire.agent import (
    CreateKernels,
    DestroyKernel,
    DeviceOperation,
    DeviceOptions,
    DeviceOptionsOf,
    ImageJob,
    ImageJobState,
    KernelSpec,
    OperateDevice,
    RestartKernel,
)
from ai.backend.common.wire.execution import (
    CloseRoute,
    Complete,
    DownloadFiles,
    Execute,
    FileListing,
    KernelRef,
    ListFiles,
    ListProcesses,
    OpenPort,
    OpenPty,
    OpenRoute,
    ProcessInfo,
    ReadLogs,
    RouteOpened,
    RunResult,
    ServiceState,
    StartService,
    StopService,
    TarFile,
    UploadFiles,
)
from ai.backend.common.wire.link import ByteStream, ManagerReports, PtyStream
from ai.backend.common.wire.reports import (
    AgentReport,
    ImageReport,
    KernelObservation,
    KernelPresence,
    LogLine,
    ObservationReport,
    OverlayReport,
    PluginReport,
    SlotReport,
)

S = KernelStatus
R = KernelEventReason


@dataclass
class Held:
    spec: KernelSpec
    attempt: int
    status: KernelStatus = S.PREPARING


@dataclass
class FakeAgent:
    """Holds kernels in memory. Knobs: ``refuse`` raises at creation, ``stall`` stops before RUNNING, ``deaf`` ends
    nothing."""

    agent_id: str = "agent-1"
    resource_group: str = "default"
    slots: dict[str, str] = field(default_factory=lambda: {"cpu": "8", "mem": "17179869184", "mock.device": "4"})
    images: list[ImageReport] = field(
        default_factory=lambda: [
            ImageReport(
                name="host/python:3.11",
                architecture="x86_64",
                labels={"ai.backend.resource.min.cpu": "1", "ai.backend.resource.min.mem": "64m"},
                aliases=["python"],
            )
        ]
    )
    epoch: int = 1
    refuse: Callable[[KernelSpec], BackendError | None] = lambda _: None
    stall: bool = False
    deaf: bool = False
    logs: bytes = b"hello\n"
    kernels: dict[str, Held] = field(default_factory=dict)
    services: dict[str, str] = field(default_factory=dict)
    routes: dict[str, OpenRoute] = field(default_factory=dict)
    closed_routes: list[str] = field(default_factory=list)
    created: list[KernelSpec] = field(default_factory=list)
    destroyed: list[DestroyKernel] = field(default_factory=list)
    uploads: list[UploadFiles] = field(default_factory=list)
    runtime: str = ""
    asked: list[CreateKernels] = field(default_factory=list)
    image_jobs: list[ImageJob] = field(default_factory=list)
    image_answers: list[ImageJobState] = field(default_factory=lambda: [ImageJobState(state="done")])
    seq: int = 0
    reports: ManagerReports | None = None
    _tasks: set[asyncio.Task[Any]] = field(default_factory=set)

    @property
    def address(self) -> str:
        """Of its own, as each node has one."""
        return str(IPv4Address(0x0A000000 | crc32(self.agent_id.encode()) & 0xFFFFFF))

    def report(self, **changes: Any) -> AgentReport:
        values: dict[str, Any] = {
            "agent_id": self.agent_id,
            "epoch": self.epoch,
            "version": "1",
            "architecture": "x86_64",
            "resource_group": self.resource_group,
            "runtime": self.runtime,
            "enforcement": {"memory": Enforcement.ENFORCED},
            "generation": 1,
            "slots": [
                SlotReport(slot_name=n, slot_type="bytes" if n == "mem" else "count", amount=q)
                for n, q in self.slots.items()
            ],
            "devices": [
                {
                    "device_name": n.partition(".")[0],
                    "device_id": f"{n}-{i}",
                    "hw_location": "",
                    "slots": [{"slot_name": n, "slot_type": "count", "amount": "1"}],
                }
                for n, q in self.slots.items()
                if n == "mock.device"
                for i in range(int(q))
            ],
            "plugins": [PluginReport(name="mock", version="1", alloc_map={"kind": "discrete"})],
            "images": self.images,
            "overlay": OverlayReport(address=self.address, mtu=1500, why_plain="not here"),
            "kernels": [
                KernelPresence(kernel_id=i, attempt=h.attempt, status=h.status) for i, h in self.kernels.items()
            ],
        }
        return AgentReport(**{**values, **changes})

    async def beat(self) -> list[str]:
        """One heartbeat, obeying the reply; returns the orphans."""
        assert self.reports is not None
        reply = await self.reports.heartbeat(self.report())
        for orphan in reply.unknown_kernels:
            self.kernels.pop(orphan.kernel_id, None)
        for unobserved in reply.unobserved_kernels:
            await self.tell(unobserved.kernel_id, unobserved.attempt, KernelStatus.RUNNING)
        return [o.kernel_id for o in reply.unknown_kernels]

    def observation(self, kernel_id: str, attempt: int, status: KernelStatus, **details: Any) -> KernelObservation:
        self.seq += 1
        reason = details.pop("reason", R.UNKNOWN)
        return KernelObservation(
            kernel_id=kernel_id, attempt=attempt, status=status, reason=reason, at=time.time(), seq=self.seq, **details
        )

    async def tell(self, kernel_id: str, attempt: int, status: KernelStatus, **details: Any) -> int:
        assert self.reports is not None
        if kernel_id in self.kernels:
            self.kernels[kernel_id].status = status
            if status.is_final:
                del self.kernels[kernel_id]
        return await self.reports.observe(
            ObservationReport(
                agent_id=self.agent_id,
                epoch=self.epoch,
                observations=[self.observation(kernel_id, attempt, status, **details)],
            )
        )

    def _spawn(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # ---- AgentCommands ----

    async def create_kernels(self, req: CreateKernels) -> None:
        for spec in req.kernels:
            error = self.refuse(spec)
            if error is not None:
                raise error
        self.asked.append(req)
        for spec in req.kernels:
            if spec.kernel_id in self.kernels and self.kernels[spec.kernel_id].attempt == spec.attempt:
                continue
            self.created.append(spec)
            self.kernels[spec.kernel_id] = Held(spec, spec.attempt)
            if not self.stall:
                self._spawn(self.run_up(spec))

    async def run_up(self, spec: KernelSpec) -> None:
        await self.tell(spec.kernel_id, spec.attempt, S.PREPARING)
        await self.tell(spec.kernel_id, spec.attempt, S.CREATING)
        await self.tell(
            spec.kernel_id,
            spec.attempt,
            S.RUNNING,
            reason=R.NEW_WORKLOAD_STARTED,
            workload_id="w-1",
            service_ports=[{"name": "sshd", "protocol": "tcp"}],
        )

    async def destroy_kernel(self, req: DestroyKernel) -> None:
        self.destroyed.append(req)
        if not self.deaf or req.forced:
            self._spawn(
                self.tell(
                    req.kernel_id,
                    req.attempt,
                    S.TERMINATED,
                    reason=req.reason,
                    exit_code=0,
                    log_tail=self.logs,
                    last_stat={"cpu_used": {"current": "12", "pct": "0", "unit_hint": "msec"}},
                )
            )

    async def restart_kernel(self, req: RestartKernel) -> None:
        held = self.kernels.get(req.kernel_id)
        if held is None:
            raise NotFound("no such kernel")
        held.attempt = req.attempt

        async def back() -> None:
            await self.tell(req.kernel_id, req.attempt, S.RESTARTING)
            await self.tell(req.kernel_id, req.attempt, S.RUNNING)

        self._spawn(back())

    async def execute(self, req: Execute) -> RunResult:
        return RunResult(run_id=req.run_id, status=RunStatus.FINISHED, exit_code=0, console=[["stdout", req.code]])

    async def interrupt(self, req: KernelRef) -> None: ...

    async def complete(self, req: Complete) -> list[str]:
        return [req.code + "x"]

    async def upload_files(self, req: UploadFiles) -> None:
        self.uploads.append(req)

    async def download_files(self, req: DownloadFiles) -> list[TarFile]:
        return [TarFile(name=path, tar=b"") for path in req.paths]

    async def list_files(self, req: ListFiles) -> FileListing:
        return FileListing(entries=[], folder_path=req.path)

    async def read_logs(self, req: ReadLogs) -> bytes:
        if req.kernel_id not in self.kernels:
            raise NotFound("no such kernel")
        return self.logs

    async def read_session_log(self, req: Any) -> list[LogLine]:
        return [LogLine(at=1.0, daemon="agent", level="info", logger="x", message=f"about {req.ids[0]}")]

    async def list_processes(self, req: ListProcesses) -> list[ProcessInfo]:
        if req.kernel_id not in self.kernels:
            raise NotFound("no such kernel")
        return [ProcessInfo(pid=7, command="python main.py", metrics={"mem": {"current": "4096", "capacity": None}})]

    async def operate_device(self, req: OperateDevice) -> DeviceOperation:
        if req.device_id == "busy":
            raise Conflict("the device busy is in use")
        return DeviceOperation(device_id=f"{req.device_id}:{req.action}:{req.argument}")

    async def device_options(self, req: DeviceOptionsOf) -> DeviceOptions:
        return DeviceOptions(actions=["cordon", "reset"], devices=[f"{req.device_name}-0"])

    async def start_service(self, req: StartService) -> ServiceState:
        if req.kernel_id not in self.kernels or req.name != "sshd":
            raise NotFound(f"no service {req.name}")
        self.services[req.kernel_id] = req.name
        return ServiceState(name="sshd", protocol="tcp", ports=[2200], status="running")

    async def stop_service(self, req: StopService) -> None:
        if req.name != "sshd":
            raise NotFound(f"no service {req.name}")
        self.services.pop(req.kernel_id, None)

    async def list_services(self, req: KernelRef) -> list[ServiceState]:
        if req.kernel_id in self.services:
            return [ServiceState(name="sshd", protocol="tcp", ports=[2200], status="running")]
        return [ServiceState(name="sshd", protocol="tcp")]

    async def image_job(self, req: ImageJob) -> ImageJobState:
        """As the test says: answers in order, the last one stays."""
        self.image_jobs.append(req)
        answers = self.image_answers
        return answers.pop(0) if len(answers) > 1 else answers[0]

    async def open_pty(self, req: OpenPty) -> PtyStream:
        raise NotFound("no terminal here")

    async def open_port(self, req: OpenPort) -> ByteStream:
        raise Unavailable("nothing listens here")

    async def open_route(self, req: OpenRoute) -> RouteOpened:
        if req.kernel_id not in self.kernels:
            raise NotFound(f"no kernel {req.kernel_id}")
        for name, opened in self.routes.items():
            if opened == req:
                return RouteOpened(name=name, host="127.0.0.1", port=6443, certificate="PEM of the gateway")
        self.routes[f"r{len(self.closed_routes) + len(self.routes)}"] = req
        return await self.open_route(req)

    async def close_route(self, req: CloseRoute) -> None:
        if self.routes.pop(req.name, None) is not None:
            self.closed_routes.append(req.name)
