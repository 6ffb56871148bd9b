"""Serves the manager's commands (:class:`ai.backend.common.wire.link.AgentCommands`)."""

from __future__ import annotations

import asyncio

import msgspec

from ai.backend.agent.channel.channel import KernelChannel
from ai.backend.agent.channel.files import download, list_directory, upload
from ai.backend.agent.channel.runs import RunQueue
from ai.backend.agent.channel.terminals import Terminals
from ai.backend.agent.config.settings import RunSettings
from ai.backend.agent.devices.operations import DeviceOperations
from ai.backend.agent.gateway.server import ServiceGateway
from ai.backend.agent.images.jobs import ImageJobs
from ai.backend.agent.lifecycle.supervisor import Supervisor
from ai.backend.agent.metrics.statistics import Statistics
from ai.backend.agent.service_ports.services import PortForwarder, ServiceManager
from ai.backend.common.errors import Unavailable
from ai.backend.common.structs import replace
from ai.backend.common.wire import agent, execution
from ai.backend.common.wire.link import ByteStream, PtyStream
from ai.backend.common.wire.reports import LogLine
from ai.backend.infra.telemetry.recent import recent_lines
from ai.backend.plugin.runtime import AbstractRuntime


class Commands(msgspec.Struct, frozen=True, kw_only=True):
    """Forwards each command to its service. A call before the agent has recovered waits for the recovery."""

    supervisor: Supervisor
    runtime: AbstractRuntime
    statistics: Statistics
    devices: DeviceOperations
    images: ImageJobs
    ports: PortForwarder
    services: ServiceManager
    gateway: ServiceGateway
    settings: RunSettings
    recovered: asyncio.Event

    async def _wait_recovered(self) -> None:
        try:
            async with asyncio.timeout(self.settings.request_timeout):
                await self.recovered.wait()
        except TimeoutError:
            raise Unavailable("the agent is still looking for its kernels") from None

    async def _wait_running(self, kernel_id: str) -> tuple[KernelChannel, RunQueue, Terminals]:
        await self._wait_recovered()
        return await self.supervisor.get(kernel_id).wait_adopted(self.settings.request_timeout)

    async def create_kernels(self, req: agent.CreateKernels) -> None:
        await self._wait_recovered()
        self.supervisor.create(req)

    async def destroy_kernel(self, req: agent.DestroyKernel) -> None:
        await self._wait_recovered()
        self.supervisor.destroy(req)

    async def restart_kernel(self, req: agent.RestartKernel) -> None:
        await self._wait_recovered()
        self.supervisor.restart(req)

    async def execute(self, req: execution.Execute) -> execution.RunResult:
        _, runs, _ = await self._wait_running(req.kernel_id)
        return await runs.execute(req)

    async def interrupt(self, req: execution.KernelRef) -> None:
        _, runs, _ = await self._wait_running(req.kernel_id)
        await runs.interrupt()

    async def complete(self, req: execution.Complete) -> list[str]:
        channel, _, _ = await self._wait_running(req.kernel_id)
        frame = {"t": "complete", "code": req.code, "options": req.options}
        reply_data, _ = await channel.request(frame, self.settings.request_timeout)
        return [str(completion) for completion in reply_data.get("matches") or ()]

    async def upload_files(self, req: execution.UploadFiles) -> None:
        channel, _, _ = await self._wait_running(req.kernel_id)
        await upload(channel, req.files, self.settings.transfer_timeout)

    async def download_files(self, req: execution.DownloadFiles) -> list[execution.TarFile]:
        channel, _, _ = await self._wait_running(req.kernel_id)
        return await download(channel, req.paths, req.max_bytes, self.settings.transfer_timeout)

    async def list_files(self, req: execution.ListFiles) -> execution.FileListing:
        channel, _, _ = await self._wait_running(req.kernel_id)
        return await list_directory(channel, req.path, self.settings.request_timeout)

    async def read_logs(self, req: execution.ReadLogs) -> bytes:
        await self._wait_recovered()
        kernel = self.supervisor.get(req.kernel_id)
        return await self.runtime.read_logs(kernel.key, max_bytes=req.max_bytes)

    async def read_session_log(self, req: execution.ReadSessionLog) -> list[LogLine]:
        return recent_lines(req.ids)

    async def list_processes(self, req: execution.ListProcesses) -> list[execution.ProcessInfo]:
        await self._wait_running(req.kernel_id)
        return await self.statistics.busiest_processes(self.supervisor.get(req.kernel_id), limit=req.limit)

    async def operate_device(self, req: agent.OperateDevice) -> agent.DeviceOperation:
        await self._wait_recovered()
        return await self.devices.operate(req)

    async def device_options(self, req: agent.DeviceOptionsOf) -> agent.DeviceOptions:
        await self._wait_recovered()
        options = await self.devices.options(req)
        kernels_of_device: dict[str, list[str]] = {}
        for kernel in self.supervisor.kernels.values():
            for device_id in kernel.record.spec.diagnosed_devices.get(req.device_name, ()):
                kernels_of_device.setdefault(device_id, []).append(kernel.id)
        return replace(options, diagnosed=kernels_of_device)

    async def image_job(self, req: agent.ImageJob) -> agent.ImageJobState:
        await self._wait_recovered()
        return await self.images.ask(req)

    async def start_service(self, req: execution.StartService) -> execution.ServiceState:
        channel, _, _ = await self._wait_running(req.kernel_id)
        return await self.services.start(self.supervisor.get(req.kernel_id), channel, req)

    async def stop_service(self, req: execution.StopService) -> None:
        channel, _, _ = await self._wait_running(req.kernel_id)
        await self.services.stop(self.supervisor.get(req.kernel_id), channel, req.name)

    async def list_services(self, req: execution.KernelRef) -> list[execution.ServiceState]:
        channel, _, _ = await self._wait_running(req.kernel_id)
        return await self.services.list(self.supervisor.get(req.kernel_id), channel)

    async def open_pty(self, req: execution.OpenPty) -> PtyStream:
        _, _, terminals = await self._wait_running(req.kernel_id)
        programs = self.supervisor.get(req.kernel_id).programs
        if req.command is not None and programs is not None:
            return await programs.start(req, self.settings.request_timeout)
        return await terminals.open(req.rows, req.cols, self.settings.request_timeout)

    async def open_port(self, req: execution.OpenPort) -> ByteStream:
        await self._wait_running(req.kernel_id)
        return await self.ports.open(self.supervisor.get(req.kernel_id), req.port)

    async def open_route(self, req: execution.OpenRoute) -> execution.RouteOpened:
        await self._wait_running(req.kernel_id)
        await self.ports.check(self.supervisor.get(req.kernel_id), req.port)
        return await self.gateway.open(req.kernel_id, req.port, req.authority)

    async def close_route(self, req: execution.CloseRoute) -> None:
        await self._wait_recovered()
        self.gateway.close(req.name)
