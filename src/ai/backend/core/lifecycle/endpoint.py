"""Defines the state machines of an endpoint, of its revisions and of their replicas (spec 03-12; serving anchors 6 to
8).

Rules:

1. Only a replica that is READY gets requests. It becomes READY when its probes and one smoke request have passed, and
   leaves the routes as soon as its probes fail.
2. What has been READY ends by DRAINING, also when it is unhealthy: its streams may still be whole. What has not is
   TERMINATING at once.
3. A replica is TERMINATED when its session has ended, whoever ended it. A session that ends by itself is a failure of
   the replica; what is DRAINING or TERMINATING keeps the reason why it was to end.
4. One revision is ACTIVE at most, and one is ROLLING_OUT at most; the manager steps the old one by `superseded` in the
   transaction that promotes the new one. What is rolled back keeps the old revision ACTIVE all the time.
5. A revision that is RETIRED or FAILED may be rolled out again.
6. The status of an endpoint follows its replicas (:func:`observe_endpoint`). An IDLE one is woken by a request; one
   that is being destroyed admits no request of a user any more.
7. What users ask for is refused where it has no row; any other trigger without a row is late or repeated and changes
   nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import StrEnum
from typing import Any, Generic, TypeVar

import msgspec

from ai.backend.common.serving import EndpointStatus, ReplicaStatus, ServedRevisionStatus, ServingReason
from ai.backend.core.lifecycle.transition import Transition, Transitions, find_row

R = ReplicaStatus
V = ServedRevisionStatus
N = EndpointStatus
W = ServingReason


class ServingEffect(StrEnum):
    """Lists the effects of stored transitions. The manager's loop can repeat each effect from the status alone.

    ``publish-route``, ``withdraw-route``: the coordinator gets the endpoint's routes anew. ``end-session``: the session
    of the replica is ended. ``reconcile``: the loop of endpoints runs now. ``remove-circuit``: the URL is given up.
    """

    PUBLISH_ROUTE = "publish-route"
    WITHDRAW_ROUTE = "withdraw-route"
    END_SESSION = "end-session"
    RECONCILE = "reconcile"
    REMOVE_CIRCUIT = "remove-circuit"


E = ServingEffect
Effects = tuple[ServingEffect, ...]


class ReplicaTrigger(StrEnum):
    SESSION_STARTED = "session-started"
    PROBES_PASSED = "probes-passed"
    PROBES_FAILED = "probes-failed"
    START_TIMED_OUT = "start-timed-out"
    UNHEALTHY_TOO_LONG = "unhealthy-too-long"
    END_REQUESTED = "end-requested"
    DRAINED = "drained"
    DRAIN_TIMED_OUT = "drain-timed-out"
    SESSION_ENDED = "session-ended"


T = ReplicaTrigger
ReplicaRow = tuple[ReplicaStatus, Effects]

REPLICA_TRANSITIONS: Mapping[ReplicaStatus, Mapping[ReplicaTrigger, ReplicaRow]] = {
    R.PROVISIONING: {
        T.SESSION_STARTED: (R.WARMING, ()),
        T.START_TIMED_OUT: (R.TERMINATING, (E.END_SESSION,)),
        T.END_REQUESTED: (R.TERMINATING, (E.END_SESSION,)),
        T.SESSION_ENDED: (R.TERMINATED, (E.RECONCILE,)),
    },
    R.WARMING: {
        T.PROBES_PASSED: (R.READY, (E.PUBLISH_ROUTE, E.RECONCILE)),
        T.START_TIMED_OUT: (R.TERMINATING, (E.END_SESSION,)),
        T.END_REQUESTED: (R.TERMINATING, (E.END_SESSION,)),
        T.SESSION_ENDED: (R.TERMINATED, (E.RECONCILE,)),
    },
    R.READY: {
        T.PROBES_FAILED: (R.UNHEALTHY, (E.WITHDRAW_ROUTE, E.RECONCILE)),
        T.END_REQUESTED: (R.DRAINING, (E.WITHDRAW_ROUTE,)),
        T.SESSION_ENDED: (R.TERMINATED, (E.WITHDRAW_ROUTE, E.RECONCILE)),
    },
    R.UNHEALTHY: {
        T.PROBES_PASSED: (R.READY, (E.PUBLISH_ROUTE, E.RECONCILE)),
        T.UNHEALTHY_TOO_LONG: (R.DRAINING, (E.RECONCILE,)),
        T.END_REQUESTED: (R.DRAINING, ()),
        T.SESSION_ENDED: (R.TERMINATED, (E.RECONCILE,)),
    },
    R.DRAINING: {
        T.DRAINED: (R.TERMINATING, (E.END_SESSION,)),
        T.DRAIN_TIMED_OUT: (R.TERMINATING, (E.END_SESSION,)),
        T.SESSION_ENDED: (R.TERMINATED, (E.RECONCILE,)),
    },
    R.TERMINATING: {
        T.SESSION_ENDED: (R.TERMINATED, (E.RECONCILE,)),
    },
    R.TERMINATED: {},
}
_REPLICA_REASONS: Mapping[ReplicaTrigger, ServingReason] = {
    T.SESSION_STARTED: W.SESSION_STARTED,
    T.PROBES_PASSED: W.PROBES_PASSED,
    T.PROBES_FAILED: W.PROBES_FAILED,
    T.START_TIMED_OUT: W.START_TIMED_OUT,
    T.UNHEALTHY_TOO_LONG: W.UNHEALTHY_TOO_LONG,
    T.END_REQUESTED: W.REMOVED_BY_USER,
}
_ENDING = frozenset({R.DRAINING, R.TERMINATING})


class RevisionTrigger(StrEnum):
    ROLLOUT_STARTED = "rollout-started"
    PROMOTED = "promoted"
    SUPERSEDED = "superseded"
    ABORTED = "aborted"
    CANCEL_REQUESTED = "cancel-requested"
    EMPTIED = "emptied"
    ROLLOUT_REQUESTED = "rollout-requested"
    ENDPOINT_DESTROYED = "endpoint-destroyed"


U = RevisionTrigger
RevisionRow = tuple[ServedRevisionStatus, Effects]

REVISION_TRANSITIONS: Mapping[ServedRevisionStatus, Mapping[RevisionTrigger, RevisionRow]] = {
    V.PENDING: {
        U.ROLLOUT_STARTED: (V.ROLLING_OUT, (E.RECONCILE,)),
        U.SUPERSEDED: (V.RETIRED, ()),
        U.CANCEL_REQUESTED: (V.RETIRED, ()),
        U.ENDPOINT_DESTROYED: (V.RETIRED, ()),
    },
    V.ROLLING_OUT: {
        U.PROMOTED: (V.ACTIVE, (E.PUBLISH_ROUTE, E.RECONCILE)),
        U.ABORTED: (V.ROLLING_BACK, (E.WITHDRAW_ROUTE, E.RECONCILE)),
        U.CANCEL_REQUESTED: (V.ROLLING_BACK, (E.WITHDRAW_ROUTE, E.RECONCILE)),
        U.SUPERSEDED: (V.ROLLING_BACK, (E.WITHDRAW_ROUTE, E.RECONCILE)),
        U.ENDPOINT_DESTROYED: (V.RETIRING, (E.WITHDRAW_ROUTE,)),
    },
    V.ACTIVE: {
        U.SUPERSEDED: (V.RETIRING, (E.WITHDRAW_ROUTE, E.RECONCILE)),
        U.ENDPOINT_DESTROYED: (V.RETIRING, (E.WITHDRAW_ROUTE,)),
    },
    V.RETIRING: {
        U.EMPTIED: (V.RETIRED, ()),
    },
    V.RETIRED: {
        U.ROLLOUT_REQUESTED: (V.PENDING, (E.RECONCILE,)),
    },
    V.ROLLING_BACK: {
        U.EMPTIED: (V.FAILED, (E.RECONCILE,)),
        U.ENDPOINT_DESTROYED: (V.RETIRING, ()),
    },
    V.FAILED: {
        U.ROLLOUT_REQUESTED: (V.PENDING, (E.RECONCILE,)),
    },
}
REVISION_REQUESTS = frozenset({U.CANCEL_REQUESTED, U.ROLLOUT_REQUESTED})
_REVISION_REASONS: Mapping[RevisionTrigger, ServingReason] = {
    U.ROLLOUT_STARTED: W.ROLLOUT_STARTED,
    U.PROMOTED: W.PROMOTED,
    U.SUPERSEDED: W.SUPERSEDED,
    U.ABORTED: W.GUARD_TRIPPED,
    U.CANCEL_REQUESTED: W.CANCELLED,
    U.ROLLOUT_REQUESTED: W.CREATED,
    U.ENDPOINT_DESTROYED: W.ENDPOINT_DESTROYED,
}


class EndpointTrigger(StrEnum):
    ALL_READY = "all-ready"
    SOME_READY = "some-ready"
    NONE_READY = "none-ready"
    SCALED_TO_ZERO = "scaled-to-zero"
    WOKEN = "woken"
    CHANGE_REQUESTED = "change-requested"
    DESTROY_REQUESTED = "destroy-requested"
    EMPTIED = "emptied"


X = EndpointTrigger
EndpointRow = tuple[EndpointStatus, Effects]
_RECONCILE: Effects = (E.RECONCILE,)

ENDPOINT_TRANSITIONS: Mapping[EndpointStatus, Mapping[EndpointTrigger, EndpointRow]] = {
    N.PROVISIONING: {
        X.ALL_READY: (N.HEALTHY, ()),
        X.SOME_READY: (N.DEGRADED, ()),
        X.SCALED_TO_ZERO: (N.IDLE, ()),
        X.CHANGE_REQUESTED: (N.PROVISIONING, _RECONCILE),
        X.DESTROY_REQUESTED: (N.DESTROYING, _RECONCILE),
    },
    N.HEALTHY: {
        X.SOME_READY: (N.DEGRADED, ()),
        X.NONE_READY: (N.UNHEALTHY, ()),
        X.SCALED_TO_ZERO: (N.IDLE, ()),
        X.CHANGE_REQUESTED: (N.HEALTHY, _RECONCILE),
        X.DESTROY_REQUESTED: (N.DESTROYING, _RECONCILE),
    },
    N.DEGRADED: {
        X.ALL_READY: (N.HEALTHY, ()),
        X.NONE_READY: (N.UNHEALTHY, ()),
        X.SCALED_TO_ZERO: (N.IDLE, ()),
        X.CHANGE_REQUESTED: (N.DEGRADED, _RECONCILE),
        X.DESTROY_REQUESTED: (N.DESTROYING, _RECONCILE),
    },
    N.UNHEALTHY: {
        X.ALL_READY: (N.HEALTHY, ()),
        X.SOME_READY: (N.DEGRADED, ()),
        X.SCALED_TO_ZERO: (N.IDLE, ()),
        X.CHANGE_REQUESTED: (N.UNHEALTHY, _RECONCILE),
        X.DESTROY_REQUESTED: (N.DESTROYING, _RECONCILE),
    },
    N.IDLE: {
        X.WOKEN: (N.PROVISIONING, _RECONCILE),
        X.ALL_READY: (N.HEALTHY, ()),
        X.SOME_READY: (N.DEGRADED, ()),
        X.NONE_READY: (N.PROVISIONING, ()),
        X.CHANGE_REQUESTED: (N.IDLE, _RECONCILE),
        X.DESTROY_REQUESTED: (N.DESTROYING, _RECONCILE),
    },
    N.DESTROYING: {
        X.DESTROY_REQUESTED: (N.DESTROYING, _RECONCILE),
        X.EMPTIED: (N.DESTROYED, (E.REMOVE_CIRCUIT,)),
    },
    N.DESTROYED: {},
}
ENDPOINT_REQUESTS = frozenset({X.CHANGE_REQUESTED, X.DESTROY_REQUESTED})
_ENDPOINT_REASONS: Mapping[EndpointTrigger, ServingReason] = {
    X.ALL_READY: W.ALL_READY,
    X.SOME_READY: W.SOME_READY,
    X.NONE_READY: W.NONE_READY,
    X.SCALED_TO_ZERO: W.SCALED_TO_ZERO,
    X.WOKEN: W.REQUEST_ARRIVED,
    X.DESTROY_REQUESTED: W.REMOVED_BY_USER,
    X.EMPTIED: W.DRAINED,
}

S = TypeVar("S", ReplicaStatus, ServedRevisionStatus, EndpointStatus)


class Served(msgspec.Struct, Generic[S], frozen=True):
    """Holds the status of an endpoint, revision or replica, and the reason for the status."""

    status: S
    reason: ServingReason = ServingReason.CREATED


def step_replica(
    state: Served[ReplicaStatus],
    trigger: ReplicaTrigger,
    *,
    reason: ServingReason | None = None,
    subject: str = "replica",
    stimulus_id: str = "",
    recent_transitions: Transitions = (),
) -> tuple[Served[ReplicaStatus], Transitions, Effects]:
    """Applies one trigger to a replica. ``reason`` says why its end is requested, or why its session has ended.

    Returns:
        The next state, the transition that led there, and what is to follow once it is stored; the same state and
        nothing else if the trigger is late or repeated.
    """
    row = _find_row(REPLICA_TRANSITIONS, (), state.status, trigger, subject, stimulus_id, recent_transitions)
    if row is None:
        return state, (), ()
    next_status, effects = row
    if state.status in _ENDING:
        end_reason = state.reason
    elif trigger is T.SESSION_ENDED:
        had_started = state.status not in (R.PROVISIONING, R.WARMING)
        end_reason = reason or (W.SESSION_LOST if had_started else W.START_FAILED)
    else:
        end_reason = reason or _REPLICA_REASONS[trigger]
    return Served(next_status, end_reason), (Transition(state.status, trigger, next_status, stimulus_id),), effects


def step_revision(
    state: Served[ServedRevisionStatus],
    trigger: RevisionTrigger,
    *,
    reason: ServingReason | None = None,
    subject: str = "revision",
    stimulus_id: str = "",
    recent_transitions: Transitions = (),
) -> tuple[Served[ServedRevisionStatus], Transitions, Effects]:
    """Applies one trigger to a revision. ``reason`` says why it is aborted.

    Returns:
        As :func:`step_replica`.

    Raises:
        InvalidTransition: the status does not admit what a user asks for.
    """
    row = _find_row(
        REVISION_TRANSITIONS, REVISION_REQUESTS, state.status, trigger, subject, stimulus_id, recent_transitions
    )
    if row is None:
        return state, (), ()
    next_status, effects = row
    new_reason = state.reason if trigger is U.EMPTIED else reason or _REVISION_REASONS[trigger]
    return Served(next_status, new_reason), (Transition(state.status, trigger, next_status, stimulus_id),), effects


def step_endpoint(
    state: Served[EndpointStatus],
    trigger: EndpointTrigger,
    *,
    reason: ServingReason | None = None,
    subject: str = "endpoint",
    stimulus_id: str = "",
    recent_transitions: Transitions = (),
) -> tuple[Served[EndpointStatus], Transitions, Effects]:
    """Applies one trigger to an endpoint.

    Returns:
        As :func:`step_replica`.

    Raises:
        InvalidTransition: it is being destroyed, and a user asks for something else.
    """
    row = _find_row(
        ENDPOINT_TRANSITIONS, ENDPOINT_REQUESTS, state.status, trigger, subject, stimulus_id, recent_transitions
    )
    if row is None:
        return state, (), ()
    next_status, effects = row
    new_reason = state.reason if next_status is state.status else reason or _ENDPOINT_REASONS[trigger]
    return Served(next_status, new_reason), (Transition(state.status, trigger, next_status, stimulus_id),), effects


def observe_endpoint(desired: int, replicas: Collection[ReplicaStatus]) -> EndpointTrigger:
    """Returns the trigger of an endpoint that follows from its replicas' statuses and the ``desired`` number."""
    ready_count = sum(status is R.READY for status in replicas)
    if desired == 0 and ready_count == 0:
        return X.SCALED_TO_ZERO
    if ready_count >= max(desired, 1):
        return X.ALL_READY
    return X.SOME_READY if ready_count else X.NONE_READY


def _find_row(
    table: Mapping[Any, Mapping[Any, Any]],
    requests: Collection[str],
    status: StrEnum,
    trigger: StrEnum,
    subject: str,
    stimulus_id: str,
    recent_transitions: Transitions,
) -> Any:
    message = f"The {subject} is {status}."
    return find_row(
        table,
        requests,
        status,
        trigger,
        message=message,
        subject=subject,
        stimulus_id=stimulus_id,
        recent_transitions=recent_transitions,
    )
