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
        ({"pending_timeot": 1}, "scheduler_opts: Object contains unknown field `pending_timeot`"),
        ({"pending_timeout": -1}, "scheduler_opts.pending_timeout: Expected `float` >= 0.0"),
        ({"pending_timeout": True}, "scheduler_opts.pending_timeout: Expected `float`, got `bool`"),
        ({"pending_timeout": float("nan")}, "scheduler_opts.pending_timeout: Expected `float`"),
        ({"pending_timeout": float("inf")}, "scheduler_opts.pending_timeout: Expected `float` <= 1000000000000.0"),
        ({"half_life": 0}, "scheduler_opts.half_life: Expected `float` > 0.0"),
        ({"half_life": "1e999"}, "scheduler_opts.half_life: Number out of range"),
        ({"weights": {"default": 0}}, "scheduler_opts.weights[...]: Expected `float` > 0.0"),
        ({"weights": ["default"]}, "scheduler_opts.weights: Expected `object`"),
        ({"max_priority": 101}, "scheduler_opts.max_priority: Expected `int` <= 100"),
        ({"max_priority": 1.5}, "scheduler_opts.max_priority: Expected `int`"),
        ({"allowed_session_types": []}, "scheduler_opts.allowed_session_types: Expected a list of at least 1 item"),
        (
            {"allowed_session_types": ["system"]},
            "allowed_session_types[0]: Expected one of interactive, batch, inference",
        ),
        ({"agent_selection_strategy": "nearest"}, "agent_selection_strategy: Expected one of concentrated, dispersed"),
        ({"preemption": True}, "scheduler_opts.preemption: Expected `object`"),
        ({"preemption": {"enabled": "yes"}}, "scheduler_opts.preemption.enabled: Expected `bool`"),
        ({"preemption": {"mode": "again"}}, "scheduler_opts.preemption.mode: Expected one of terminate, reschedule"),
        ({"preemption": {"mod": "terminate"}}, "scheduler_opts.preemption: Object contains unknown field `mod`"),
        ({"config": 3}, "scheduler_opts.config: Expected `object`"),
        ([], "scheduler_opts: Expected `object`"),
    ],
)
def test_bad_options_are_refused_and_read_as_if_not_said(options: object, told: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        check("fifo", options)
    assert told in refused.value.message
    assert "scheduler" not in refused.value.data
    if isinstance(options, dict):
        assert read(options) == GroupOptions(placement=read(options).placement)


def test_a_bad_option_leaves_the_others_as_they_are() -> None:
    options = read({"half_life": "x", "unknown": 1, "max_priority": "30", "preemption": {"enabled": 3}})
    assert options == GroupOptions(max_priority=30)


def test_all_problems_are_told_at_once() -> None:
    with pytest.raises(InvalidInput) as refused:
        check("sjf", {"half_life": "x", "max_priority": None, "pending_timeout": []})
    assert len(refused.value.data["problems"]) == 3
    assert {"scheduler", "scheduler_opts"} < {*refused.value.data}
    assert "scheduler: unknown 'sjf'; known are fifo, lifo, drf, fair-share" in refused.value.message


def test_a_placement_plugin_is_a_strategy() -> None:
    assert check("fifo", {"agent_selection_strategy": "mine"}, plugins=["mine"]).placement == "mine"
    assert (order_name("fairshare"), placement_name("legacy"), placement_name("mine")) == (
        "fair-share",
        "dispersed",
        None,
    )
