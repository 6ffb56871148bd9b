"""Serves the manager's commands (:class:`ai.backend.common.wire.link.AgentCommands`)."""

from __future__ import annotations

import asyncio

from ai.backend.agent.channel.channel import KernelChannel
from ai.backend.agent.channel.files import download, list_directory, upload
from ai.backend.agent.channel.runs import RunQueue
from ai.backend.agent.channel.terminals import Terminals
from ai.backend.agent.config.settings import RunSettings
from ai.backend.agent.devices.operations import DeviceOperations
from ai.backend.agent.images.jobs import ImageJobs
from ai.backend.agent.lifecycle.supervisor import Supervisor
from ai.backend.agent.metrics.processes import Processes
from ai.backend.agent.service_ports.services import PortForwarder, ServiceManager
from ai.backend.common.errors import Unavailable
from ai.backend.common.wire.agent import (
    CreateKernels,
    DestroyKernel,
    DeviceOperation,
    DeviceOptions,
    DeviceOptionsOf,
    ImageJob,
    ImageJobState,
    OperateDevice,
    RestartKernel,
)
from ai.backend.common.wire.execution import (
    Complete,
    DownloadFiles,
    Execute,
    FileListing,
    KernelRef,
    ListFiles,
    ListProcesses,
    OpenPort,
    OpenPty,
    ProcessInfo,
    ReadLogs,
    RunResult,
    ServiceState,
    StartService,
    StopService,
    TarFile,
    UploadFiles,
)
from ai.backend.common.wire.link import ByteStream, PtyStream
from ai.backend.plugin.runtime import AbstractRuntime


class Commands:
    """Forwards each command to its service. A call before the agent has recovered waits for the recovery."""

    def __init__(
        self,
        supervisor: Supervisor,
        runtime: AbstractRuntime,
        processes: Processes,
        devices: DeviceOperations,
        images: ImageJobs,
        ports: PortForwarder,
        services: ServiceManager,
        settings: RunSettings,
        recovered: asyncio.Event,
    ) -> None:
        self._supervisor = supervisor
        self._processes = processes
        self._devices = devices
        self._images = images
        self._ports = ports
        self._services = services
        self._runtime = runtime
        self._settings = settings
        self._recovered = recovered

    async def _ready(self) -> None:
        try:
            async with asyncio.timeout(self._settings.request_timeout):
                await self._recovered.wait()
        except TimeoutError:
            raise Unavailable("the agent is still looking for its kernels") from None

    async def _running(self, kernel_id: str) -> tuple[KernelChannel, RunQueue, Terminals]:
        await self._ready()
        return await self._supervisor.get(kernel_id).when_adopted(self._settings.request_timeout)

    async def create_kernels(self, req: CreateKernels) -> None:
        await self._ready()
        self._supervisor.create(req)

    async def destroy_kernel(self, req: DestroyKernel) -> None:
        await self._ready()
        self._supervisor.destroy(req)

    async def restart_kernel(self, req: RestartKernel) -> None:
        await self._ready()
        self._supervisor.restart(req)

    async def execute(self, req: Execute) -> RunResult:
        _, runs, _ = await self._running(req.kernel_id)
        return await runs.execute(req)

    async def interrupt(self, req: KernelRef) -> None:
        _, runs, _ = await self._running(req.kernel_id)
        await runs.interrupt()

    async def complete(self, req: Complete) -> list[str]:
        channel, _, _ = await self._running(req.kernel_id)
        frame = {"t": "complete", "code": req.code, "options": req.options}
        data, _ = await channel.request(frame, self._settings.request_timeout)
        return [str(item) for item in data.get("matches") or ()]

    async def upload_files(self, req: UploadFiles) -> None:
        channel, _, _ = await self._running(req.kernel_id)
        await upload(channel, req.files, self._settings.transfer_timeout)

    async def download_files(self, req: DownloadFiles) -> list[TarFile]:
        channel, _, _ = await self._running(req.kernel_id)
        return await download(channel, req.paths, req.max_bytes, self._settings.transfer_timeout)

    async def list_files(self, req: ListFiles) -> FileListing:
        channel, _, _ = await self._running(req.kernel_id)
        return await list_directory(channel, req.path, self._settings.request_timeout)

    async def read_logs(self, req: ReadLogs) -> bytes:
        await self._ready()
        kernel = self._supervisor.get(req.kernel_id)
        return await self._runtime.read_logs(kernel.key, max_bytes=req.max_bytes)

    async def list_processes(self, req: ListProcesses) -> list[ProcessInfo]:
        await self._running(req.kernel_id)
        return await self._processes.busiest(self._supervisor.get(req.kernel_id), limit=req.limit)

    async def operate_device(self, req: OperateDevice) -> DeviceOperation:
        await self._ready()
        return await self._devices.operate(req)

    async def device_options(self, req: DeviceOptionsOf) -> DeviceOptions:
        await self._ready()
        return await self._devices.options(req)

    async def image_job(self, req: ImageJob) -> ImageJobState:
        await self._ready()
        return await self._images.ask(req)

    async def start_service(self, req: StartService) -> ServiceState:
        channel, _, _ = await self._running(req.kernel_id)
        return await self._services.start(self._supervisor.get(req.kernel_id), channel, req)

    async def stop_service(self, req: StopService) -> None:
        channel, _, _ = await self._running(req.kernel_id)
        await self._services.stop(self._supervisor.get(req.kernel_id), channel, req.name)

    async def list_services(self, req: KernelRef) -> list[ServiceState]:
        channel, _, _ = await self._running(req.kernel_id)
        return await self._services.list(self._supervisor.get(req.kernel_id), channel)

    async def open_pty(self, req: OpenPty) -> PtyStream:
        _, _, terminals = await self._running(req.kernel_id)
        return await terminals.open(req.rows, req.cols, self._settings.request_timeout)

    async def open_port(self, req: OpenPort) -> ByteStream:
        await self._running(req.kernel_id)
        return await self._ports.open(self._supervisor.get(req.kernel_id), req.port)
