"""Defines the values that the planning of an endpoint's replicas reads and returns. Times are unix time, in seconds."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from uuid import UUID

import msgspec

from ai.backend.common.serving import ReplicaStatus, ServingReason
from ai.backend.core.lifecycle.endpoint import ReplicaTrigger


class Replica(msgspec.Struct, frozen=True, kw_only=True):
    """Describes the present state of a replica.

    ``since``: when it entered its status. ``in_flight``: its open requests as workers report them, None if they do not;
    ``in_flight_tokens``: how much work they are, for the choice of what to end.
    """

    id: UUID
    revision: UUID
    status: ReplicaStatus
    since: float
    in_flight: int | None = None
    in_flight_tokens: int = 0


class FailedStarts(msgspec.Struct, frozen=True, kw_only=True):
    """Counts the failures of a revision's replicas since the last time that one of them became ready."""

    count: int
    last_at: float


class RevisionSample(msgspec.Struct, frozen=True, kw_only=True):
    """Counts the requests and errors of a revision, and their speed, in the window that guards look at.

    The window is the same for both revisions.

    ``ttft_p90_s``: seconds to the first byte of a response. None: nothing was measured.
    """

    requests: int = 0
    errors: int = 0
    ttft_p90_s: float | None = None
    tokens_per_s: float | None = None

    @property
    def error_rate(self) -> float:
        return self.errors / self.requests if self.requests else 0.0


class Guard(msgspec.Struct, frozen=True, kw_only=True):
    """Sets the bounds of errors and speed that a new revision must keep; otherwise it is rolled back.

    The bounds are for its share of failed requests, and for the time to its first byte and its tokens a second as parts
    of the old revision's. None is no bound. Nothing is judged below ``min_requests``.
    """

    max_error_rate: float | None = 0.05
    max_ttft_ratio: float | None = None
    min_token_rate_ratio: float | None = None
    min_requests: int = 20


class CanaryStep(msgspec.Struct, frozen=True, kw_only=True):
    """Sends a share of the requests, in per cent, to the new revision for some time.

    None means until a user continues.
    """

    weight: float
    hold_s: float | None = 300.0


class RolloutKind(StrEnum):
    ROLLING = "rolling"
    BLUE_GREEN = "blue-green"
    CANARY = "canary"


class RolloutPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Defines how a revision replaces another revision.

    Attributes:
        max_surge: replicas beyond the wanted number, of those that hold resources; for ``rolling``.
        max_unavailable: ready replicas that may lack meanwhile. If both are zero, one of surge is used.
        steps: of ``canary``.
        soak_s: for which all replicas of ``blue-green`` are ready before the requests turn to them.
        watch_s: for which the old replicas of ``blue-green`` stay after that, while the guard judges the new ones.
        guard: of every kind; None judges nothing.
        deadline_s: after which a roll-out is rolled back.
        max_failures: of starts in a row, after which it is rolled back.
        first_backoff_s, max_backoff_s: between failed starts, doubled each time.
        start_timeout_s: for a replica to become ready.
        unhealthy_s: after which an unhealthy replica is replaced.
        drain_s: for the requests of a replica that is ended.
        quiet_s: after which a draining replica without requests is ended: workers still learn that it drains.
    """

    kind: RolloutKind = RolloutKind.ROLLING
    max_surge: int = 1
    max_unavailable: int = 0
    steps: tuple[CanaryStep, ...] = (CanaryStep(weight=10.0), CanaryStep(weight=50.0))
    soak_s: float = 0.0
    watch_s: float = 60.0
    guard: Guard | None = msgspec.field(default_factory=Guard)
    deadline_s: float = 3600.0
    max_failures: int = 3
    first_backoff_s: float = 5.0
    max_backoff_s: float = 300.0
    start_timeout_s: float = 1800.0
    unhealthy_s: float = 60.0
    drain_s: float = 600.0
    quiet_s: float = 3.0


class RolloutSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Describes an endpoint at one moment, as input of a roll-out plan.

    Attributes:
        desired: wanted replicas.
        active: the revision that is served; None before the first one is.
        target: the revision that is rolled out, or rolled back; None if none is.
        abort_reason: why the target is rolled back; None while it is rolled out.
        replicas: all that are not terminated; terminated ones are passed over.
        step, step_since: the step of a canary, or 1 while a ``blue-green`` revision is watched; and since when.
        started_at: when the roll-out began.
        failures: by revision.
        samples: by revision.
        is_destroying: everything is to end.
    """

    desired: int
    active: UUID | None = None
    target: UUID | None = None
    abort_reason: ServingReason | None = None
    replicas: tuple[Replica, ...] = ()
    step: int = 0
    step_since: float = 0.0
    started_at: float = 0.0
    failures: Mapping[UUID, FailedStarts] = msgspec.field(default_factory=dict)
    samples: Mapping[UUID, RevisionSample] = msgspec.field(default_factory=dict)
    is_destroying: bool = False


class StartReplicas(msgspec.Struct, frozen=True):
    """Creates this many replicas of a revision."""

    revision: UUID
    count: int


class StepReplica(msgspec.Struct, frozen=True):
    """Applies a trigger to a replica (``core.lifecycle.endpoint.step_replica``)."""

    replica: UUID
    trigger: ReplicaTrigger
    reason: ServingReason


class EnterStep(msgspec.Struct, frozen=True):
    """Stores the number of the roll-out's next step, and the time at which the step begins."""

    step: int


class Promote(msgspec.Struct, frozen=True):
    """Makes the target revision ACTIVE, and the previously active revision RETIRING, in one transaction."""

    revision: UUID


class Abort(msgspec.Struct, frozen=True):
    """Moves the target revision to ROLLING_BACK. ``detail`` is a sentence for users."""

    revision: UUID
    reason: ServingReason
    detail: str


class FinishRollback(msgspec.Struct, frozen=True):
    """Applies EMPTIED to the target revision, which has no replica any more."""

    revision: UUID


Action = StartReplicas | StepReplica | EnterStep | Promote | Abort | FinishRollback


class Plan(msgspec.Struct, frozen=True):
    """Holds the actions of one moment, and the request shares of the revisions until the next plan.

    ``weights``: the shares of revisions in the requests, of those with ready replicas; any sum. ``wake_at``: when
    something is due without a change of anything, None if nothing is. ``explanation``: a sentence for users.
    """

    actions: tuple[Action, ...]
    weights: Mapping[UUID, float]
    explanation: str
    wake_at: float | None = None
