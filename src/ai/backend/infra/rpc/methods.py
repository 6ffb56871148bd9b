"""Every call of the link: its name, its types and how long it may take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from ai.backend.common.wire import agent as w


class Observe(w.Wire, frozen=True, kw_only=True):
    """The arguments of :meth:`~ai.backend.common.wire.link.ManagerReports.observe` as one message."""

    agent_id: str
    epoch: int
    observations: list[w.KernelObservation]


@dataclass(frozen=True, slots=True)
class Method:
    """One call. ``deadline_s`` includes the way there and back. ``stream``: what it opens, a PtyStream or a ByteStream.

    ``abandonable``: the handler is cancelled once nobody waits for its answer any more. Commands that change something
    run to their end instead, so that a repeated one finds it done.
    """

    name: str
    request: Any
    reply: Any
    deadline_s: float = 15.0
    stream: Literal["frames", "bytes"] | None = None
    abandonable: bool = False


def _table(*methods: Method) -> dict[str, Method]:
    return {method.name: method for method in methods}


COMMANDS = _table(
    Method("create_kernels", w.CreateKernels, None),
    Method("destroy_kernel", w.DestroyKernel, None),
    Method("restart_kernel", w.RestartKernel, None),
    Method("execute", w.Execute, w.RunResult, abandonable=True),
    Method("interrupt", w.KernelRef, None),
    Method("complete", w.Complete, list[str], abandonable=True),
    Method("upload_files", w.UploadFiles, None, deadline_s=60.0),
    Method("download_files", w.DownloadFiles, list[w.TarFile], deadline_s=60.0, abandonable=True),
    Method("list_files", w.ListFiles, w.FileListing, abandonable=True),
    Method("read_logs", w.ReadLogs, bytes, deadline_s=30.0, abandonable=True),
    Method("list_processes", w.ListProcesses, list[w.ProcessInfo], abandonable=True),
    Method("operate_device", w.OperateDevice, w.DeviceOperation, deadline_s=90.0),
    Method("device_options", w.DeviceOptionsOf, w.DeviceOptions, deadline_s=60.0, abandonable=True),
    Method("start_service", w.StartService, w.ServiceState, deadline_s=60.0),
    Method("stop_service", w.StopService, None),
    Method("list_services", w.KernelRef, list[w.ServiceState], abandonable=True),
    Method("image_job", w.ImageJob, w.ImageJobState, abandonable=True),
    Method("open_pty", w.OpenPty, None, stream="frames"),
    Method("open_port", w.OpenPort, None, stream="bytes", abandonable=True),
)
REPORTS = _table(
    Method("heartbeat", w.AgentReport, w.HeartbeatReply),
    Method("observe", Observe, int),
    Method("report_stats", w.StatReport, None),
)


def deadline_of(method: Method, request: object) -> float:
    """Seconds that a call may take: a run's step may wait its flush time on top of the usual."""
    if isinstance(request, w.Execute):
        return method.deadline_s + max(0.0, request.flush_timeout_s)
    if isinstance(request, w.ImageJob):
        return method.deadline_s + max(0.0, request.wait_s)
    return method.deadline_s
