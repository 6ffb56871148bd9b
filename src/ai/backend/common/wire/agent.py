"""Messages between manager and agent about kernels, images and devices.

Every command is idempotent by ``(kernel_id, attempt)``; one with an older attempt than the agent's raises Conflict.
Quantities are text (see :func:`ai.backend.common.slots.format_quantity`), times are seconds of the epoch.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from ai.backend.common.states import ClusterMode, KernelEventReason, SessionType
from ai.backend.common.wire import Wire
from ai.backend.common.wire.execution import FileBlob


class UnderlayPeer(Wire, frozen=True, kw_only=True):
    """Holds an agent's IPv4 address and UDP port for networks of sessions, with keys if a network is encrypted.

    An encrypted network has a key for each direction.
    """

    address: str
    port: int
    key_out: bytes = b""
    key_in: bytes = b""

    def __repr__(self) -> str:
        return f"UnderlayPeer({self.address}:{self.port})"


class OverlayInfo(Wire, frozen=True, kw_only=True):
    """Describes a multi-node session's network to one of its agents. It is fixed when the session is scheduled.

    ``vni`` is its VXLAN number, ``gateway`` an address in ``subnet`` that this agent may use itself. ``addresses`` has
    all kernels by host name, ``peers`` the other agents, and ``places`` the agent of each host name. ``secret`` is the
    same for all kernels of the session; their SSH keys are derived from it.
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
    """Describes the cluster to which a kernel belongs (spec 03-01, "Detection of clustered setups")."""

    mode: ClusterMode = ClusterMode.SINGLE_NODE
    size: int = 1
    replicas: dict[str, int] = msgspec.field(default_factory=lambda: {"main": 1})
    hosts: list[str] = msgspec.field(default_factory=lambda: ["main1"])
    overlay: OverlayInfo | None = None


class MountSpec(Wire, frozen=True, kw_only=True):
    """Describes a host directory that a workload sees.

    ``source`` is absolute; sessions can write in the path after a ``/./`` in it, so that part is opened below the first
    without following links. ``target`` is absolute inside the workload.
    """

    name: str
    source: str
    target: str
    read_only: bool = True


class ClaimSpec(Wire, frozen=True, kw_only=True):
    """Describes the device claim of a kernel: which of the kernel's ``slots`` belong to the claim.

    While ``is_bound``, the kernel gets exactly the ``devices`` of the claim, which other kernels that name it may hold
    as well.
    """

    id: str
    slots: dict[str, str]
    devices: dict[str, dict[str, str]] = {}
    is_bound: bool = False


