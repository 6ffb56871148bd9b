"""One cluster whose agents have different accelerators."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.cluster import Cluster, running_cluster, wait_until

GPU = """
slot_name = "gpu"
[variants.mock.compute_capability]
match = "minimum"
[formats.device]
human_readable_name = "GPU"
display_unit = "GPU"
[[devices]]
mother_uuid = "{name}"
count = 2
model_name = "{model}"
numa_node = 0
memory_size = "40g"
variants.mock = {{ compute_capability = "{capability}" }}
"""
NPU = """
slot_name = "npu"
[[devices]]
mother_uuid = "npu"
model_name = "Mock NPU"
memory_size = "8g"
[[devices]]
mother_uuid = "sick"
model_name = "Mock NPU"
memory_size = "8g"
is_healthy = false
"""
SMALL = ("-r", "cpu=1", "-r", "mem=256m")
CODE = ("-c", "print('ran')", "python")


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """``i-local`` has newer GPUs, ``i-local-2`` older ones, ``i-local-3`` NPUs, ``i-local-4`` nothing."""
    folder = tmp_path_factory.mktemp("mixed")
    declarations = {
        "i-local": GPU.format(name="new", model="Mock H100", capability="9.0"),
        "i-local-2": GPU.format(name="old", model="Mock A100", capability="8.0"),
        "i-local-3": NPU,
    }
    configs = folder / "agents"
    configs.mkdir()
    for agent, declaration in declarations.items():
        (folder / f"{agent}.mock.toml").write_text(declaration)
        (configs / f"{agent}.toml").write_text(
            '[agent]\nallow-compute-plugins = ["ai.backend.accelerator.mock"]\n'
            f'[plugins.mock]\nconfig-path = "{folder / agent}.mock.toml"\n'
        )
    with running_cluster(folder / "data", "--agents", "4", "--agent-config", str(configs)) as cluster:
        wait_until(lambda: len(cluster.json("admin", "agent", "list", admin=True)["items"]) == 4, what="four agents")
        yield cluster


def started(cluster: Cluster, name: str, *options: str) -> dict[str, Any]:
    """A session that runs, as its administrator sees it."""
    cluster.run("start", "-q", "-t", name, *SMALL, *options, "python", check=True)
    (row,) = [s for s in cluster.json("ps", admin=True)["items"] if s["name"] == name]
    told: dict[str, Any] = cluster.json("info", row["id"], admin=True)
    return told


@pytest.mark.parametrize(
    ("options", "agent", "model"),
    [
        (("-r", "gpu.device=1", "--variant", "mock::compute_capability::8.5"), "i-local", "Mock H100"),
        (("-r", "gpu.device=1", "--variant", "mock::model::Mock A100"), "i-local-2", "Mock A100"),
        (("-r", "npu.device=1"), "i-local-3", "Mock NPU"),
        ((), "i-local-4", None),
    ],
)
def test_each_session_goes_where_its_devices_are(
    mixed: Cluster, options: tuple[str, ...], agent: str, model: str | None
) -> None:
    try:
        told = started(mixed, "where", *options)
        assert told["agent_ids"] == [agent]
        assert told["variant_requirements"] == ([options[-1]] if "--variant" in options else [])
        attached = json.loads(told["containers"][0]["attached_devices"])
        models = [d["model_name"] for kind, devices in attached.items() if kind not in ("cpu", "mem") for d in devices]
        assert models == ([model] if model else [])
    finally:
        mixed.run("rm", "where", check=True)


def test_what_nobody_has_waits_and_says_what_there_is(mixed: Cluster) -> None:
    wanted = ("-r", "gpu.device=1", "--variant", "mock::compute_capability::10.0")
    done = mixed.run("start", "-t", "waits", "--max-wait", "1", *SMALL, *wanted, "python")
    expected = (
        "no agent has a device with mock::compute_capability >= 10.0; "
        "of mock::compute_capability there are 8.0 (mock on i-local-2), 9.0 (mock on i-local)"
    )
    try:
        assert done.returncode == 124
        assert expected in done.stderr
        assert expected in mixed.run("info", "waits", check=True).stdout
        assert "no-matching-device" in mixed.run("ps", check=True).stdout
        others = mixed.run("run", "--rm", "-q", *SMALL, "-r", "gpu.device=2", *CODE, check=True)
        assert others.stdout == "ran\n", "those behind it are not held back"
    finally:
        mixed.run("rm", "waits", check=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("-r", "tpu.device=1"), "No agent has ever offered the resource slot 'tpu.device'"),
        (("-r", "gpu.device=1", "-r", "npu.device=1"), "comes closest lacks npu.device"),
        (("-r", "gpu.device=1", "--variant", "nonsense"), "is not a variant property; write namespace::feature::value"),
    ],
)
def test_what_cannot_be_is_refused_at_once(mixed: Cluster, options: tuple[str, ...], message: str) -> None:
    done = mixed.run("run", "--rm", *SMALL, *options, *CODE)
    assert done.returncode == 125
    assert message in done.stderr


def test_what_there_is_to_require_is_listed(mixed: Cluster) -> None:
    found = mixed.json("resource", "variants")
    listed = {v["property"]: v["devices"] for v in found if v["device_names"] == ["mock"]}
    assert listed == {
        "mock::compute_capability::8.0": {"default": 2},
        "mock::compute_capability::9.0": {"default": 2},
        "mock::model::Mock A100": {"default": 2},
        "mock::model::Mock H100": {"default": 2},
        "mock::model::Mock NPU": {"default": 1},
    }
    assert "this or an older one" in mixed.run("resource", "variants", check=True).stdout


def test_agents_show_plugins_and_devices_with_their_health(mixed: Cluster) -> None:
    try:
        started(mixed, "holder", "-r", "gpu.device=1", "--variant", "mock::model::Mock H100")
        text = mixed.run("admin", "agent", "list", "--wide", admin=True, check=True).stdout
        assert "gpu.device 1/2 GPU" in text
        assert "mock 2 (1 unhealthy)" in text
        assert "i-local-3: the device mock sick is unhealthy" in text
        items = {a["id"]: a for a in mixed.json("admin", "agent", "list", admin=True)["items"]}
        assert items["i-local"]["compute_plugins"]["mock"]["healthy"] is True
        held = [d["allocated"] for d in items["i-local"]["devices"] if d["device_name"] == "mock"]
        assert sorted(held, key=len) == [{}, {"gpu.device": "1"}]
        info = mixed.run("admin", "agent", "info", "i-local", admin=True, check=True).stdout
        assert "Mock H100" in info
        assert "gpu.device 1/1 GPU" in info
    finally:
        mixed.run("rm", "holder", check=True)
    slots = mixed.run("resource", "query-slots", check=True).stdout
    assert "gpu.device" in slots
    assert "npu.device" in slots
