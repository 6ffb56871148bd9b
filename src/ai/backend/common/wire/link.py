"""Declares every call between manager and agent, in both directions, without naming a transport.

``infra.rpc`` derives proxies and dispatch, raises the errors of the other side again, and DeadlineExceeded for a
missing reply.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

from ai.backend.common.wire import agent, execution
from ai.backend.common.wire.methods import remote
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


class PtyStream(Protocol):
    """Connects to a terminal of a session. Iteration ends after a ``closed`` frame or when the link is lost."""

    async def send(self, frame: execution.PtyFrame) -> None: ...
    def __aiter__(self) -> AsyncIterator[execution.PtyFrame]: ...
    async def close(self) -> None: ...


class ByteStream(Protocol):
    """Carries bytes in both directions. Each direction ends by itself. A slow reader slows down its writer only.

    ``read`` may return a bytearray, which nobody changes any more. One task reads and one writes. After ``close``, or
    once the other side or the connection is lost, both raise Unavailable.
    """

    async def read(self) -> bytes:
        """Returns at most 256 KiB of the received bytes.

        An empty result means the end of the stream. Raises Unavailable if it is cut.
        """

    async def write(self, data: bytes) -> None:
        """Writes bytes, and returns once the stream accepts more bytes. Raises Unavailable if the stream is cut."""

    async def write_eof(self) -> None:
        """Ends the sending direction. The receiving direction can still be read."""

    async def close(self) -> None:
        """Closes both directions at once. Safe twice."""


class AgentCommands(Protocol):
    """The commands that a manager sends to one agent."""

    @remote("repeatable")
    async def create_kernels(self, req: agent.CreateKernels) -> None:
        """Accepts the creation of all kernels at once, or refuses all of them; progress comes as observations.

        Raises:
            UnsupportedResource, InvalidAllocation, InsufficientResource, CreationDenied: nothing was taken.
            Conflict: the attempt is older than the one that the agent holds.
        """

    @remote("repeatable")
    async def destroy_kernel(self, req: agent.DestroyKernel) -> None:
        """Accepts the end of a kernel at once. TERMINATED is reported when nothing of the kernel is left.

        A kernel that is missing is reported as TERMINATED as well.
        """

    @remote("repeatable")
    async def restart_kernel(self, req: agent.RestartKernel) -> None:
        """Accepts a restart at once; RESTARTING and RUNNING are reported.

        Raises:
            NotFound: the agent holds no such kernel. Conflict: it does not run, or the attempt is old.
        """

    @remote("once", wait_field="flush_timeout_s", abandonable=True)
    async def execute(self, req: execution.Execute) -> execution.RunResult:
        """Takes one step of a run and returns the output so far."""

    @remote("once")
    async def interrupt(self, req: execution.KernelRef) -> None:
        """Interrupts the run that is under way in a kernel."""

    @remote("read")
    async def complete(self, req: execution.Complete) -> list[str]:
        """Returns the completions of a piece of code."""

    @remote("repeatable", deadline_s=60.0)
    async def upload_files(self, req: execution.UploadFiles) -> None:
        """Writes files below the home directory of a kernel."""

    @remote("read", deadline_s=60.0)
    async def download_files(self, req: execution.DownloadFiles) -> list[execution.TarFile]:
        """Returns files or directories of a kernel, each as a tar archive.

        Raises:
            LimitExceeded: they are larger than ``max_bytes``.
        """

    @remote("read")
    async def list_files(self, req: execution.ListFiles) -> execution.FileListing:
        """Returns the entries of a directory of a kernel."""

    @remote("read", deadline_s=30.0)
    async def read_logs(self, req: execution.ReadLogs) -> bytes:
        """Returns the newest output of a kernel's workload."""

    @remote("read")
    async def read_session_log(self, req: execution.ReadSessionLog) -> list[LogLine]:
        """Returns the newest records of the agent's own log that belong to a session; none after a restart."""

    @remote("read")
    async def list_processes(self, req: execution.ListProcesses) -> list[execution.ProcessInfo]:
        """Returns the busiest processes of a kernel. It measures twice, which takes a part of a second."""

    @remote("once", deadline_s=90.0)
    async def operate_device(self, req: agent.OperateDevice) -> agent.DeviceOperation:
        """Changes a device for an administrator. Returns when the agent's next heartbeat shows the change.

        Raises Conflict for a device in use.
        """

    @remote("read", deadline_s=60.0)
    async def device_options(self, req: agent.DeviceOptionsOf) -> agent.DeviceOptions:
        """Returns the operations that are possible now on the devices of a plugin."""

    @remote("repeatable", deadline_s=60.0)
    async def start_service(self, req: execution.StartService) -> execution.ServiceState:
        """Starts a service of a kernel and returns once it listens. A service that runs is left as it is.

        Raises:
            NotFound: the kernel has no such service. Forbidden: what it offers would be open to others of the host.
            InvalidInput: its definition or an argument is wrong. RunError: it ended or never listened.
        """

    @remote("repeatable")
    async def stop_service(self, req: execution.StopService) -> None:
        """Stops a service of a kernel. A service that does not run is no error. Raises NotFound."""

    @remote("read")
    async def list_services(self, req: execution.KernelRef) -> list[execution.ServiceState]:
        """Returns the services of a kernel."""

    @remote("repeatable", wait_field="wait_s", abandonable=True)
    async def image_job(self, req: agent.ImageJob) -> agent.ImageJobState:
        """Begins a job on an image unless the job's id is known, and returns its progress within ``wait_s``.

        A job that is refused at once raises the reason.
        """

    @remote("once", stream="frames")
    async def open_pty(self, req: execution.OpenPty) -> PtyStream:
        """Opens a terminal in a kernel, or starts a program there."""

    @remote("once", stream="bytes", abandonable=True)
    async def open_port(self, req: execution.OpenPort) -> ByteStream:
        """Connects to a port inside a kernel's workload.

        Raises:
            Unavailable: nothing listens there. NotSupported, Forbidden: the runtime has no tunnels.
        """

    @remote("repeatable")
    async def open_route(self, req: execution.OpenRoute) -> execution.RouteOpened:
        """Opens a route to a port of a kernel, or returns the one that the same request has opened before.

        Routes outlast the agent's restart and end with the kernel.

        Raises:
            NotFound, Conflict: the kernel does not run here. InvalidInput: there is no such port or authority.
            LimitExceeded: the kernel has too many routes. Unavailable: the agent cannot listen or store the route.
            NotSupported, Forbidden: as ``open_port``.
        """

    @remote("repeatable")
    async def close_route(self, req: execution.CloseRoute) -> None:
        """Closes a route and cuts its connections. No error if there is none; its name is never used again."""


class ManagerReports(Protocol):
    """Declares the reports that agents send to their manager, each for the agents of its connection only."""

    @remote("repeatable")
    async def heartbeat(self, report: AgentReport) -> HeartbeatReply:
        """Reports the state of an agent; returns when to send the next heartbeat."""

    @remote("repeatable")
    async def beat(self, report: BeatReport) -> BeatReply:
        """Records heartbeats of agents whose reports have not changed since their last ``heartbeat``."""

    @remote("repeatable")
    async def observe(self, report: ObservationReport) -> int:
        """Applies observations in order and returns the highest durable ``seq``; the agent drops them up to there."""

    @remote("repeatable")
    async def report_stats(self, report: StatReport) -> None:
        """Replaces the live statistics of the agent's kernels and devices."""

    @remote("read", deadline_s=5.0)
    async def kept_devices(self, req: KeptDevicesOf) -> KeptDevices:
        """Returns the devices that device claims keep on an agent. The agent joins no partitions of these devices."""