class KernelSpec(Wire, frozen=True, kw_only=True):
    """Holds everything that an agent needs to create one kernel.

    ``devices`` is the manager's plan, slot -> device -> quantity, from inventory generation ``generation``; empty for
    slots of plugins whose alloc map the manager does not know. ``variant_requirements`` are properties that its devices
    must have, as ``namespace::feature::value``; ``device_requests`` are alternatives of what they must be, of which the
    plan satisfies one. ``relocated_from`` is the agent of the previous attempt, if it was another one. ``auto_pull``
    decides when the image is pulled: never (empty), if it is missing (``tag``), or also if it differs from
    ``image_digest`` and ``image_config_digest`` (``digest``). The owner of ``ssh_public_key`` may log in.
    ``plugin_options`` are what the session says to plugins, by their name; the agent checks them by its own schemas.
    ``diagnosed_devices`` are devices by plugin that an administrator looks into: the kernel sees them and holds none.
    ``image_labels`` are the platform's own labels of the image in its registry, for agents whose runtime cannot read
    them. ``slots`` and ``devices`` include those of ``claim``. ``secret_environ`` are more variables, which agents keep
    in memory until the workload has them, and never store or log. ``trace`` is the ``traceparent`` of the session (W3C
    Trace Context).
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
    device_requests: list[str] = []
    plugin_options: dict[str, dict[str, Any]] = {}
    diagnosed_devices: dict[str, list[str]] = {}
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
    image_labels: dict[str, str] = {}
    runtime_class: str = ""
    ssh_public_key: str | None = None
    trace: str | None = None
    claim: ClaimSpec | None = None
    secret_environ: dict[str, str] = {}

    def __repr__(self) -> str:
        return f"KernelSpec(kernel_id={self.kernel_id!r}, attempt={self.attempt!r}, image={self.image!r})"


class RegistryAccess(Wire, frozen=True, kw_only=True):
    """Holds the credentials for an image registry. Agents keep them in memory and pass them to their engine only."""

    registry: str
    username: str
    password: str

    def __repr__(self) -> str:
        return f"RegistryAccess(registry={self.registry!r}, username={self.username!r})"


class CreateKernels(Wire, frozen=True, kw_only=True):
    """Requests the creation of kernels of one session on this agent. The agent accepts all of them or none.

    Progress comes as observations. ``kept`` are the devices of the device claims that this agent has, by claim. A
    kernel gets them only if it names the claim.
    """

    kernels: list[KernelSpec]
    registries: list[RegistryAccess] = []
    kept: dict[str, dict[str, dict[str, str]]] = {}


class DestroyKernel(Wire, frozen=True, kw_only=True):
    """Ends a kernel on this agent.

    ``forced`` skips the grace period and deferrals. An unknown kernel is reported as terminated.
    """

    kernel_id: str
    attempt: int
    reason: KernelEventReason = KernelEventReason.USER_REQUESTED
    forced: bool = False


class RestartKernel(Wire, frozen=True, kw_only=True):
    """Requests to restart a kernel in place, with the same devices and the same home directory.

    ``attempt`` is the new one. ``secret_environ`` is as in the kernel's specification; agents do not store it there.
    ``registries`` are the present credentials of the registry of the kernel's image.
    """

    kernel_id: str
    attempt: int
    secret_environ: dict[str, str] = {}
    registries: list[RegistryAccess] = []

    def __repr__(self) -> str:
        return f"RestartKernel(kernel_id={self.kernel_id!r}, attempt={self.attempt!r})"


class ImageJob(Wire, frozen=True, kw_only=True):
    """Starts long work on an image, or queries its progress within ``wait_s``; idempotent by ``job_id``.

    ``commit`` archives a kernel as ``filename`` in ``folder``, with ``labels``, or pushes it as ``image`` if that is
    not empty. ``load`` makes ``image`` of the archive or directory at the path ``folder`` of the node.
    """

    job_id: str
    action: Literal["pull", "remove", "commit", "load"]
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
    """Describes the progress of an image job in bytes (``current`` of ``total``).

    ``code`` and ``message`` are those of its failure.
    """

    state: Literal["running", "done", "failed"]
    message: str = ""
    code: str = ""
    current: int = 0
    total: int = 0
    result: dict[str, Any] = {}


class OperateDevice(Wire, frozen=True, kw_only=True):
    """Requests an operation of an administrator on a device.

    ``argument`` is a profile (``partition``), an image (``program``) or the reason (``cordon``, which ends after
    ``expires_after_s``).
    """

    device_name: str
    device_id: str
    action: str
    argument: str = ""
    expires_after_s: float | None = None


class DeviceOperation(Wire, frozen=True, kw_only=True):
    """The device after an operation, or the new device that it created."""

    device_id: str


class DeviceOptionsOf(Wire, frozen=True, kw_only=True):
    """Requests the possible operations on the devices of one plugin."""

    device_name: str


class PartitionOption(Wire, frozen=True, kw_only=True):
    """Describes a partition profile of a device. ``available`` is how many more such partitions fit now."""

    name: str
    slot_name: str
    available: int


class DeviceOptions(Wire, frozen=True, kw_only=True):
    """Lists the operations that are possible on the devices of one plugin.

    ``profiles``, ``images``, ``cordons`` and ``diagnosed`` are by device. ``diagnosed``: the kernels of administrators
    that see the device without holding it.
    """

    actions: list[str] = []
    devices: list[str] = []
    profiles: dict[str, list[PartitionOption]] = {}
    images: dict[str, str] = {}
    attachable: list[str] = []
    cordons: dict[str, str] = {}
    diagnosed: dict[str, list[str]] = {}
