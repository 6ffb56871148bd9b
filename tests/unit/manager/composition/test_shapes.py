"""Requests and replies as pure functions."""

from __future__ import annotations

from typing import Any

import pytest

from ai.backend.common.errors import InvalidInput
from ai.backend.common.images import split_image
from ai.backend.common.states import RunMode, RunStatus
from ai.backend.common.structs import replace
from ai.backend.common.wire.execution import RunResult
from ai.backend.infra.http.decode import convert, rename_aliases
from ai.backend.infra.http.fields import duration_s
from ai.backend.manager.agents.graphql import published_units
from ai.backend.manager.execution.api import run_request, run_result
from ai.backend.manager.execution.schemas import RunOptions
from ai.backend.manager.execution.service import file_path, home_path
from ai.backend.manager.execution.streams_api import MAX_FRAME_CHARS, split_result
from ai.backend.manager.sessions.graphql import resource_opts
from ai.backend.manager.sessions.schemas import CREATE_ALIASES, CreateSessionBody
from ai.backend.manager.sessions.views import creation_of


def _creation(**body: Any) -> Any:
    rename_aliases(body, CREATE_ALIASES)
    return creation_of(convert(body, CreateSessionBody))


@pytest.mark.parametrize(("alias", "name"), CREATE_ALIASES.items())
def test_every_alias_is_the_field(alias: str, name: str) -> None:
    values: dict[str, Any] = {
        "image": "python",
        "name": "a-name",
        "type": "batch",
        "clusterSize": 3,
        "clusterMode": "multi-node",
        "enqueueOnly": True,
        "maxWaitSeconds": 9,
        "reuseIfExists": False,
        "batchTimeout": 5.0,
        "execTimeout": 6.0,
        "callback_url": "http://x",
        "config.agent_list": ["a"],
        "config.agentList": ["a"],
        "config.mount_map": {"a": "/b"},
        "config.mount_options": {"a": {"permission": "ro"}},
        "config.resource_opts": {"shmem": "1m"},
        "config.preopen_ports": ["80"],
        "config.variant_requirements": ["mock::model::M1"],
        "config.device_requests": ["memory >= 1g"],
        "config.plugin_options": {"mock": {"mode": "fast"}},
        "config.diagnosed_devices": {"mock": ["gpu-0"]},
    }
    value = values.get(name, "text")

    def body(dotted: str) -> dict[str, Any]:
        made: dict[str, Any] = {"image": "python"} if dotted != "lang" else {}
        parent, _, leaf = dotted.rpartition(".")
        (made.setdefault(parent, {}) if parent else made)[leaf] = value
        return made

    assert _creation(**body(alias)) == _creation(**body(name))
    assert _creation(**body(alias)) != _creation(image="other")


def test_legacy_resources() -> None:
    assert _creation(image="x", config={"instanceCores": 2, "instanceMemory": 1, "instanceGPUs": 0.5}).resources == {
        "cpu": 2,
        "mem": 1 << 20,
        "cuda.shares": 0.5,
    }
    assert _creation(image="x", config={"instanceGPUs": 2, "resources": {"cuda.device": "1"}}).resources == {
        "cuda.device": "1"
    }
    assert _creation(image="x").resources is None


@pytest.mark.parametrize(("text", "seconds"), [("90", 90), ("30s", 30), ("1.5m", 90), ("2h", 7200), ("1d", 86400)])
def test_durations(text: str, seconds: float) -> None:
    assert duration_s(text) == seconds


@pytest.mark.parametrize("text", ["", "s", "x", "-1", "0", "inf", "nan", "1w"])
def test_bad_durations(text: str) -> None:
    with pytest.raises(InvalidInput):
        duration_s(text)


@pytest.mark.parametrize(
    ("name", "path"),
    [("a", "a"), ("./a//b/", "a/b"), ("/home/work", ""), ("/home/work/a", "a"), (".", ""), ("a..b", "a..b")],
)
def test_paths(name: str, path: str) -> None:
    assert home_path(name, field="f") == path


