"""Messages between manager and agent about running code, files, services and terminals in kernels."""

from __future__ import annotations

from typing import Any, Literal

from ai.backend.common.states import RunMode, RunStatus
from ai.backend.common.wire import Wire


class FileBlob(Wire, frozen=True, kw_only=True):
    """Holds the path and the content of a file.

    ``mode`` is its permissions; None keeps those of the file that it replaces, or the default ones.
    """

    path: str
    data: bytes
    mode: int | None = None


class Execute(Wire, frozen=True, kw_only=True):
    """Executes one step of a run (spec 03-08) and returns the output so far within ``flush_timeout_s``."""

    kernel_id: str
    run_id: str
    mode: RunMode
    code: str = ""
    options: dict[str, Any] = {}
    flush_timeout_s: float = 2.0


class RunResult(Wire, frozen=True, kw_only=True):
    """Holds the result of one step of a run: the Execution Result Object (spec 03-07).

    ``console`` items are ``[type, data]``.
    """

    run_id: str
    status: RunStatus
    exit_code: int | None = None
    console: list[list[Any]] = []
    options: dict[str, Any] | None = None
    files: list[dict[str, Any]] = []
    reason: str | None = None


class Complete(Wire, frozen=True, kw_only=True):
    kernel_id: str
    code: str
    options: dict[str, Any] = {}


class KernelRef(Wire, frozen=True, kw_only=True):
    kernel_id: str


class UploadFiles(Wire, frozen=True, kw_only=True):
    kernel_id: str
    files: list[FileBlob]


class DownloadFiles(Wire, frozen=True, kw_only=True):
    kernel_id: str
    paths: list[str]
    max_bytes: int


class TarFile(Wire, frozen=True, kw_only=True):
    """Holds a requested path as a tar archive. ``name`` is its file name without directories."""

    name: str
    tar: bytes


class ListFiles(Wire, frozen=True, kw_only=True):
    kernel_id: str
    path: str


class FileEntry(Wire, frozen=True, kw_only=True):
    filename: str
    size: int
    mode: str
    mtime: float
    kind: Literal["file", "directory", "link", "other"] = "file"


class FileListing(Wire, frozen=True, kw_only=True):
    entries: list[FileEntry]
    folder_path: str
    errors: str = ""


class OpenPty(Wire, frozen=True, kw_only=True):
    """Opens a terminal whose shell is started again when it ends; with ``command``, starts a program.

    An empty command is a shell. ``cwd`` is relative to the home. Without ``tty`` a program is on pipes.
    """

    kernel_id: str
    rows: int = 24
    cols: int = 80
    command: list[str] | None = None
    tty: bool = True
    env: dict[str, str] = {}
    cwd: str = ""


class OpenPort(Wire, frozen=True, kw_only=True):
    """Connects to a port (1 to 65535) of 127.0.0.1 inside a kernel's workload."""

    kernel_id: str
    port: int


class OpenRoute(Wire, frozen=True, kw_only=True):
    """Requests a route to a port (1 to 65535) of 127.0.0.1 inside a kernel's workload.

    Clients of the authority reach the port by the route.

    ``port`` is one of ``ServiceState.ports``; ``authority`` is the authority's certificate in PEM.
    """

    kernel_id: str
    port: int
    authority: str


class RouteOpened(Wire, frozen=True, kw_only=True):
    """Describes a route to a service through the gateway of the kernel's agent. The route exists until the kernel ends.

    A client connects to ``host`` and ``port`` by TLS, accepts no other certificate than ``certificate`` (PEM), presents
    one of the authority, and names the route (``name``) in SNI. Without a certificate, where the operator has chosen
    direct addresses, ``host`` and ``port`` are the service's own, without TLS.
    """

    name: str
    host: str
    port: int
    certificate: str | None = None


class CloseRoute(Wire, frozen=True, kw_only=True):
    """Closes a route and ends its connections."""

    name: str


ArgumentValue = str | list[str] | None
"""Of an argument of a service: one value, several that follow its name, or none: a bare option."""


class StartService(Wire, frozen=True, kw_only=True):
    """Starts a service of a kernel unless it runs already (spec 03-05, "Service Definition DSL").

    ``port`` must be one of its ports. ``envs`` and ``arguments`` must be allowed by its definition.
    """

    kernel_id: str
    name: str
    port: int | None = None
    envs: dict[str, str] = {}
    arguments: dict[str, ArgumentValue] = {}


class StopService(Wire, frozen=True, kw_only=True):
    kernel_id: str
    name: str


class ServiceState(Wire, frozen=True, kw_only=True):
    """The state of a service of a kernel.

    ``ports`` are those at 127.0.0.1 inside the workload, for ``open_port``: the declared ones if the workload has a
    network of its own, else free ones of the host; empty unless it runs.
    """

    name: str
    protocol: str
    ports: list[int] = []
    status: Literal["stopped", "starting", "running", "failed"] = "stopped"
    url_template: str | None = None
    allowed_arguments: list[str] = []
    allowed_envs: list[str] = []
    reason: str | None = None


class PtyFrame(Wire, frozen=True, kw_only=True):
    """Carries one message of a terminal or program.

    ``data`` belongs to ``stdin``, ``out``, ``err`` and ``signal`` (its name, without SIG), ``rows`` and ``cols`` to
    ``resize``, ``exit_code`` to ``closed``: None if the program was cut off.
    """

    kind: Literal["stdin", "eof", "signal", "out", "err", "resize", "restart", "ping", "closed"]
    data: bytes = b""
    rows: int = 0
    cols: int = 0
    exit_code: int | None = None


class ListProcesses(Wire, frozen=True, kw_only=True):
    """Requests at most ``limit`` processes of a kernel, the processes with the highest usage first."""

    kernel_id: str
    limit: int = 20


class ProcessInfo(Wire, frozen=True, kw_only=True):
    """Describes a process in a workload.

    ``pid`` is its number inside the workload; ``metrics`` are as in StatReport.
    """

    pid: int
    command: str
    metrics: dict[str, dict[str, str | None]]


class ReadSessionLog(Wire, frozen=True, kw_only=True):
    """Requests the agent's log records of a session. ``ids`` are those of the session and its kernels."""

    ids: list[str]


class ReadLogs(Wire, frozen=True, kw_only=True):
    kernel_id: str
    max_bytes: int = 10_485_760
