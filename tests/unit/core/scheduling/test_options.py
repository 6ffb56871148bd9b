"""What a resource group may say about scheduling."""

from __future__ import annotations

import pytest

from ai.backend.common.errors import InvalidInput
from ai.backend.common.states import SessionType
from ai.backend.core.scheduling.options import GroupOptions, check, order_name, placement_name, read


def test_nothing_said_is_all_defaults() -> None:
    assert check(None, None) == check("fifo", {}) == read({}) == GroupOptions()
    assert read({}).allowed_session_types == frozenset(SessionType)


def test_everything_said_is_read() -> None:
    found = check(
        "FAIR_SHARE",
        {
            "allowed_session_types": ["batch"],
            "pending_timeout": "3600",
            "agent_selection_strategy": "ROUNDROBIN",
            "preemption": {"enabled": True, "mode": "terminate", "order": "oldest", "min_runtime": 60},
            "half_life": 86400,
            "weights": {"default": 2, "default/p": 0.5},
            "max_priority": 30,
            "config": {"num_retries_to_skip": 3},
            "agent_selector_config": {},
            "allow_fractional_resource_fragmentation": True,
            "route_cleanup_target_statuses": ["unhealthy"],
        },
    )
    assert found.allowed_session_types == {SessionType.BATCH}
    assert (found.pending_timeout_s, found.placement, found.half_life_s) == (3600.0, "round-robin", 86400.0)
    assert (found.preemption.enabled, found.preemption.mode) == (True, "terminate")
    assert (found.preemption.order, found.preemption.min_runtime_s) == ("oldest", 60.0)
    assert (found.weights, found.max_priority) == ({"default": 2.0, "default/p": 0.5}, 30)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"pending_timeot": 1}, "did you mean pending_timeout?"),
        ({"colour": 1}, "known are"),
        ({"pending_timeout": -1}, "pending_timeout must be a number of seconds, 0 or more, not -1"),
        ({"pending_timeout": True}, "seconds"),
        ({"pending_timeout": float("nan")}, "seconds"),
        ({"half_life": 0}, "half_life must be a positive number"),
        ({"half_life": "1e999"}, "positive"),
        ({"weights": {"default": 0}}, "weights must be an object of scopes and positive numbers"),
        ({"weights": ["default"]}, "weights"),
        ({"max_priority": 101}, "from 0 to 100"),
        ({"max_priority": 1.5}, "from 0 to 100"),
        ({"allowed_session_types": []}, "interactive, batch, inference"),
        ({"allowed_session_types": ["system"]}, "interactive, batch, inference"),
        ({"agent_selection_strategy": "nearest"}, "concentrated, dispersed"),
        ({"preemption": True}, "preemption must be an object"),
        ({"preemption": {"enabled": "yes"}}, "preemption.enabled must be true or false, not 'yes'"),
        ({"preemption": {"mode": "again"}}, "preemption.mode must be one of terminate, reschedule, not 'again'"),
        ({"preemption": {"mod": "terminate"}}, "did you mean mode?"),
        ({"config": 3}, "config must be an object"),
        ([], "scheduler_opts must be an object"),
    ],
)
def test_bad_options_are_refused_and_read_as_if_not_said(options: object, told: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        check("fifo", options)
    assert told in refused.value.message
    if isinstance(options, dict):
        assert read(options) == GroupOptions(placement=read(options).placement)


def test_all_problems_are_told_at_once() -> None:
    with pytest.raises(InvalidInput) as refused:
        check("sjf", {"half_life": "x", "max_priority": None, "pending_timeout": []})
    assert len(refused.value.data["problems"]) == 3
    assert "unknown scheduler 'sjf'; known are fifo, lifo, drf, fair-share" in refused.value.message


def test_a_placement_plugin_is_a_strategy() -> None:
    assert check("fifo", {"agent_selection_strategy": "mine"}, plugins=["mine"]).placement == "mine"
    assert (order_name("fairshare"), placement_name("legacy"), placement_name("mine")) == (
        "fair-share",
        "dispersed",
        None,
    )