@pytest.mark.parametrize(
    "name", ["..", "a/..", "/etc", "/home/worker", "/home/work/../x", "/", "a\0b", "//home/work", "x" * 5000]
)
def test_paths_that_leave(name: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        home_path(name, field="f")
    assert list(caught.value.data) == ["f"]


@pytest.mark.parametrize("name", ["", ".", "/home/work", "folder/"])
def test_directories_are_no_files(name: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        file_path(name, field="f")
    assert list(caught.value.data) == ["f"]


def test_modes() -> None:
    assert run_request("continued", "", "r", RunOptions()).mode is RunMode.CONTINUE
    batch = run_request("batch", "", None, RunOptions(build="", exec="*"))
    assert batch.options == {"clean": None, "build": None, "buildLog": False, "exec": "*"}
    assert run_request("query", "x", None, RunOptions()).options == {}


def test_a_result_has_every_field_of_the_spec() -> None:
    result = RunResult(run_id="r", status=RunStatus.FINISHED, exit_code=0, files=[{"name": "a", "size": 1}])
    told = run_result(result)
    assert set(told) == {"runId", "status", "exitCode", "console", "options", "files"}
    assert told["files"] == [{"name": "a", "size": 1, "url": None}]
    assert run_result(replace(result, reason="died"))["reason"] == "died"


def _result(*console: list[Any]) -> RunResult:
    return RunResult(run_id="r", status=RunStatus.FINISHED, exit_code=3, console=list(console))


def test_a_small_result_stays_one() -> None:
    result = _result(["stdout", "a"], ["media", ["image/png", "data:..."]])
    assert list(split_result(result)) == [result]
    assert list(split_result(_result())) == [_result()]


def test_a_large_result_is_split_in_order() -> None:
    text = "".join(chr(97 + i % 26) for i in range(MAX_FRAME_CHARS * 2 + 5))
    parts = list(split_result(_result(["stdout", "first"], ["stderr", text], ["stdout", "last"])))
    assert [p.status for p in parts[:-1]] == [RunStatus.CONTINUED] * (len(parts) - 1)
    assert (parts[-1].status, parts[-1].exit_code) == (RunStatus.FINISHED, 3)
    console = [item for part in parts for item in part.console]
    assert console[0] == ["stdout", "first"]
    assert console[-1] == ["stdout", "last"]
    assert "".join(data for kind, data in console if kind == "stderr") == text
    assert all(sum(len(item[1]) for item in part.console) <= MAX_FRAME_CHARS for part in parts)


def test_an_item_that_no_frame_can_hold_is_named() -> None:
    (part,) = split_result(_result(["media", ["image/png", "x" * (4 * MAX_FRAME_CHARS)]]))
    assert part.console == [["stderr", "[a media item is too large for this stream and was left out]\n"]]


def test_images_and_options() -> None:
    assert split_image("localhost/a/b:c") == ("localhost", "a/b", "c")
    assert split_image("a/b") == ("", "a/b", "")
    assert resource_opts({"shmem": "64m", "x": "y"}) == '{"shmem": "67108864", "x": "y"}'
    assert resource_opts({"shmem": "lots"}) == "{}"


def test_statistics_of_an_agent_have_the_units_that_published_clients_know() -> None:
    metric = {"current": "5", "capacity": "100", "pct": "5.00", "unit_hint": "percent"}
    hot = {**metric, "unit_hint": "celsius"}
    power = {**metric, "unit_hint": "watt"}
    live = {"node": {"cpu_util": metric, "power": power}, "devices": {"gpu_temperature": {"0": hot}}}
    assert published_units(live) == {
        "node": {"cpu_util": {**metric, "unit_hint": "pct"}, "power": {**power, "unit_hint": "pct", "unit": "watt"}},
        "devices": {"gpu_temperature": {"0": {**metric, "unit_hint": "Celsius"}}},
    }
    assert published_units(None) is None
