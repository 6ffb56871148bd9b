"""Messages between manager and agent about kernels, images and devices.

The manager commands, the agent observes. Every command is idempotent by ``(kernel_id, attempt)``: repeating it returns
the same answer and does nothing twice; a command with an attempt older than the agent's is refused as a Conflict.
Quantities travel as text (see :func:`ai.backend.common.slots.format_quantity`), times as seconds of the epoch.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from ai.backend.common.states import (
    ClusterMode,
    KernelEventReason,
    SessionType,
)
from ai.backend.common.wire.base import Wire
from ai.backend.common.wire.execution import FileBlob

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
