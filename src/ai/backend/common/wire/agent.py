"""What manager and agent say to each other.

The manager commands, the agent observes. Every command is idempotent by ``(kernel_id, attempt)``: repeating it returns
the same answer and does nothing twice; a command with an attempt older than the agent's is refused as a Conflict.
Quantities travel as text (see :func:`ai.backend.common.slots.format_quantity`), times as seconds of the epoch.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from ai.backend.common.states import (
    ClusterMode,
    Enforcement,
    KernelEventReason,
    KernelStatus,
    RunMode,
    RunStatus,
    SessionType,
)


class Wire(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=False):
    """Base of wire structs."""


# ---- manager -> agent ------------------------------------------------------------------------------------------------


class UnderlayPeer(Wire, frozen=True, kw_only=True):
    """Where an agent is reached by others: its IPv4 address, a UDP port, and the keys for what goes there and comes
    from there, both empty in a network that is not encrypted."""

    address: str
    port: int
    key_out: bytes = b""
    key_in: bytes = b""

    def __repr__(self) -> str:
        return f"UnderlayPeer({self.address}:{self.port})"


class OverlayInfo(Wire, frozen=True, kw_only=True):
    """The network of a multi-node session as one of its agents needs to know it; settled when the session is scheduled.

    ``vni`` is its number (VXLAN), ``gateway`` an address in ``subnet`` that this agent may use itself. ``addresses``
    are those of all kernels by host name; ``peers`` are other agents, ``places`` tells behind which one a host is.
    ``secret`` is the same for every kernel of the session, and what their SSH keys follow from.
    """

    vni: int
    subnet: str
    gateway: str
    mtu: int
    local: UnderlayPeer
    addresses: dict[str, str]
    peers: dict[str, UnderlayPeer] = {}
    places: dict[str, str] = {}
    secret: bytes = b""

    def __repr__(self) -> str:
        return f"OverlayInfo(vni={self.vni}, subnet={self.subnet!r})"


class ClusterInfo(Wire, frozen=True, kw_only=True):
    """The cluster that a kernel belongs to (spec 03-01, "Detection of clustered setups")."""

    mode: ClusterMode = ClusterMode.SINGLE_NODE
    size: int = 1
    replicas: dict[str, int] = msgspec.field(default_factory=lambda: {"main": 1})
    hosts: list[str] = msgspec.field(default_factory=lambda: ["main1"])
    overlay: OverlayInfo | None = None


class MountSpec(Wire, frozen=True, kw_only=True):
    """A host directory in a workload.

    ``source`` is absolute; what follows a ``/./`` in it is a path that sessions write: it is opened beneath what stands
    before, through no link, or not at all. ``target`` is absolute inside the workload.
    """

    name: str
    source: str
    target: str
    read_only: bool = True


class FileBlob(Wire, frozen=True, kw_only=True):
    """``mode``: its permissions; without them it has those of the file that it replaces, or ordinary ones."""

    path: str
    data: bytes
    mode: int | None = None


class KernelSpec(Wire, frozen=True, kw_only=True):
    """Everything that an agent needs to create one kernel.

    ``devices`` is the manager's plan, slot -> device -> quantity, made from inventory generation ``generation``; empty
    for slots of plugins whose alloc map the manager does not know. ``variant_requirements`` are properties that its
    devices must have, as ``namespace::feature::value``. ``relocated_from`` is the agent of the attempt before, if
    it was another one. ``auto_pull`` says when the image is fetched: never, if it is missing, or also if it is another
    than ``image_digest`` and ``image_config_digest`` say. ``ssh_public_key``: who has its other half may log in.
    """

    kernel_id: str
    session_id: str
    attempt: int
    session_name: str
    session_type: SessionType
    image: str
    architecture: str
    access_key: str
    user_id: str
    user_email: str
    slots: dict[str, str]
    devices: dict[str, dict[str, str]] = {}
    generation: int = 0
    variant_requirements: list[str] = []
    shmem_bytes: int = 0
    environ: dict[str, str] = {}
    mounts: list[MountSpec] = []
    cluster: ClusterInfo = ClusterInfo()
    cluster_role: str = "main"
    cluster_idx: int = 1
    cluster_hostname: str = "main1"
    local_rank: int = 0
    startup_command: str | None = None
    bootstrap_script: str | None = None
    dotfiles: list[FileBlob] = []
    batch_timeout_s: float | None = None
    exec_timeout_s: float | None = None
    preopen_ports: list[int] = []
    request_id: str | None = None
    relocated_from: str | None = None
    auto_pull: Literal["", "tag", "digest"] = ""
    image_digest: str = ""
    image_config_digest: str = ""
    runtime_class: str = ""
    ssh_public_key: str | None = None


class RegistryAccess(Wire, frozen=True, kw_only=True):
    """What opens a registry of images. Agents keep it in memory only, and show it to nothing but their engine."""

    registry: str
    username: str
    password: str

    def __repr__(self) -> str:
        return f"RegistryAccess(registry={self.registry!r}, username={self.username!r})"


class CreateKernels(Wire, frozen=True, kw_only=True):
    """Create kernels of one session on this agent: all or none is accepted. Progress comes as observations."""

    kernels: list[KernelSpec]
    registries: list[RegistryAccess] = []


class DestroyKernel(Wire, frozen=True, kw_only=True):
    """End a kernel. ``forced`` skips the grace and deferrals. Unknown kernels are answered as gone."""

    kernel_id: str
    attempt: int
    reason: KernelEventReason = KernelEventReason.USER_REQUESTED
    forced: bool = False


class RestartKernel(Wire, frozen=True, kw_only=True):
    """Restart in place with the same devices and home; ``attempt`` is the new one."""

    kernel_id: str
    attempt: int


class Execute(Wire, frozen=True, kw_only=True):
    """One step of a run (spec 03-08). Answers within ``flush_timeout_s`` with whatever there is."""

    kernel_id: str
    run_id: str
    mode: RunMode
    code: str = ""
    options: dict[str, Any] = {}
    flush_timeout_s: float = 2.0


class RunResult(Wire, frozen=True, kw_only=True):
    """The Execution Result Object (spec 03-07). ``console`` items are ``[type, data]``."""

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
    """One requested path as a tar archive; ``name`` is its bare file name."""

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
    kernel_id: str
    rows: int = 24
    cols: int = 80


class OpenPort(Wire, frozen=True, kw_only=True):
    """Connect to what listens on 127.0.0.1 inside a kernel's workload. ``port`` is 1 to 65535."""

    kernel_id: str
    port: int


