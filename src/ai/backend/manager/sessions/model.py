"""Defines sessions, their kernels and the requests and replies of sessions.

A :class:`Session` with its kernels is one aggregate: read, changed and written as a whole, guarded by ``version``.
Source of the fields: spec 03-09 (ComputeSession, ComputeContainer), client wire contract 3.3, peer facts 4.4.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from ai.backend.common import ids, states
from ai.backend.common.errors import LimitExceeded
from ai.backend.common.slots import ResourceSlot
from ai.backend.common.structs import replace
from ai.backend.core.lifecycle.kernel import HOLDING
from ai.backend.core.lifecycle.transition import Transitions
from ai.backend.manager.folders.model import FolderMount
from ai.backend.manager.query.model import ListQuery

SERVICE_ALIASES: Mapping[str, str] = {"jupyter": "jupyterlab"}
"""Other names of services for sessions without a service of that name (spec 03-11:433)."""

STARTED_OVER = "started_over"
"""Key of a session's ``status_data``: how often it was preempted and started over, and its attempts by then."""


def connection_name_of(first: ids.AgentId, second: ids.AgentId) -> str:
    """Returns the name of the connection between two agents, which does not depend on the order of the agents."""
    return " ".join(sorted((first, second)))


class NetworkNode(msgspec.Struct, frozen=True, kw_only=True):
    """An agent in a session's network: its IPv4 address and UDP port for other agents, and its address inside."""

    address: str
    port: int
    gateway: str


class SessionNetwork(msgspec.Struct, frozen=True, kw_only=True):
    """The network of a session over several agents, as assigned when the session was scheduled.

    Attributes:
        subnet: its addresses; no other live session has any of them.
        mtu: the largest packet in it.
        addresses, places: the address and the agent of each kernel, by host name.
        encrypted: True if traffic between agents is encrypted.
        lines: the nonce of each encrypted line, by :func:`connection_name_of`; empty without encryption.
        key_id: of the key from which its secrets are derived; newer keys do not change it.
    """

    subnet: str
    mtu: int
    addresses: Mapping[str, str]
    places: Mapping[str, ids.AgentId]
    nodes: Mapping[ids.AgentId, NetworkNode]
    encrypted: bool = False
    lines: Mapping[str, str] = msgspec.field(default_factory=dict)
    key_id: str = ""


def network_to_keep(network: SessionNetwork, status: states.SessionStatus) -> SessionNetwork:
    """Returns a session's network for the assignment of later networks, without connections if it is TERMINATING."""
    return replace(network, lines={}) if status is states.SessionStatus.TERMINATING else network


class Kernel(msgspec.Struct, frozen=True, kw_only=True):
    """A kernel of a session.

    Attributes:
        attempt: the incarnation that the agent works on; 0 before the first; grows with every rescheduling and restart.
            Observations of older attempts are ignored.
        occupied_slots: the slots that it holds on ``agent``; empty unless the status is a holding one.
        devices: slot -> device id -> quantity as text, with those of its device claim; the plan until the agent reports
            what it bound.
        container_id: the runtime's id of the workload.
        role_options: ``environ`` and ``bootstrap_script`` of a cluster template for kernels of its role.
        live_stat: the latest statistics in memory, filled at reads only.
    """

    id: ids.KernelId
    session_id: ids.SessionId
    cluster_role: str = "main"
    cluster_idx: int = 1
    local_rank: int = 0
    cluster_hostname: str = "main1"
    image: str
    architecture: str
    status: states.KernelStatus = states.KernelStatus.PENDING
    reason: states.KernelEventReason = states.KernelEventReason.UNKNOWN
    status_info: str | None = None
    status_data: Mapping[str, Any] = msgspec.field(default_factory=dict)
    status_changed: datetime
    attempt: int = 0
    agent: ids.AgentId | None = None
    requested_slots: ResourceSlot
    occupied_slots: ResourceSlot = msgspec.field(default_factory=ResourceSlot)
    devices: Mapping[str, Mapping[str, str]] = msgspec.field(default_factory=dict)
    generation: int = 0
    attached_devices: Mapping[str, Any] = msgspec.field(default_factory=dict)
    service_ports: tuple[Mapping[str, Any], ...] = ()
    container_id: str | None = None
    exit_code: int | None = None
    role_options: Mapping[str, Any] = msgspec.field(default_factory=dict)
    last_stat: Mapping[str, Any] | None = None
    live_stat: Mapping[str, Any] | None = None
    created_at: datetime
    started_at: datetime | None = None
    terminated_at: datetime | None = None

    @property
    def holds(self) -> ResourceSlot:
        """Returns the slots that the kernel occupies on :attr:`agent` in its present status."""
        return self.occupied_slots if self.agent is not None and self.status in HOLDING else ResourceSlot()


