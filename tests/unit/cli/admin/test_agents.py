"""Agents as administrators read them."""

from __future__ import annotations

import json
from typing import Any

from ai.backend.cli.admin.agents import describe_agent, metrics_of_device, read_agent, trouble_lines
from ai.backend.cli.framework.values import describe_metrics


def device(kind: str, number: int, **more: Any) -> dict[str, Any]:
    slots = [{"slot_name": f"{kind}.device", "amount": "1"}]
    return {"device_name": kind, "device_id": f"{kind}-{number}", "health": "healthy", "slots": slots, **more}


def agent(**more: Any) -> dict[str, Any]:
    """As GraphQL tells it, with JSON in texts."""
    told = {
        "available_slots": {"cpu": "4", "mem": "8589934592", "cuda.shares": "4"},
        "occupied_slots": {"cpu": "1", "cuda.shares": "0.5"},
        "enforcement": {"memory": "enforced", "cpu": "watched", "network": "none"},
        "compute_plugins": {"cpu": {"healthy": True}, "cuda": {"healthy": False, "reason": "NVML is not there"}},
        "devices": [
            device("cpu", 0),
            device("cuda", 0),
            device("cuda", 1, health="unhealthy", health_reason="Xid 79"),
            device("npu", 0),
        ],
        **more,
    }
    return read_agent({"id": "i-01", **{name: json.dumps(value) for name, value in told.items()}})


def test_an_agent_in_words() -> None:
    displays = {"cuda.shares": {"display_unit": "FGPU", "number_format": {"binary": False, "round_length": 2}}}
    told = describe_agent(agent(), displays)
    assert told["used"] == "cpu 1/4, mem 0/8g, cuda.shares 0.50/4.00 FGPU"
    assert told["accelerators"] == ["cuda 2 (1 unhealthy)", "npu 1"]
    assert told["plugins"] == ["cpu", "cuda (failed)"]
    assert (told["enforced"], told["watched"], told["none"]) == (["memory"], ["cpu"], ["network"])


def test_what_is_wrong_is_told_with_its_cause() -> None:
    assert list(trouble_lines(agent())) == [
        "i-01: the plugin cuda has failed: NVML is not there",
        "i-01: the device cuda cuda-1 is unhealthy: Xid 79",
    ]
    refused = {"cuda": {"healthy": True, "reason": "cuda.shares is of type bytes here"}}
    told = agent(compute_plugins=refused, devices=[device("cuda", 0, health="unhealthy")])
    assert list(trouble_lines(told)) == [
        "i-01: the plugin cuda: cuda.shares is of type bytes here",
        "i-01: the device cuda cuda-0 is unhealthy: no reason is known",
    ]


def test_a_tainted_device_is_named_with_its_key() -> None:
    taint = [{"namespace": "taint", "feature": "key", "value": "burn-in"}, {"namespace": "nvidia", "value": "8.0"}]
    told = agent(compute_plugins={}, devices=[device("cuda", 0, variant_properties=taint), device("cuda", 1)])
    assert list(trouble_lines(told)) == ["i-01: the device cuda cuda-0 is tainted: burn-in"]


def test_an_agent_of_an_older_server_is_told_as_far_as_it_goes() -> None:
    bare = read_agent({"id": "i-01", "status": "ALIVE", "devices": None, "compute_plugins": None})
    assert list(trouble_lines(bare)) == []
    assert describe_agent(bare, {})["used"] == ""


def metric(value: str, hint: str, **more: str) -> dict[str, str]:
    return {"current": value, "unit_hint": hint, **more}


def test_metrics_of_devices_are_shown_with_their_true_units() -> None:
    devices = {
        "cuda_util": {"cuda-0": metric("35", "pct"), "cuda-1": metric("1", "pct")},
        "cuda_power": {"cuda-0": metric("75.5", "pct", unit="watt")},
    }
    told = agent(live_stat={"node": {"cpu_util": metric("12", "pct")}, "devices": devices})
    metrics = metrics_of_device(told, device("cuda", 0))
    assert metrics == {"cuda_util": metric("35", "pct"), "cuda_power": metric("75.5", "pct", unit="watt")}
    assert describe_metrics(metrics, prefix="cuda_") == "util 35%, power 75.5 W"
    assert describe_agent(told, {})["usage"] == "cpu_util 12%"


def test_of_devices_with_one_id_each_has_its_plugins_metrics() -> None:
    same = [{**device("cuda", 0), "device_id": "0"}, {**device("npu", 0), "device_id": "0"}]
    devices = {"cuda_util": {"0": metric("1", "pct")}, "npu_util": {"0": metric("2", "pct")}}
    told = agent(devices=same, live_stat={"node": {}, "devices": devices})
    assert [list(metrics_of_device(told, one)) for one in same] == [["cuda_util"], ["npu_util"]]
