"""Vocabularies of model serving: endpoints, their revisions and replicas; ``core.lifecycle.endpoint`` has their
transitions (spec 03-12, "Working with model service"; serving anchors 6 to 8)."""

from __future__ import annotations

from enum import StrEnum


class EndpointStatus(StrEnum):
    """The status of an endpoint of a model service, which says how many of its wanted replicas are ready.

    ``idle``: no replica is wanted now, and the next request starts one. ``degraded``: fewer replicas are ready than are
    wanted. ``unhealthy``: none is, though some were.
    """

    PROVISIONING = "provisioning"
    HEALTHY = "healthy"
    DEGRADED = "degraded"
    UNHEALTHY = "unhealthy"
    IDLE = "idle"
    DESTROYING = "destroying"
    DESTROYED = "destroyed"


class ServedRevisionStatus(StrEnum):
    """The status of an endpoint's revision during its roll-out, its use, and its replacement.

    ``pending``: waits for an earlier roll-out. ``retired``: may be rolled out again.
    """

    PENDING = "pending"
    ROLLING_OUT = "rolling-out"
    ACTIVE = "active"
    RETIRING = "retiring"
    RETIRED = "retired"
    ROLLING_BACK = "rolling-back"
    FAILED = "failed"


class ReplicaStatus(StrEnum):
    """The status of a replica of an endpoint, from the creation of its session to the session's end.

    ``provisioning``: its session is not running yet. ``warming``: probed, without requests. ``draining``: gets no new
    requests, while those that it has may end. ``terminating``: its session is being ended.
    """

    PROVISIONING = "provisioning"
    WARMING = "warming"
    READY = "ready"
    UNHEALTHY = "unhealthy"
    DRAINING = "draining"
    TERMINATING = "terminating"
    TERMINATED = "terminated"


class ServingReason(StrEnum):
    """The reason for the present status of an endpoint, of its revision or of its replica."""

    CREATED = "created"
    SESSION_STARTED = "session-started"
    PROBES_PASSED = "probes-passed"
    PROBES_FAILED = "probes-failed"
    START_TIMED_OUT = "start-timed-out"
    START_FAILED = "start-failed"
    SESSION_LOST = "session-lost"
    UNHEALTHY_TOO_LONG = "unhealthy-too-long"
    SCALED_DOWN = "scaled-down"
    SCALED_TO_ZERO = "scaled-to-zero"
    REQUEST_ARRIVED = "request-arrived"
    SCALED_UP = "scaled-up"
    SUPERSEDED = "superseded"
    ROLLOUT_STARTED = "rollout-started"
    PROMOTED = "promoted"
    GUARD_TRIPPED = "guard-tripped"
    DEADLINE_PASSED = "deadline-passed"
    CANCELLED = "cancelled"
    REMOVED_BY_USER = "removed-by-user"
    ENDPOINT_DESTROYED = "endpoint-destroyed"
    DRAINED = "drained"
    DRAIN_TIMED_OUT = "drain-timed-out"
    ALL_READY = "all-ready"
    SOME_READY = "some-ready"
    NONE_READY = "none-ready"


START_FAILURES = frozenset({ServingReason.START_TIMED_OUT, ServingReason.START_FAILED})
"""Reasons of replicas that never became ready."""
FAILURES = START_FAILURES | {ServingReason.SESSION_LOST, ServingReason.UNHEALTHY_TOO_LONG}
"""Reasons of replicas that nobody asked to end; the next ones are started with growing delays."""