class KernelWorkload(msgspec.Struct, frozen=True, kw_only=True):
    """The workload of a live kernel on its agent."""

    session_id: ids.SessionId
    kernel_id: ids.KernelId
    agent: ids.AgentId
    container_id: str
    runtime_class: str


class Session(msgspec.Struct, frozen=True, kw_only=True):
    """A session with all its kernels.

    Attributes:
        version: grows with every write; a writer states the one it read.
        status_history: status name -> ISO time of the last entry into it.
        status_info: short reason; ``status_data`` has the details (``scheduler`` while it waits, ``error``).
        user_email, group_name: as at creation.
        created_by: the access key of the request, which differs from ``access_key`` if an admin created it for a user.
        requested_slots: of one kernel; those of a kernel include the cost of its runtime class.
        vni, network: the number of its network over several agents, and the network; only while it is on agents.
        runtime_class: the runtime class of its workloads; if empty, the agent chooses.
        mounts: names of the folders in ``vfolder_mounts``.
        variant_requirements: what every device of a slot that they concern must be, ``namespace::feature::value``.
        device_requests: what the devices of its accelerators must be, as expressions; alternatives in order.
        plugin_options: what it says to accelerator plugins, by their name; their schemas allow it.
        diagnosed_devices: by plugin, the devices of its agent that it sees and does not hold; of superadmins only.
        reason: the cause of its status; the first cause of an end is kept.
        not_before: the scheduler ignores it until then, after a creation that failed temporarily.
        starting_over: it is TERMINATING and becomes PENDING again, see ``core/lifecycle/session.py``.
        array_id, array_name, array_index: the array that it is an element of, and which one.
        array_parallel: how many elements of its array may be scheduled at a time; None is all.
        claim_id, claim_name: the device claim that its kernels hold beside their own slots.
        recent_transitions: its last transitions as this process has seen them; not stored.
    """

    id: ids.SessionId
    name: str
    type: states.SessionType
    status: states.SessionStatus
    status_info: str | None = None
    status_data: Mapping[str, Any] = msgspec.field(default_factory=dict)
    status_history: Mapping[str, str] = msgspec.field(default_factory=dict)
    status_changed: datetime
    result: states.SessionResult = states.SessionResult.UNDEFINED
    version: int = 1
    domain_name: ids.DomainName
    group_id: ids.GroupId
    group_name: str
    user_id: ids.UserId
    user_email: str
    access_key: ids.AccessKey
    created_by: ids.AccessKey
    image: str
    architecture: str
    tag: str | None = None
    cluster_mode: states.ClusterMode = states.ClusterMode.SINGLE_NODE
    cluster_size: int = 1
    vni: int | None = None
    network: SessionNetwork | None = None
    runtime_class: str = ""
    requested_slots: ResourceSlot
    variant_requirements: tuple[str, ...] = ()
    device_requests: tuple[str, ...] = ()
    plugin_options: Mapping[str, Mapping[str, Any]] = msgspec.field(default_factory=dict)
    diagnosed_devices: Mapping[str, list[str]] = msgspec.field(default_factory=dict)
    resource_opts: Mapping[str, str] = msgspec.field(default_factory=dict)
    environ: Mapping[str, str] = msgspec.field(default_factory=dict)
    sealed_environ: Mapping[str, str] = msgspec.field(default_factory=dict)
    mounts: tuple[str, ...] = ()
    vfolder_mounts: tuple[FolderMount, ...] = ()
    startup_command: str | None = None
    bootstrap_script: str | None = None
    callback_url: str | None = None
    starts_at: datetime | None = None
    dependencies: tuple[ids.SessionId, ...] = ()
    scaling_group: ids.ResourceGroupName
    designated_agents: tuple[ids.AgentId, ...] = ()
    preopen_ports: tuple[int, ...] = ()
    batch_timeout_s: float | None = None
    exec_timeout_s: float | None = None
    priority: int = 10
    num_queries: int = 0
    reason: states.KernelEventReason = states.KernelEventReason.UNKNOWN
    not_before: datetime | None = None
    starting_over: bool = False
    created_at: datetime
    scheduled_at: datetime | None = None
    started_at: datetime | None = None
    terminated_at: datetime | None = None
    array_id: UUID | None = None
    array_name: str | None = None
    array_index: int | None = None
    array_parallel: int | None = None
    claim_id: UUID | None = None
    claim_name: str | None = None
    trace: str | None = None
    kernels: tuple[Kernel, ...]
    recent_transitions: Transitions = ()

    @property
    def main(self) -> Kernel:
        """Returns the kernel that runs the user's code; its id equals the session's (spec 03-09)."""
        return self.kernels[0]

    @property
    def occupying_slots(self) -> ResourceSlot:
        return sum((kernel.holds for kernel in self.kernels), ResourceSlot())

    @property
    def has_started(self) -> bool:
        """True if the session has begun to run at some time, or if it has ended, even without ever running."""
        return self.started_at is not None or self.status.is_final

    @property
    def agent_ids(self) -> tuple[ids.AgentId, ...]:
        return tuple(dict.fromkeys(kernel.agent for kernel in self.kernels if kernel.agent is not None))

    @property
    def service_ports(self) -> tuple[Mapping[str, Any], ...]:
        return self.main.service_ports

    def service_name(self, name: str) -> str:
        """Returns the declared name of a service for a name or an alias; any other name is returned as it is."""
        declared_names = {port["name"] for port in self.service_ports}
        canonical_name = SERVICE_ALIASES.get(name, name)
        return canonical_name if canonical_name in declared_names and name not in declared_names else name


