"""Defines the platform's enumerations of statuses, types and reasons (spec 03-09, 03-11, peer facts 4.6).

``core.lifecycle`` has the transitions between the statuses.
"""

from __future__ import annotations

from enum import StrEnum


class SessionStatus(StrEnum):
    PENDING = "PENDING"
    SCHEDULED = "SCHEDULED"
    PREPARING = "PREPARING"
    PULLING = "PULLING"
    PREPARED = "PREPARED"
    CREATING = "CREATING"
    RUNNING = "RUNNING"
    RESTARTING = "RESTARTING"
    RUNNING_DEGRADED = "RUNNING_DEGRADED"
    TERMINATING = "TERMINATING"
    TERMINATED = "TERMINATED"
    ERROR = "ERROR"
    CANCELLED = "CANCELLED"

    @property
    def is_final(self) -> bool:
        """Returns True if the session has ended and holds no resources."""
        return self in FINAL_SESSION_STATUSES


class KernelStatus(StrEnum):
    PENDING = "PENDING"
    SCHEDULED = "SCHEDULED"
    PREPARING = "PREPARING"
    BUILDING = "BUILDING"
    PULLING = "PULLING"
    PREPARED = "PREPARED"
    CREATING = "CREATING"
    RUNNING = "RUNNING"
    RESTARTING = "RESTARTING"
    RESIZING = "RESIZING"
    SUSPENDED = "SUSPENDED"
    TERMINATING = "TERMINATING"
    TERMINATED = "TERMINATED"
    ERROR = "ERROR"
    CANCELLED = "CANCELLED"

    @property
    def is_final(self) -> bool:
        """Returns True if the kernel has ended and holds no resources."""
        return self in FINAL_KERNEL_STATUSES


FINAL_SESSION_STATUSES = frozenset({SessionStatus.TERMINATED, SessionStatus.ERROR, SessionStatus.CANCELLED})
LIVE_SESSION_STATUSES = tuple(status for status in SessionStatus if status not in FINAL_SESSION_STATUSES)
STARTING_SESSION_STATUSES = (
    SessionStatus.SCHEDULED,
    SessionStatus.PREPARING,
    SessionStatus.PULLING,
    SessionStatus.PREPARED,
    SessionStatus.CREATING,
)
"""Statuses of a session that has agents and does not run yet, in the order of progress."""
RUNNING_SESSION_STATUSES = frozenset({SessionStatus.RUNNING, SessionStatus.RUNNING_DEGRADED})
"""Statuses in which the main kernel of a session runs the user's programs."""
FINAL_KERNEL_STATUSES = frozenset({KernelStatus.TERMINATED, KernelStatus.ERROR, KernelStatus.CANCELLED})


class AgentStatus(StrEnum):
    ALIVE = "ALIVE"
    LOST = "LOST"
    RESTARTING = "RESTARTING"
    TERMINATED = "TERMINATED"


class ClaimStatus(StrEnum):
    """The status of a device claim."""

    UNALLOCATED = "UNALLOCATED"
    ALLOCATING = "ALLOCATING"
    IN_USE = "IN_USE"
    IDLE = "IDLE"
    DELETED = "DELETED"

    @property
    def holds_devices(self) -> bool:
        """Returns True if the claim holds devices."""
        return self in HOLDING_CLAIM_STATUSES


HOLDING_CLAIM_STATUSES = frozenset({ClaimStatus.ALLOCATING, ClaimStatus.IN_USE, ClaimStatus.IDLE})


class SessionType(StrEnum):
    INTERACTIVE = "interactive"
    BATCH = "batch"
    INFERENCE = "inference"


MAIN_PROGRAM_TYPES = frozenset({SessionType.BATCH, SessionType.INFERENCE})
"""The types of sessions whose startup command is their main program: they end when it ends."""


class SessionResult(StrEnum):
    """Lists the outcomes of a batch session's program. UNDEFINED: not ended yet, or a session of another type."""

    UNDEFINED = "UNDEFINED"
    SUCCESS = "SUCCESS"
    FAILURE = "FAILURE"


class ClusterMode(StrEnum):
    SINGLE_NODE = "single-node"
    MULTI_NODE = "multi-node"


class SlotType(StrEnum):
    """The format of a slot's quantity (spec 03-01, "Resource slots")."""

    COUNT = "count"
    BYTES = "bytes"
    UNIQUE = "unique"


class UserRole(StrEnum):
    SUPERADMIN = "superadmin"
    ADMIN = "admin"
    USER = "user"
    MONITOR = "monitor"


class UserStatus(StrEnum):
    """The status of a user. Only active users can sign in; deleted users are kept until purged."""

    ACTIVE = "active"
    INACTIVE = "inactive"
    DELETED = "deleted"
    BEFORE_VERIFICATION = "before-verification"


class GroupType(StrEnum):
    """The kind of a project. Everybody can read a model store and clone its models (spec 03-18, "Model Store")."""

    GENERAL = "GENERAL"
    MODEL_STORE = "MODEL_STORE"


class RunMode(StrEnum):
    QUERY = "query"
    BATCH = "batch"
    CONTINUE = "continue"
    INPUT = "input"


class RunStatus(StrEnum):
    CONTINUED = "continued"
    WAITING_INPUT = "waiting-input"
    CLEAN_FINISHED = "clean-finished"
    BUILD_FINISHED = "build-finished"
    FINISHED = "finished"
    EXEC_TIMEOUT = "exec-timeout"


class KernelEventReason(StrEnum):
    """The cause of a change of a kernel (peer facts 3.5). Free text goes into ``status_data``."""

    UNKNOWN = "unknown"
    USER_REQUESTED = "user-requested"
    FORCE_TERMINATED = "force-terminated"
    SELF_TERMINATED = "self-terminated"
    TASK_FINISHED = "task-finished"
    TASK_FAILED = "task-failed"
    TASK_TIMEOUT = "task-timeout"
    EXEC_TIMEOUT = "exec-timeout"
    FAILED_TO_CREATE = "failed-to-create"
    FAILED_TO_START = "failed-to-start"
    CREATION_DENIED = "creation-denied"
    CREATION_DEFERRED = "creation-deferred"
    NEW_WORKLOAD_STARTED = "new-container-started"
    RESTARTING = "restarting"
    RESTART_TIMEOUT = "restart-timeout"
    PENDING_TIMEOUT = "pending-timeout"
    IDLE_TIMEOUT = "idle-timeout"
    IDLE_SESSION_LIFETIME = "idle-session-lifetime"
    IDLE_UTILIZATION = "idle-utilization"
    OUT_OF_MEMORY = "out-of-memory"
    ANOMALY_DETECTED = "anomaly-detected"
    AGENT_TERMINATION = "agent-termination"
    AGENT_LOST = "agent-lost"
    RESUMING_AGENT_OPERATION = "resuming-agent-operation"
    WORKLOAD_NOT_FOUND = "container-not-found"
    NOT_FOUND_IN_MANAGER = "not-found-in-manager"
    SIBLING_FAILED = "sibling-failed"
    DEPENDENCY_FAILED = "dependency-failed"
    PREEMPTED = "preempted"
    RESCHEDULED = "rescheduled"
    """Preempted, and waiting again once nothing of it is left."""


class Enforcement(StrEnum):
    """The way in which a runtime enforces a limit, as measured by a probe."""

    ENFORCED = "enforced"
    """The operating system keeps the workload inside the limit."""
    WATCHED = "watched"
    """The agent measures, and acts or reports after the fact."""
    NONE = "none"
    """The limit is not enforced."""
