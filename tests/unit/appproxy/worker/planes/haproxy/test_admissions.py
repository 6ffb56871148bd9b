"""Cookies that HAProxy passes on by itself: one user cannot use up the place of all."""

from __future__ import annotations

from uuid import UUID

from ai.backend.appproxy.worker.planes.haproxy.admissions import ADMISSION_S, MAX_OF_CIRCUIT, Admissions

OWN, OTHER = UUID(int=1), UUID(int=2)


def test_the_newest_cookies_of_a_circuit_stay_and_leave_room_for_others() -> None:
    admissions, removed = Admissions(), []
    for i in range(60_000):
        removed += admissions.add(OWN, f"{i}/own", now=0.0) or []
    assert len(admissions.expiries_by_key) == MAX_OF_CIRCUIT
    assert "59999/own" in admissions.expiries_by_key
    assert removed == [f"{i}/own" for i in range(60_000 - MAX_OF_CIRCUIT)]
    assert admissions.add(OTHER, "1/other", now=1.0) == []
    assert admissions.add(OTHER, "1/other", now=2.0) is None
    assert len(admissions.take_keys(now=ADMISSION_S)) == MAX_OF_CIRCUIT
    assert admissions.add(OWN, "1/own", now=ADMISSION_S) == []
    assert admissions.take_keys(circuit=OWN) == ["1/own"]
    assert admissions.take_keys(circuit=OWN) == []
    assert list(admissions.expiries_by_key) == ["1/other"]