ArgumentValue = str | list[str] | None
"""Of an argument of a service: one value, several that follow its name, or none: a bare option."""


class StartService(Wire, frozen=True, kw_only=True):
    """Start a service of a kernel, or find it started (spec 03-05, "Service Definition DSL").

    ``port`` chooses among several ports of one service and is only checked. ``envs`` and ``arguments`` are those that
    its definition allows.
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
    """A service of a kernel. ``ports`` are those it listens on inside, at 127.0.0.1: give them to ``open_port``.

    They are the declared ones where a workload has a network of its own, else free ones of the host, and empty while it
    does not run. ``reason`` tells why it failed.
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
    """One message of a terminal stream, either way. ``data`` of ``stdin`` and ``out``; rows and cols of ``resize``."""

    kind: Literal["stdin", "out", "resize", "restart", "ping", "closed"]
    data: bytes = b""
    rows: int = 0
    cols: int = 0


class ListProcesses(Wire, frozen=True, kw_only=True):
    """Asks for those processes of a kernel that use most now, at most ``limit`` of them."""

    kernel_id: str
    limit: int = 20


class ProcessInfo(Wire, frozen=True, kw_only=True):
    """One process. ``pid`` is its number inside of the workload; ``metrics`` as in StatReport."""

    pid: int
    command: str
    metrics: dict[str, dict[str, str | None]]


class ReadLogs(Wire, frozen=True, kw_only=True):
    kernel_id: str
    max_bytes: int = 10_485_760


class ImageJob(Wire, frozen=True, kw_only=True):
    """Long work on an image, idempotent by ``job_id``: asking again tells how far it is, within ``wait_s``.

    ``pull`` fetches ``image``, ``remove`` removes it, ``commit`` makes an archive named ``filename``, with ``labels``,
    of the kernel ``kernel_id``, in a folder named ``folder``, or pushes it as ``image`` if that is not empty.
    """

    job_id: str
    action: Literal["pull", "remove", "commit"]
    image: str = ""
    digest: str = ""
    config_digest: str = ""
    kernel_id: str = ""
    folder: str = ""
    filename: str = ""
    labels: dict[str, str] = {}
    access: RegistryAccess | None = None
    wait_s: float = 2.0


