"""The two halves of the manager-agent link, as interfaces that know no transport.

The agent implements :class:`AgentCommands`, the manager implements :class:`ManagerReports`. ``infra.rpc`` carries both
over one connection (in memory, or pyzmq CURVE between processes) and rebuilds errors with
:func:`ai.backend.common.errors.from_wire`. Every call has a deadline; a peer that does not answer raises
DeadlineExceeded.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

from ai.backend.common.wire.agent import (
    AgentReport,
    Complete,
    CreateKernels,
    DestroyKernel,
    DeviceOperation,
    DeviceOptions,
    DeviceOptionsOf,
    DownloadFiles,
    Execute,
    FileListing,
    HeartbeatReply,
    ImageJob,
    ImageJobState,
    KernelObservation,
    KernelRef,
    ListFiles,
    ListProcesses,
    OpenPort,
    OpenPty,
    OperateDevice,
    ProcessInfo,
    PtyFrame,
    ReadLogs,
    RestartKernel,
    RunResult,
    ServiceState,
    StartService,
    StatReport,
    StopService,
    TarFile,
    UploadFiles,
)


class PtyStream(Protocol):
    """A terminal of a session. Iteration ends after a ``closed`` frame or when the link is lost."""

    async def send(self, frame: PtyFrame) -> None: ...
    def __aiter__(self) -> AsyncIterator[PtyFrame]: ...
    async def close(self) -> None: ...


class ByteStream(Protocol):
    """A connection: bytes both ways, each way ending by itself. A slow reader slows its writer and nobody else.

    A piece may be a bytearray as well, which nobody changes any more. One task reads and one writes. After ``close``,
    and after the far side or what is between has gone, both raise Unavailable.
    """

    async def read(self) -> bytes:
        """What has come, at most 256 KiB; empty once the far side has said all. Raises Unavailable if it is cut."""
        ...

    async def write(self, data: bytes) -> None:
        """Returns once more may be written. Raises Unavailable if it is cut."""

    async def write_eof(self) -> None:
        """Nothing more will be written; what comes can still be read."""

    async def close(self) -> None:
        """Cut both ways at once. Safe twice."""


class AgentCommands(Protocol):
    """What a manager asks of one agent."""

    async def create_kernels(self, req: CreateKernels) -> None:
        """Accepts or refuses at once; progress comes as observations.

        Raises:
            UnsupportedResource, InvalidAllocation, InsufficientResource, CreationDenied: nothing was taken.
        """

    async def destroy_kernel(self, req: DestroyKernel) -> None:
        """Accepts at once; TERMINATED is reported when nothing is left."""

    async def restart_kernel(self, req: RestartKernel) -> None:
        """Accepts at once; RESTARTING and RUNNING are reported."""

    async def execute(self, req: Execute) -> RunResult: ...
    async def interrupt(self, req: KernelRef) -> None: ...
    async def complete(self, req: Complete) -> list[str]: ...
    async def upload_files(self, req: UploadFiles) -> None: ...
    async def download_files(self, req: DownloadFiles) -> list[TarFile]: ...
    async def list_files(self, req: ListFiles) -> FileListing: ...
    async def read_logs(self, req: ReadLogs) -> bytes: ...
    async def list_processes(self, req: ListProcesses) -> list[ProcessInfo]:
        """The busiest first; takes a part of a second, because rates need two looks."""
        ...

    async def operate_device(self, req: OperateDevice) -> DeviceOperation:
        """Answers when it is done and the next heartbeat shows it. Raises Conflict for a device in use."""
        ...

    async def device_options(self, req: DeviceOptionsOf) -> DeviceOptions: ...
    async def image_job(self, req: ImageJob) -> ImageJobState:
        """Begins the job, or tells how far it is; answers within ``wait_s``. Raises what refuses it at once."""
        ...

    async def open_pty(self, req: OpenPty) -> PtyStream: ...
    async def start_service(self, req: StartService) -> ServiceState:
        """Answers once it listens.

        Raises:
            NotFound: the kernel has no such service. Forbidden: what it offers would be open to others of the host.
            InvalidInput: its definition or an argument is wrong. RunError: it ended or never listened.
        """
        ...

    async def stop_service(self, req: StopService) -> None:
        """One that does not run is no error. Raises NotFound."""

    async def list_services(self, req: KernelRef) -> list[ServiceState]: ...
    async def open_port(self, req: OpenPort) -> ByteStream:
        """Raises Unavailable if nothing listens there, NotSupported or Forbidden where the runtime has no tunnels."""
        ...


class ManagerReports(Protocol):
    """What an agent tells its manager. ``agent_id`` of a report must equal the identity that the link is bound to."""

    async def heartbeat(self, report: AgentReport) -> HeartbeatReply: ...

    async def observe(self, agent_id: str, epoch: int, observations: list[KernelObservation]) -> int:
        """Apply in order and return the highest ``seq`` that is durably applied; the agent forgets up to there."""
        ...

    async def report_stats(self, report: StatReport) -> None: ...
