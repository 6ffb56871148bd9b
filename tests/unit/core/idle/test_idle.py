"""Idle rules, windows and verdicts."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ai.backend.common.errors import InvalidInput
from ai.backend.common.states import KernelEventReason, SessionType
from ai.backend.core.idle.evaluate import GRACE_PERIOD, Subject, evaluate
from ai.backend.core.idle.rules import Limits, Rules, UtilizationRule, duration_s, read_rules
from ai.backend.core.idle.window import BUCKET_COUNT, Window

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
RULE = UtilizationRule(thresholds={"cpu_util": 10, "mem": 5}, window_s=600, grace_s=300)


def ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


def subject(
    *, age: float = 10_000, quiet: float = 0, kind: SessionType = SessionType.INTERACTIVE, usage: Window | None = None
) -> Subject:
    return Subject(session_type=kind, started_at=ago(age), last_access=ago(quiet), usage=usage)


def used(cpu: float, mem: float, *, seconds: float = 600, until: datetime = NOW) -> Window:
    window = Window(RULE.window_s)
    for i in range(int(seconds // 10), -1, -1):
        window = window.add(until - timedelta(seconds=10 * i), {"cpu_util": cpu, "mem": mem})
    return window


def test_the_configuration_is_read_and_what_is_malformed_is_told() -> None:
    rules = read_rules(
        {
            "enabled": "network_timeout, utilization,cleverness",
            "checkers/network_timeout/threshold": "20m",
            "checkers/utilization/resource-thresholds/cpu_util/average": "30",
            "checkers/utilization/resource-thresholds/mem/average": "lots",
            "checkers/utilization/resource-thresholds/cuda_util/average": "",
            "checkers/utilization/thresholds-check-operator": "or",
            "checkers/utilization/time-window": "12h",
            "checkers/utilization/initial-grace-period": "-1",
        }
    )
    assert rules.network_timeout_s == 1200
    assert rules.utilization == UtilizationRule(
        thresholds={"cpu_util": 30}, needs_all=False, window_s=43_200, grace_s=300
    )
    assert [fault.partition(":")[0].rpartition("/")[2] for fault in rules.faults] == [
        "enabled",
        "average",
        "initial-grace-period",
    ]
    assert read_rules({}) == Rules()
    assert read_rules({"enabled": "utilization"}).utilization is None


def test_durations() -> None:
    assert [duration_s(text) for text in ("90", "90s", "1.5h", " 2d ", "1W")] == [90, 90, 5400, 172_800, 604_800]
    for text in ("", "h", "-1s", "1y", "1e9", "nan", "9" * 40):
        with pytest.raises(InvalidInput):
            duration_s(text)


def test_a_policy_has_the_last_word_on_its_timeout() -> None:
    rules = Rules(network_timeout_s=600)
    assert Limits.of(rules, idle_timeout_s=0).network_timeout_s == 600
    assert Limits.of(rules, idle_timeout_s=30).network_timeout_s == 30
    assert Limits.of(rules, idle_timeout_s=-1).network_timeout_s is None
    assert Limits.of(Rules(), max_lifetime_s=0) == Limits()


def test_quiet_sessions_expire_and_batch_sessions_do_not_wait_for_a_user() -> None:
    limits = Limits(network_timeout_s=60)
    assert evaluate(subject(quiet=59), limits, now=NOW).reason is None
    assert evaluate(subject(quiet=60), limits, now=NOW).reason is KernelEventReason.IDLE_TIMEOUT
    assert evaluate(subject(quiet=64), limits, now=NOW, slack_s=5).reason is None
    assert evaluate(subject(quiet=20), limits, now=NOW).reports["network_timeout"].to_json() == {
        "remaining": 40,
        "remaining_time_type": "expire_after",
        "extra": None,
    }
    for kind in (SessionType.BATCH, SessionType.INFERENCE):
        assert evaluate(subject(quiet=1e6, kind=kind), limits, now=NOW).reports == {}


def test_every_session_has_a_lifetime_if_there_is_one() -> None:
    limits = Limits(lifetime_s=100)
    for kind in SessionType:
        assert evaluate(subject(age=99, kind=kind), limits, now=NOW).reason is None
        assert evaluate(subject(age=100, kind=kind), limits, now=NOW).reason is KernelEventReason.IDLE_SESSION_LIFETIME


def test_utilization_is_judged_after_its_grace_over_a_whole_window() -> None:
    limits = Limits(utilization=RULE)
    low = used(1, 1)
    young = evaluate(subject(age=299, usage=low), limits, now=NOW)
    assert (young.reason, young.reports["utilization"].kind) == (None, GRACE_PERIOD)
    assert evaluate(subject(usage=low), limits, now=NOW).reason is KernelEventReason.IDLE_UTILIZATION
    assert evaluate(subject(usage=used(1, 1, seconds=300)), limits, now=NOW).reason is None
    assert evaluate(subject(usage=used(1, 1, seconds=300)), limits, now=NOW).reports["utilization"].remaining_s == 300
    assert evaluate(subject(usage=used(90, 1)), limits, now=NOW).reason is None, "one threshold is met, and both count"
    either = Limits(utilization=UtilizationRule(thresholds=RULE.thresholds, needs_all=False, window_s=600, grace_s=0))
    assert evaluate(subject(usage=used(90, 1)), either, now=NOW).reason is KernelEventReason.IDLE_UTILIZATION
    told = evaluate(subject(usage=used(90, 1)), limits, now=NOW).reports["utilization"].to_json()
    assert told["extra"] == {
        "resources": {"cpu_util": [90, 10], "mem": [1, 5]},
        "thresholds_check_operator": "and",
    }
    assert told["remaining"] is None
    assert evaluate(subject(), limits, now=NOW).reason is None, "nothing was measured"


def test_time_without_measurements_is_not_idle() -> None:
    usage = used(1, 1, seconds=200, until=ago(400))
    for i in range(20):
        usage = usage.add(ago(190 - 10 * i), {"cpu_util": 1, "mem": 1})
    assert not usage.is_complete(NOW)
    assert evaluate(subject(usage=usage), Limits(utilization=RULE), now=NOW).reason is None


@given(st.lists(st.tuples(st.floats(0, 5_000), st.floats(0, 1e4)), max_size=300))
def test_a_window_is_bounded_and_survives_as_json(measured: list[tuple[float, float]]) -> None:
    window = Window(600.0)
    for offset, value in sorted(measured):
        window = window.add(ago(5_000 - offset), {"cpu_util": value})
    assert len(window.buckets) <= BUCKET_COUNT
    again = Window.from_json(json.loads(json.dumps(window.to_json())), 600.0)
    assert again == window
    assert Window.from_json(window.to_json(), 60.0) == Window(60.0)
    average = window.average("cpu_util", NOW)
    assert average is None or -1e-6 <= average <= 1e4 + 1e-6


@pytest.mark.parametrize("kept", [{}, {"length": 600}, {"length": "x", "buckets": {}}, {"length": 600, "buckets": [1]}])
def test_a_malformed_window_begins_anew(kept: dict[str, object]) -> None:
    assert Window.from_json(kept, 600.0) == Window(600.0)
