"""The machines of model serving: what users are refused, what is late, and the reason of every state."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ai.backend.common.serving import EndpointStatus, ReplicaStatus, ServedRevisionStatus, ServingReason
from ai.backend.core.lifecycle.endpoint import (
    ENDPOINT_REQUESTS,
    ENDPOINT_TRANSITIONS,
    REPLICA_TRANSITIONS,
    REVISION_REQUESTS,
    REVISION_TRANSITIONS,
    EndpointTrigger,
    ReplicaTrigger,
    RevisionTrigger,
    Served,
    ServingEffect,
    observe_endpoint,
    step_endpoint,
    step_replica,
    step_revision,
)
from ai.backend.core.lifecycle.transition import InvalidTransition

R = ReplicaStatus
T = ReplicaTrigger


@pytest.mark.parametrize(
    ("table", "statuses", "final"),
    [
        (ENDPOINT_TRANSITIONS, EndpointStatus, {EndpointStatus.DESTROYED}),
        (REVISION_TRANSITIONS, ServedRevisionStatus, set()),
        (REPLICA_TRANSITIONS, ReplicaStatus, {ReplicaStatus.TERMINATED}),
    ],
)
def test_tables_are_total_and_every_status_is_reached_and_left(
    table: Mapping[Any, Mapping[Any, Any]], statuses: Any, final: set[Any]
) -> None:
    assert set(table) == set(statuses)
    first = next(iter(statuses))
    reached = {row[0] for state, rows in table.items() for row in rows.values() if row[0] is not state}
    assert reached | {first} == set(statuses)
    left = {state for state, rows in table.items() if any(row[0] is not state for row in rows.values())}
    assert left == set(statuses) - final


@pytest.mark.parametrize(("status", "trigger"), list(product(R, T)))
def test_every_pair_of_a_replica(status: ReplicaStatus, trigger: ReplicaTrigger) -> None:
    before = Served(status, ServingReason.SCALED_DOWN)
    after, path, effects = step_replica(before, trigger, stimulus_id="loop")
    row = REPLICA_TRANSITIONS[status].get(trigger)
    if row is None:
        assert (after, path, effects) == (before, (), ()), "late or repeated"
        return
    assert after.status is row[0]
    assert effects == row[1]
    assert (path[0].before, path[0].after, path[0].stimulus_id) == (status, row[0], "loop")
    if status in (R.DRAINING, R.TERMINATING):
        assert after.reason is ServingReason.SCALED_DOWN, "the reason why it was to end stays"


@given(st.lists(st.sampled_from(T), max_size=12))
def test_only_ready_replicas_are_in_the_routes_and_what_was_ready_drains(triggers: list[ReplicaTrigger]) -> None:
    state, is_published, was_ready = Served(R.PROVISIONING), False, False
    for trigger in triggers:
        before = state
        state, _, effects = step_replica(state, trigger)
        if ServingEffect.PUBLISH_ROUTE in effects:
            is_published = True
        if ServingEffect.WITHDRAW_ROUTE in effects:
            is_published = False
        assert is_published == (state.status is R.READY)
        was_ready = was_ready or state.status is R.READY
        if was_ready and state.status is R.TERMINATING and before.status is not R.TERMINATING:
            assert before.status is R.DRAINING
        if state.status is R.TERMINATING and before.status is not state.status:
            assert ServingEffect.END_SESSION in effects


def test_a_session_that_ends_by_itself_says_so() -> None:
    lost, _, _ = step_replica(Served(R.READY), T.SESSION_ENDED)
    unborn, _, _ = step_replica(Served(R.WARMING), T.SESSION_ENDED)
    asked, _, _ = step_replica(Served(R.TERMINATING, ServingReason.SUPERSEDED), T.SESSION_ENDED)
    reasons = (lost.reason, unborn.reason, asked.reason)
    assert reasons == (ServingReason.SESSION_LOST, ServingReason.START_FAILED, ServingReason.SUPERSEDED)


@pytest.mark.parametrize(("status", "trigger"), list(product(ServedRevisionStatus, RevisionTrigger)))
def test_every_pair_of_a_revision(status: ServedRevisionStatus, trigger: RevisionTrigger) -> None:
    before = Served(status, ServingReason.GUARD_TRIPPED)
    row = REVISION_TRANSITIONS[status].get(trigger)
    if row is None and trigger in REVISION_REQUESTS:
        with pytest.raises(InvalidTransition, match=status.value):
            step_revision(before, trigger)
        return
    after, path, _ = step_revision(before, trigger)
    assert after.status is (row[0] if row else status)
    assert bool(path) == (row is not None)
    if trigger is RevisionTrigger.EMPTIED:
        assert after.reason is before.reason


@pytest.mark.parametrize(("status", "trigger"), list(product(EndpointStatus, EndpointTrigger)))
def test_every_pair_of_an_endpoint(status: EndpointStatus, trigger: EndpointTrigger) -> None:
    before = Served(status, ServingReason.ALL_READY)
    row = ENDPOINT_TRANSITIONS[status].get(trigger)
    if row is None and trigger in ENDPOINT_REQUESTS:
        with pytest.raises(InvalidTransition, match=status.value):
            step_endpoint(before, trigger)
        return
    after, _, effects = step_endpoint(before, trigger)
    assert after.status is (row[0] if row else status)
    if row and row[0] is status:
        assert (after.reason, effects) == (before.reason, (ServingEffect.RECONCILE,))


@pytest.mark.parametrize(
    ("desired", "replicas", "expected"),
    [
        (0, [], EndpointTrigger.SCALED_TO_ZERO),
        (0, [R.TERMINATING], EndpointTrigger.SCALED_TO_ZERO),
        (0, [R.READY], EndpointTrigger.ALL_READY),
        (2, [R.READY, R.READY], EndpointTrigger.ALL_READY),
        (2, [R.READY, R.UNHEALTHY], EndpointTrigger.SOME_READY),
        (2, [R.WARMING], EndpointTrigger.NONE_READY),
    ],
)
def test_an_endpoint_follows_its_replicas(
    desired: int, replicas: list[ReplicaStatus], expected: EndpointTrigger
) -> None:
    assert observe_endpoint(desired, replicas) is expected
