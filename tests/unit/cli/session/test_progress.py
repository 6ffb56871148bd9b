import json
from typing import Any

import pytest

from ai.backend.cli.session.progress import describe_devices, describe_history, describe_usage, status_reason


@pytest.mark.parametrize(
    ("found", "text"),
    [
        ({}, ""),
        ({"status_info": "user-requested", "status_data": None}, "user-requested"),
        ({"status_info": None, "status_data": '{"scheduler": {"msg": "not enough mem"}}'}, "not enough mem"),
        ({"status_data": {"scheduler": {"failed_predicates": [{"name": "a", "msg": "b"}, {"name": "c"}]}}}, "b; c"),
        ({"status_info": "failed", "status_data": {"error": {"repr": "E()"}, "scheduler": 5}}, "failed; E()"),
        ({"status_info": "same", "status_data": {"error": {"message": "same"}}}, "same"),
        ({"status_data": "no json"}, ""),
    ],
)
def test_why_a_session_is_where_it_is(found: dict[str, object], text: str) -> None:
    assert status_reason(found) == text


def test_the_life_cycle_is_told_in_order_of_time() -> None:
    history = {
        "running": "2026-01-01T00:00:00.250+00:00",
        "PENDING": "2026-01-01T00:00:00+00:00",
        "terminated": None,
        "SCHEDULED": "2026-01-01T00:00:00.010+00:00",
    }
    assert describe_history(history) == "PENDING → SCHEDULED +10 ms → RUNNING +250 ms"
    assert describe_history({"terminated": None}) == ""


def test_devices_without_cpu_and_memory() -> None:
    containers: list[dict[str, Any]] = [
        {"attached_devices": '{"cpu": [{"device_id": "0"}], "mock": [{"device_id": "m0", "model_name": "Mock"}]}'},
        {"attached_devices": {"mock": [{"device_id": "m1", "model_name": None}]}},
        {"attached_devices": None},
    ]
    assert describe_devices(containers) == "mock: Mock (m0), device (m1)"


def test_statuses_of_one_moment_stay_in_their_order() -> None:
    moment = "2026-11-21T09:00:00+00:00"
    history = {"pending": moment, "preparing": moment, "creating": moment}
    assert describe_history(history) == "PENDING → PREPARING +0 ms → CREATING +0 ms"


def test_the_usage_of_kernels_has_their_devices() -> None:
    live = {
        "mem": {"current": "1048576", "capacity": "2097152", "unit_hint": "bytes"},
        "mock_power": {"current": "75", "unit_hint": "watt"},
    }
    main = {"cluster_hostname": "main1", "live_stat": json.dumps(live), "last_stat": None}
    ended = {"cluster_hostname": "sub1", "live_stat": None, "last_stat": json.dumps({"cpu_util": {"current": "3"}})}
    assert describe_usage([main]) == "mem 1.0 MiB of 2.0 MiB, mock_power 75 W"
    assert describe_usage([main, ended]) == "main1: mem 1.0 MiB of 2.0 MiB, mock_power 75 W; sub1: cpu_util 3"
    assert describe_usage([{"cluster_hostname": "main1"}]) == ""