class KernelRole(msgspec.Struct, frozen=True, kw_only=True):
    """The kernels of one role of a cluster template; fields as in :class:`CreateSession`. Of ``resource_opts`` only
    ``shmem`` counts, since the others are of the whole session."""

    name: str
    replicas: int
    image: str
    architecture: str | None = None
    resources: Mapping[str, str | int | float] | None = None
    environ: Mapping[str, str] = msgspec.field(default_factory=dict)
    bootstrap_script: str | None = None
    resource_opts: Mapping[str, str] = msgspec.field(default_factory=dict)


class CreateSession(msgspec.Struct, frozen=True, kw_only=True):
    """A request for a session (spec 03-08, client wire contract 2.1.1).

    The API has checked shapes only; the service checks names, images, slots and rights, and names the wire field in its
    errors.

    Attributes:
        name: also called clientSessionToken; None generates one.
        resources: slot -> quantity as the user wrote it; None selects the minimum of the image.
        max_wait_s: zero waits without limit.
        starts_at: ISO time or a duration from now such as ``1h``.
        dependencies: names or ids of sessions of the same owner.
        priority: None selects the default, or the maximum of the resource group if that is less.
        sealed_environ: further environment variables, sealed by ``secrets.sealer.sealed_environ``; no request of the
            API sets them, and nobody is shown them.
        endpoint_id: the model service that an inference session is a replica of; None for all other sessions.
        roles: of a cluster template, ``main`` first; together they have ``cluster_size`` replicas. Empty makes equal
            kernels.
        claim: the name of the device claim that it uses, of the same owner and project.
    """

    image: str
    name: str | None = None
    type: states.SessionType = states.SessionType.INTERACTIVE
    architecture: str | None = None
    tag: str | None = None
    domain: str | None = None
    group: str | None = None
    cluster_size: int = 1
    cluster_mode: states.ClusterMode = states.ClusterMode.SINGLE_NODE
    runtime_class: str = ""
    enqueue_only: bool = False
    max_wait_s: float = 0
    reuse_if_exists: bool = True
    startup_command: str | None = None
    bootstrap_script: str | None = None
    starts_at: str | None = None
    batch_timeout_s: float | None = None
    exec_timeout_s: float | None = None
    dependencies: tuple[str, ...] = ()
    priority: int | None = None
    callback_url: str | None = None
    owner_access_key: str | None = None
    environ: Mapping[str, str] = msgspec.field(default_factory=dict)
    sealed_environ: Mapping[str, str] = msgspec.field(default_factory=dict)
    resources: Mapping[str, str | int | float] | None = None
    variant_requirements: tuple[str, ...] = ()
    device_requests: tuple[str, ...] = ()
    plugin_options: Mapping[str, Mapping[str, Any]] = msgspec.field(default_factory=dict)
    diagnosed_devices: Mapping[str, list[str]] = msgspec.field(default_factory=dict)
    resource_opts: Mapping[str, str] = msgspec.field(default_factory=dict)
    mounts: tuple[str, ...] = ()
    mount_map: Mapping[str, str] = msgspec.field(default_factory=dict)
    mount_options: Mapping[str, Any] = msgspec.field(default_factory=dict)
    scaling_group: str | None = None
    preopen_ports: tuple[int, ...] = ()
    agent_list: tuple[str, ...] = ()
    endpoint_id: UUID | None = None
    claim: str | None = None
    roles: tuple[KernelRole, ...] = ()


class OwnerLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the limits of all sessions of an owner; a limit that is None does not restrict. ``max_pending_slots``: the
    slots that all waiting sessions may request; slots without an entry are unbounded.
    """

    max_live: int | None = None
    max_pending: int | None = None
    max_pending_slots: ResourceSlot = msgspec.field(default_factory=ResourceSlot)

    @property
    def counts_pending(self) -> bool:
        return self.max_pending is not None or len(self.max_pending_slots) > 0

    def check_pending(self, count: int, slots: ResourceSlot) -> None:
        """Raises LimitExceeded if this number of waiting sessions, or their slots, exceed the limits."""
        if self.max_pending is not None and count > self.max_pending:
            message = f"Your policy allows {self.max_pending} sessions to wait at a time."
            raise LimitExceeded(message, data={"pending": self.max_pending})
        exceeded_slots = [name for name in self.max_pending_slots if slots[name] > self.max_pending_slots[name]]
        if exceeded_slots:
            limits = self.max_pending_slots.to_json()
            message = f"Sessions that wait may ask for {limits[exceeded_slots[0]]} of {exceeded_slots[0]} together."
            raise LimitExceeded(message, data={"pending_slots": {name: limits[name] for name in exceeded_slots}})


class CreateReply(msgspec.Struct, frozen=True, kw_only=True):
    """The reply to a creation. ``status`` is the session's, or ``TIMEOUT`` if ``max_wait_s`` has passed; a reused
    session is not ``created``."""

    session: Session
    status: str
    created: bool


class SessionMatch(msgspec.Struct, frozen=True, kw_only=True):
    id: ids.SessionId
    name: str
    status: states.SessionStatus


class DestroyReply(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the reply to a request to end a session; ``session`` is the session after the request. ``stats`` is version
    2 of the client wire contract 2.1.3: metric name -> metric of the main kernel, with ``status`` and ``version``
    beside them.
    """

    session: Session
    stats: Mapping[str, Any]
    destroyed: tuple[ids.SessionId, ...]


class DependencyNode(msgspec.Struct, frozen=True, kw_only=True):
    session: Session
    depends_on: tuple[DependencyNode, ...]


class SlotAudit(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the result of :meth:`SessionStore.audit`; all fields are empty if the recorded slots are right. ``drift``:
    agent -> (recorded, recomputed). ``orphans``: kernels without a session.
    """

    drift: Mapping[ids.AgentId, tuple[ResourceSlot, ResourceSlot]] = msgspec.field(default_factory=dict)
    orphans: tuple[ids.KernelId, ...] = ()

    @property
    def is_clean(self) -> bool:
        return not self.drift and not self.orphans


def too_many_sessions(limit: int) -> LimitExceeded:
    """Returns the error for a session with which its owner would exceed the limit of sessions."""
    return LimitExceeded(f"Your policy allows {limit} sessions at a time.", data={"concurrency": limit})


class SessionQuery(ListQuery, frozen=True, kw_only=True):
    """Selects sessions; a field that is None does not restrict the selection. The role of the caller restricts every
    query.
    """

    statuses: tuple[states.SessionStatus, ...] | None = None
    access_key: str | None = None
    domain_name: str | None = None
    group_id: str | None = None
