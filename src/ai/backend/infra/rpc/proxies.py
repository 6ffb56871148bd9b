"""Callable faces of the far side, and the way from a received call to its handler."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Protocol

from ai.backend.common.errors import BackendError, Forbidden, InternalError
from ai.backend.common.wire import agent as w
from ai.backend.common.wire.link import AgentCommands, ByteStream, ManagerReports, PtyStream
from ai.backend.infra.rpc.methods import COMMANDS, REPORTS, Method, Observe

log = logging.getLogger(__name__)


class Caller(Protocol):
    """What carries one call to the far side and back, with its deadline."""

    async def call(self, method: Method, request: object) -> Any: ...
    async def open_stream(self, method: Method, request: object) -> Any:
        """A PtyStream or a ByteStream, as the method says."""


class CommandsProxy:
    """:class:`AgentCommands` of one agent on the far side."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    async def create_kernels(self, req: w.CreateKernels) -> None:
        await self._caller.call(COMMANDS["create_kernels"], req)

    async def destroy_kernel(self, req: w.DestroyKernel) -> None:
        await self._caller.call(COMMANDS["destroy_kernel"], req)

    async def restart_kernel(self, req: w.RestartKernel) -> None:
        await self._caller.call(COMMANDS["restart_kernel"], req)

    async def execute(self, req: w.Execute) -> w.RunResult:
        result: w.RunResult = await self._caller.call(COMMANDS["execute"], req)
        return result

    async def interrupt(self, req: w.KernelRef) -> None:
        await self._caller.call(COMMANDS["interrupt"], req)

    async def complete(self, req: w.Complete) -> list[str]:
        result: list[str] = await self._caller.call(COMMANDS["complete"], req)
        return result

    async def upload_files(self, req: w.UploadFiles) -> None:
        await self._caller.call(COMMANDS["upload_files"], req)

    async def download_files(self, req: w.DownloadFiles) -> list[w.TarFile]:
        result: list[w.TarFile] = await self._caller.call(COMMANDS["download_files"], req)
        return result

    async def list_files(self, req: w.ListFiles) -> w.FileListing:
        result: w.FileListing = await self._caller.call(COMMANDS["list_files"], req)
        return result

    async def read_logs(self, req: w.ReadLogs) -> bytes:
        result: bytes = await self._caller.call(COMMANDS["read_logs"], req)
        return result

    async def list_processes(self, req: w.ListProcesses) -> list[w.ProcessInfo]:
        result: list[w.ProcessInfo] = await self._caller.call(COMMANDS["list_processes"], req)
        return result

    async def operate_device(self, req: w.OperateDevice) -> w.DeviceOperation:
        result: w.DeviceOperation = await self._caller.call(COMMANDS["operate_device"], req)
        return result

    async def device_options(self, req: w.DeviceOptionsOf) -> w.DeviceOptions:
        result: w.DeviceOptions = await self._caller.call(COMMANDS["device_options"], req)
        return result

    async def start_service(self, req: w.StartService) -> w.ServiceState:
        state: w.ServiceState = await self._caller.call(COMMANDS["start_service"], req)
        return state

    async def stop_service(self, req: w.StopService) -> None:
        await self._caller.call(COMMANDS["stop_service"], req)

    async def list_services(self, req: w.KernelRef) -> list[w.ServiceState]:
        states: list[w.ServiceState] = await self._caller.call(COMMANDS["list_services"], req)
        return states

    async def image_job(self, req: w.ImageJob) -> w.ImageJobState:
        result: w.ImageJobState = await self._caller.call(COMMANDS["image_job"], req)
        return result

    async def open_pty(self, req: w.OpenPty) -> PtyStream:
        stream: PtyStream = await self._caller.open_stream(COMMANDS["open_pty"], req)
        return stream

    async def open_port(self, req: w.OpenPort) -> ByteStream:
        stream: ByteStream = await self._caller.open_stream(COMMANDS["open_port"], req)
        return stream


class ReportsProxy:
    """:class:`ManagerReports` of the manager on the far side."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    async def heartbeat(self, report: w.AgentReport) -> w.HeartbeatReply:
        reply: w.HeartbeatReply = await self._caller.call(REPORTS["heartbeat"], report)
        return reply

    async def observe(self, agent_id: str, epoch: int, observations: list[w.KernelObservation]) -> int:
        request = Observe(agent_id=agent_id, epoch=epoch, observations=observations)
        seq: int = await self._caller.call(REPORTS["observe"], request)
        return seq

    async def report_stats(self, report: w.StatReport) -> None:
        await self._caller.call(REPORTS["report_stats"], report)


Handler = Callable[[Method, Any], Any]
"""``await handler(method, request)`` gives the reply, or the stream that the method opens."""


def commands_handler(commands: AgentCommands) -> Handler:
    """Serve the manager's calls from ``commands``."""

    async def handle(method: Method, request: Any) -> Any:
        return await getattr(commands, method.name)(request)

    return handle


def reports_handler(reports: ManagerReports, agent_id: str) -> Handler:
    """Serve one agent's calls from ``reports``; what it says of another agent is refused."""

    async def handle(method: Method, request: Any) -> Any:
        if request.agent_id != agent_id:
            raise Forbidden(f"agent {agent_id} may not speak for {request.agent_id[:64]}")
        if isinstance(request, Observe):
            return await reports.observe(request.agent_id, request.epoch, request.observations)
        return await getattr(reports, method.name)(request)

    return handle


async def guarded(handler: Handler, method: Method, request: Any) -> Any:
    """Run a handler so that only :class:`BackendError` and cancellation come out of it."""
    try:
        return await handler(method, request)
    except (BackendError, asyncio.CancelledError):
        raise
    except Exception as e:
        log.exception("the handler of %s failed", method.name)
        raise InternalError(f"{method.name} failed: {type(e).__name__}") from e
