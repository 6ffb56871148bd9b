from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

import pytest

from ai.backend.common.structs import replace
from ai.backend.common.wire.appproxy import AppMode, Change, Circuit, State
from ai.backend.core.proxy.changes import DRAIN_S, Changes, Effects, changes_of, effects_of, removed_ids
from ai.backend.core.proxy.routing import key_of
from tests.support.proxy_apps import circuit_to, route_to

CIRCUIT = circuit_to(route_to(8001), route_to(8002), port=10205)


def changed(**fields: Any) -> Circuit:
    return replace(CIRCUIT, **fields)


@pytest.mark.parametrize(
    "after",
    [
        None,
        changed(open_to_public=False),
        changed(allowed_client_ips="192.0.2.0/24"),
        changed(user_id=uuid4()),
        changed(port=10206),
        changed(app_mode=AppMode.INFERENCE),
    ],
)
def test_a_step_that_takes_access_away_revokes(after: Circuit | None) -> None:
    assert effects_of(CIRCUIT, after) == Effects(is_revoked=True)


@pytest.mark.parametrize("after", [CIRCUIT, changed(arguments="x"), changed(updated_at="later")])
def test_other_steps_leave_connections_alone(after: Circuit) -> None:
    assert effects_of(CIRCUIT, after) == Effects()


def test_wider_access_revokes_nothing() -> None:
    narrow = changed(open_to_public=False, allowed_client_ips="192.0.2.0/24")
    assert effects_of(narrow, CIRCUIT) == Effects()
    assert effects_of(None, CIRCUIT) == Effects()


@pytest.mark.parametrize("mode", AppMode)
def test_removed_routes_drain_as_long_as_their_kind_says(mode: AppMode) -> None:
    before = changed(app_mode=mode)
    after = replace(before, route_info=before.route_info[1:])
    effects = effects_of(before, after)
    assert effects == Effects(drained=frozenset([key_of(before.route_info[0])]), drain_s=DRAIN_S[mode])


def test_a_changed_weight_drains_nothing() -> None:
    routes = [replace(route, traffic_ratio=0.0) for route in CIRCUIT.route_info]
    assert effects_of(CIRCUIT, changed(route_info=routes)) == Effects()


def test_only_a_state_removes_what_it_does_not_name() -> None:
    other = UUID(int=1)
    state, change = State(version=3, circuits=[CIRCUIT]), Change(version=4, set=[CIRCUIT], removed=[other])
    assert removed_ids(changes_of(state), [CIRCUIT.id, other]) == {other}
    assert removed_ids(changes_of(change), [CIRCUIT.id, UUID(int=2)]) == {other}
    assert changes_of(change) == Changes(version=4, circuits=(CIRCUIT,), removed=(other,))
