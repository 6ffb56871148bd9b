"""Sessions and their kernels as the manager knows them.

A :class:`Session` with its kernels is one aggregate: it is read, decided upon and written as a whole, guarded by
``version``.
Source of the fields: spec 03-09 (ComputeSession, ComputeContainer), client wire contract 3.3, peer facts 4.4.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from ai.backend.common.errors import LimitExceeded
from ai.backend.common.ids import (
    AccessKey,
    AgentId,
    DomainName,
    GroupId,
    KernelId,
    ResourceGroupName,
    SessionId,
    UserId,
)
from ai.backend.common.slots import ResourceSlot
from ai.backend.common.states import (
    ClusterMode,
    KernelEventReason,
    KernelStatus,
    SessionResult,
    SessionStatus,
    SessionType,
)
from ai.backend.core.lifecycle.kernel import HOLDING
from ai.backend.core.lifecycle.transition import Path
from ai.backend.manager.folders.model import FolderMount
from ai.backend.manager.query.model import ListQuery
from ai.backend.manager.sessions.network import SessionNetwork


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """One kernel.

    Attributes:
        attempt: which incarnation the agent works on; 0 before the first; grows with every rescheduling and
        restart. Observations of older
            attempts are void.
        occupied_slots: what it holds on ``agent`` now; empty unless the status is a holding one.
        devices: slot -> device id -> quantity as text; the plan until the agent reports what it bound.
        container_id: what the runtime calls the workload.
        role_options: what a cluster template gives to kernels of its role alone: ``environ`` and
            ``bootstrap_script``.
        live_stat: the latest statistics in memory, filled at reads only.
    """

    id: KernelId
    session_id: SessionId
    cluster_role: str = "main"
    cluster_idx: int = 1
    local_rank: int = 0
    cluster_hostname: str = "main1"
    image: str
    architecture: str
    status: KernelStatus = KernelStatus.PENDING
    reason: KernelEventReason = KernelEventReason.UNKNOWN
    status_info: str | None = None
    status_data: Mapping[str, Any] = field(default_factory=dict)
    status_changed: datetime
    attempt: int = 0
    agent: AgentId | None = None
    requested_slots: ResourceSlot
    occupied_slots: ResourceSlot = field(default_factory=ResourceSlot)
    devices: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    generation: int = 0
    attached_devices: Mapping[str, Any] = field(default_factory=dict)
    service_ports: tuple[Mapping[str, Any], ...] = ()
    container_id: str | None = None
    exit_code: int | None = None
    role_options: Mapping[str, Any] = field(default_factory=dict)
    last_stat: Mapping[str, Any] | None = None
    live_stat: Mapping[str, Any] | None = None
    created_at: datetime
    started_at: datetime | None = None
    terminated_at: datetime | None = None

    @property
    def holds(self) -> ResourceSlot:
        """The slots taken on :attr:`agent` by this kernel in its present status."""
        return self.occupied_slots if self.agent is not None and self.status in HOLDING else ResourceSlot()


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """A session with all its kernels.

    Attributes:
        version: grows with every write; a writer states the one it read.
        status_history: status name -> ISO time of the last entry into it.
        status_info: short reason; ``status_data`` carries the evidence (``scheduler`` for what is not placed,
        ``error``).
        user_email, group_name: as at creation.
        created_by: the access key that asked, which differs from ``access_key`` when an admin created it for somebody.
        requested_slots: of one kernel; a kernel's own contain what its runtime class costs besides.
        vni, network: the number of its network over several agents, and the network; only while it is on agents.
        runtime_class: what the agent's runtime is asked for; empty leaves it to the agent.
        mounts: names of the folders in ``vfolder_mounts``.
        variant_requirements: what every device of a slot that they concern must be, ``namespace::feature::value``.
        reason: why it is in its status; the first cause of an end is kept.
        not_before: the scheduler leaves it alone until then, after a creation that failed for now.
        starting_over: it is TERMINATING and becomes PENDING again, see ``core/lifecycle/session.py``.
        story: its last transitions as this process has seen them; not stored.
    """

    id: SessionId
    name: str
    type: SessionType
    status: SessionStatus
    status_info: str | None = None
    status_data: Mapping[str, Any] = field(default_factory=dict)
    status_history: Mapping[str, str] = field(default_factory=dict)
    status_changed: datetime
    result: SessionResult = SessionResult.UNDEFINED
    version: int = 1
    domain_name: DomainName
    group_id: GroupId
    group_name: str
    user_id: UserId
    user_email: str
    access_key: AccessKey
    created_by: AccessKey
    image: str
    architecture: str
    tag: str | None = None
    cluster_mode: ClusterMode = ClusterMode.SINGLE_NODE
    cluster_size: int = 1
    vni: int | None = None
    network: SessionNetwork | None = None
    runtime_class: str = ""
    requested_slots: ResourceSlot
    variant_requirements: tuple[str, ...] = ()
    resource_opts: Mapping[str, str] = field(default_factory=dict)
    environ: Mapping[str, str] = field(default_factory=dict)
    mounts: tuple[str, ...] = ()
    vfolder_mounts: tuple[FolderMount, ...] = ()
    startup_command: str | None = None
    bootstrap_script: str | None = None
    callback_url: str | None = None
    starts_at: datetime | None = None
    dependencies: tuple[SessionId, ...] = ()
    scaling_group: ResourceGroupName
    designated_agents: tuple[AgentId, ...] = ()
    preopen_ports: tuple[int, ...] = ()
    batch_timeout_s: float | None = None
    exec_timeout_s: float | None = None
    priority: int = 10
    num_queries: int = 0
    reason: KernelEventReason = KernelEventReason.UNKNOWN
    not_before: datetime | None = None
    starting_over: bool = False
    created_at: datetime
    scheduled_at: datetime | None = None
    started_at: datetime | None = None
    terminated_at: datetime | None = None
    kernels: tuple[Kernel, ...]
    story: Path = field(default=(), compare=False)

    @property
    def main(self) -> Kernel:
        """The kernel that runs the user's code; its id equals the session's (spec 03-09)."""
        return self.kernels[0]

    @property
    def occupying_slots(self) -> ResourceSlot:
        total = ResourceSlot()
        for kernel in self.kernels:
            total += kernel.holds
        return total

    @property
    def agent_ids(self) -> tuple[AgentId, ...]:
        return tuple(dict.fromkeys(k.agent for k in self.kernels if k.agent is not None))

    @property
    def service_ports(self) -> tuple[Mapping[str, Any], ...]:
        return self.main.service_ports


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelRole:
    """What a cluster template says of the kernels of one role; fields as in :class:`CreateSession`."""

    name: str
    replicas: int
    image: str
    architecture: str | None = None
    resources: Mapping[str, str | int | float] | None = None
    environ: Mapping[str, str] = field(default_factory=dict)
    bootstrap_script: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateSession:
    """A request for a session (spec 03-08, client wire contract 2.1.1).

    The API has checked shapes only; names, images, slots and rights are checked by the service, which names the
    offending wire field in its error.

    Attributes:
        name: also called clientSessionToken; None mints one.
        resources: slot -> quantity as the user wrote it; None takes the minimum of the image.
        max_wait_s: zero waits without limit.
        starts_at: ISO time or a duration from now such as ``1h``.
        dependencies: names or ids of sessions of the same owner.
        priority: None takes the usual one, or what the resource group allows at most if that is less.
        roles: of a cluster template, ``main`` first; together they have ``cluster_size`` replicas. Empty makes equal
            kernels.
    """

    image: str
    name: str | None = None
    type: SessionType = SessionType.INTERACTIVE
    architecture: str | None = None
    tag: str | None = None
    domain: str | None = None
    group: str | None = None
    cluster_size: int = 1
    cluster_mode: ClusterMode = ClusterMode.SINGLE_NODE
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
    environ: Mapping[str, str] = field(default_factory=dict)
    resources: Mapping[str, str | int | float] | None = None
    variant_requirements: tuple[str, ...] = ()
    resource_opts: Mapping[str, str] = field(default_factory=dict)
    mounts: tuple[str, ...] = ()
    mount_map: Mapping[str, str] = field(default_factory=dict)
    mount_options: Mapping[str, Any] = field(default_factory=dict)
    scaling_group: str | None = None
    preopen_ports: tuple[int, ...] = ()
    agent_list: tuple[str, ...] = ()
    roles: tuple[KernelRole, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerLimits:
    """What the owner of a session may have together with it; None is no limit.

    ``max_pending_slots``: what all sessions that wait ask for; a slot that it does not name is unbounded.
    """

    max_live: int | None = None
    max_pending: int | None = None
    max_pending_slots: ResourceSlot = field(default_factory=ResourceSlot)

    @property
    def counts_pending(self) -> bool:
        return self.max_pending is not None or len(self.max_pending_slots) > 0

    def check_pending(self, count: int, slots: ResourceSlot) -> None:
        """Raises LimitExceeded where so many sessions that ask for so much are too many."""
        if self.max_pending is not None and count > self.max_pending:
            message = f"Your policy allows {self.max_pending} sessions to wait at a time."
            raise LimitExceeded(message, data={"pending": self.max_pending})
        over = [name for name in self.max_pending_slots if slots[name] > self.max_pending_slots[name]]
        if over:
            limits = self.max_pending_slots.to_json()
            message = f"Sessions that wait may ask for {limits[over[0]]} of {over[0]} together."
            raise LimitExceeded(message, data={"pending_slots": {name: limits[name] for name in over}})


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateReply:
    """``status`` is the session's, or ``TIMEOUT`` when ``max_wait_s`` ran out first. ``created`` is False for a
    reused one."""

    session: Session
    status: str
    created: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionMatch:
    id: SessionId
    name: str
    status: SessionStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class DestroyReply:
    """``stats`` is version 2 of the client wire contract 2.1.3: metric name -> metric of the main kernel, with
    ``status`` and ``version`` beside them; ``session`` is as it is after the request was taken."""

    session: Session
    stats: Mapping[str, Any]
    destroyed: tuple[SessionId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DependencyNode:
    session: Session
    depends_on: tuple[DependencyNode, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotAudit:
    """What :meth:`SessionStore.audit` found; all empty when the books are right.

    ``drift``: agent -> (recorded, recomputed). ``orphans``: kernels without a session.
    """

    drift: Mapping[AgentId, tuple[ResourceSlot, ResourceSlot]] = field(default_factory=dict)
    orphans: tuple[KernelId, ...] = ()

    @property
    def is_clean(self) -> bool:
        return not self.drift and not self.orphans


def too_many_sessions(limit: int) -> LimitExceeded:
    """What a store raises for the session beyond the owner's limit."""
    return LimitExceeded(f"Your policy allows {limit} sessions at a time.", data={"concurrency": limit})


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionQuery(ListQuery):
    """``statuses``: None is any. ``access_key``, ``domain_name``, ``group_id`` narrow further; the role of the caller
    bounds everything."""

    statuses: tuple[SessionStatus, ...] | None = None
    access_key: str | None = None
    domain_name: str | None = None
    group_id: str | None = None