class ImageJobState(Wire, frozen=True, kw_only=True):
    """How far a job is: ``current`` and ``total`` count bytes. ``code`` and ``message`` say why it has failed."""

    state: Literal["running", "done", "failed"]
    message: str = ""
    code: str = ""
    current: int = 0
    total: int = 0
    result: dict[str, Any] = {}


class OperateDevice(Wire, frozen=True, kw_only=True):
    """What an administrator does to a device; ``argument`` is a profile (``partition``) or an image (``program``)."""

    device_name: str
    device_id: str
    action: str
    argument: str = ""


class DeviceOperation(Wire, frozen=True, kw_only=True):
    """What came of it: the device, or the new one that was made of it."""

    device_id: str


class DeviceOptionsOf(Wire, frozen=True, kw_only=True):
    device_name: str


class PartitionOption(Wire, frozen=True, kw_only=True):
    """A profile that a device can be cut into; ``available`` says how many more of it fit now."""

    name: str
    slot_name: str
    available: int


class DeviceOptions(Wire, frozen=True, kw_only=True):
    """What can be done with a plugin's devices now; ``profiles`` and ``images`` are by device."""

    actions: list[str] = []
    devices: list[str] = []
    profiles: dict[str, list[PartitionOption]] = {}
    images: dict[str, str] = {}
    attachable: list[str] = []


# ---- agent -> manager ------------------------------------------------------------------------------------------------


class SlotReport(Wire, frozen=True, kw_only=True):
    """A slot that the agent offers: display data and its total over all healthy devices."""

    slot_name: str
    slot_type: str
    amount: str
    display: dict[str, Any] = {}


class PluginReport(Wire, frozen=True, kw_only=True):
    """The state of a plugin; ``alloc_map`` is the :class:`~ai.backend.common.devices.AllocMapSpec` or None,
    ``variant_namespaces`` are :class:`~ai.backend.common.devices.VariantNamespace` as builtins.
    """

    name: str
    version: str
    healthy: bool = True
    reason: str | None = None
    info: dict[str, str] = {}
    alloc_map: dict[str, Any] | None = None
    variant_namespaces: list[dict[str, Any]] = []


class ImageReport(Wire, frozen=True, kw_only=True):
    """An image that a session on this agent may name."""

    name: str
    architecture: str
    digest: str = ""
    size_bytes: int = 0
    labels: dict[str, str] = {}
    aliases: list[str] = []


class RuntimeClassReport(Wire, frozen=True, kw_only=True):
    """A runtime class that a session on this agent may name (spec 03-19, 10.3).

    ``overhead`` are slots that each of its kernels takes beyond its own. Of accelerators a kernel gets at most
    ``max_devices`` (None: any number), and only whole ones if ``whole_devices``.
    """

    name: str
    kind: Literal["container", "vm"] = "container"
    overhead: dict[str, str] = {}
    whole_devices: bool = False
    max_devices: int | None = None


class OverlayReport(Wire, frozen=True, kw_only=True):
    """How an agent takes part in networks over several agents: its IPv4 address and UDP ports for that, one for what is
    encrypted, and the largest packet between agents. ``why_not`` says why it takes no part, ``why_plain`` why not in
    encrypted ones; empty where it does.
    """

    address: str = ""
    port: int = 4789
    encrypted_port: int = 4790
    mtu: int = 1500
    why_not: str = ""
    why_plain: str = ""


class AgentReport(Wire, frozen=True, kw_only=True):
    """What a heartbeat carries.

    ``generation`` grows whenever devices or their health change. ``devices`` are
    :class:`~ai.backend.common.devices.ComputeDevice` as builtins. ``kernels`` lists ``(kernel id, attempt, status)`` of
    everything that the agent holds. ``enforcement`` maps a limit or isolation to what the runtime really does about it.
    ``location`` are the places that it is in, the widest first. It takes ``kernel_limit`` kernels at once at most.
    """

    agent_id: str
    epoch: int
    version: str
    architecture: str
    resource_group: str
    region: str = "local"
    addr: str = ""
    runtime: str = ""
    tier: str = ""
    enforcement: dict[str, Enforcement] = {}
    generation: int = 0
    slots: list[SlotReport] = []
    devices: list[dict[str, Any]] = []
    plugins: list[PluginReport] = []
    images: list[ImageReport] = []
    kernels: list[KernelPresence] = []
    runtime_classes: list[RuntimeClassReport] = []
    location: list[str] = []
    kernel_limit: int | None = None
    overlay: OverlayReport | None = None


class KernelPresence(Wire, frozen=True, kw_only=True):
    kernel_id: str
    attempt: int
    status: KernelStatus


class UnhealthyDevice(Wire, frozen=True, kw_only=True):
    """A failed device, by its plugin and its id; ``reason`` is for people."""

    device_name: str
    device_id: str
    reason: str = ""


HookState = Literal["retrying", "done", "given-up", "overrun"]


class HookTrouble(Wire, frozen=True, kw_only=True):
    """What a plugin's hook did not do in its time.

    ``state``: ``retrying`` in the background, ``done`` at last, ``given-up``, or ``overrun`` where the termination went
    on without it. ``since`` is the first failure, ``message`` the last one's.
    """

    plugin: str
    method: str
    state: HookState
    message: str
    since: float


class KernelObservation(Wire, frozen=True, kw_only=True):
    """A fact about a kernel, reported until acknowledged; ``seq`` orders one agent's observations within an epoch.

    ``unhealthy_devices`` are all those of the kernel's devices that have failed by now; None: nothing is said of them.
    ``retry_after_s`` comes with PENDING. ``hook_troubles`` are news about hooks; earlier ones stand.
    ``log_tail`` comes with a final status: the newest output of the workload (at most 256 KiB), kept by the manager.
    """

    kernel_id: str
    attempt: int
    status: KernelStatus
    reason: KernelEventReason
    at: float
    seq: int
    message: str | None = None
    exit_code: int | None = None
    workload_id: str | None = None
    devices: dict[str, dict[str, str]] | None = None
    attached_devices: dict[str, list[dict[str, Any]]] | None = None
    unhealthy_devices: list[UnhealthyDevice] | None = None
    service_ports: list[dict[str, Any]] | None = None
    last_stat: dict[str, Any] | None = None
    retry_after_s: float | None = None
    hook_troubles: list[HookTrouble] = []
    log_tail: bytes | None = None


class ObservationReport(Wire, frozen=True, kw_only=True):
    """Observations of one agent in the order of their ``seq``, within an epoch of that agent."""

    agent_id: str
    epoch: int
    observations: list[KernelObservation]


class MetricSample(Wire, frozen=True, kw_only=True):
    labels: dict[str, str]
    value: float


class MetricFamily(Wire, frozen=True, kw_only=True):
    """Samples of one name for Prometheus. ``kind``: ``gauge``, ``counter`` (its name ends in _total) or ``unknown``."""

    name: str
    kind: str
    help: str
    samples: list[MetricSample]


class StatReport(Wire, frozen=True, kw_only=True):
    """Live statistics: ``kernels`` maps kernel id to metric name to the metric dict of peer facts 3.6, in msgpack: of
    many kernels hardly any is read before the next report. See :meth:`of_kernel`.

    ``families`` are those for Prometheus, without the label that names the agent.
    """

    agent_id: str
    at: float
    node: dict[str, Any] = {}
    devices: dict[str, Any] = {}
    kernels: dict[str, msgspec.Raw] = {}
    families: list[MetricFamily] = []

    def of_kernel(self, kernel_id: str) -> dict[str, Any] | None:
        """Raises msgspec.MsgspecError: it is no map."""
        raw = self.kernels.get(kernel_id)
        return None if raw is None else msgspec.msgpack.decode(raw, type=dict[str, Any])


class HeartbeatReply(Wire, frozen=True, kw_only=True):
    """``unknown_kernels``: held by the agent, but the manager has no live row for them; the agent destroys them.

    ``interval_s``: when to send the next one. Reports are always whole, so that a manager that knows nothing needs none
    besides.
    """

    interval_s: float = 3.0
    unknown_kernels: list[KernelPresence] = []
