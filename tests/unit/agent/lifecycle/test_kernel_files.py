"""What a workload finds about itself."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

from ai.backend.agent.lifecycle.workload_config import config_files, kernel_environ, resource_txt
from ai.backend.common.devices import DeviceAllocation
from ai.backend.common.ids import DeviceId, SlotName
from ai.backend.common.states import ClusterMode, SessionType
from ai.backend.common.wire.agent import ClusterInfo, KernelSpec, MountSpec
from ai.backend.plugin.accelerator import AttachedDevice, WorkloadConfig


def _spec(**changes: Any) -> KernelSpec:
    fields: dict[str, Any] = {
        "kernel_id": "k",
        "session_id": "s",
        "attempt": 1,
        "session_name": "mine",
        "session_type": SessionType.INTERACTIVE,
        "image": "python",
        "architecture": "x86_64",
        "access_key": "AK",
        "user_id": "u",
        "user_email": "u@example.com",
        "slots": {"cpu": "2", "mem": "1073741824", "mock.shares": "0.5"},
    }
    return KernelSpec(**{**fields, **changes})


ALLOCATION = DeviceAllocation(
    slots={
        SlotName("cpu"): {DeviceId("0"): Decimal(1), DeviceId("1"): Decimal(1)},
        SlotName("mem"): {DeviceId("root"): Decimal(1 << 30)},
        SlotName("mock.shares"): {DeviceId("m0"): Decimal("0.50")},
    }
)


def test_resource_txt_has_a_line_for_each_slot() -> None:
    text = resource_txt(_spec(), ALLOCATION, WorkloadConfig(resource_data={"MOCK_IDS": "0:m0"}))
    lines = dict(line.split("=", 1) for line in text.splitlines())
    assert lines["CPU_SHARES"] == "0:1,1:1"
    assert lines["MEM_SHARES"] == "root:1g"
    assert lines["MOCK.SHARES_SHARES"] == "m0:0.5"
    assert lines["MOCK_IDS"] == "0:m0"
    assert json.loads(lines["SLOTS"]) == {"cpu": "2", "mem": "1073741824", "mock.shares": "0.5"}


def test_mounts_with_separators_read_back() -> None:
    mount = MountSpec(name="v", source="/data/a:b,c", target="/home/work/v")
    text = resource_txt(_spec(mounts=[mount]), ALLOCATION, WorkloadConfig())
    assert "MOUNTS=/data/a%3Ab%2Cc:/home/work/v:ro\n" in text


def test_a_value_cannot_add_a_line() -> None:
    text = resource_txt(_spec(), ALLOCATION, WorkloadConfig(resource_data={"A": "x\nSLOTS={}"}))
    assert text.count("SLOTS=") == 2
    assert "\nA=x SLOTS={}\n" in text


def test_nobody_overrides_the_platform() -> None:
    spec = _spec(
        environ={"BACKENDAI_ACCESS_KEY": "stolen", "GPU_COUNT": "99", "OWN": "1"},
        cluster=ClusterInfo(
            mode=ClusterMode.MULTI_NODE, size=2, replicas={"main": 1, "sub": 1}, hosts=["main1", "sub1"]
        ),
    )
    attached = {"cpu": [], "mock": [AttachedDevice(device_id=DeviceId("m0"), model_name="M", data={"mem": 5})]}
    environ = kernel_environ(spec, WorkloadConfig(env_vars={"PLUGIN": "1"}), attached, {})
    assert environ["BACKENDAI_ACCESS_KEY"] == "AK"
    assert (environ["GPU_TYPE"], environ["GPU_COUNT"], environ["GPU_CONFIG"]) == ("mock", "1", "0:5")
    assert (environ["OWN"], environ["PLUGIN"]) == ("1", "1")
    assert environ["BACKENDAI_CLUSTER_REPLICAS"] == "main:1,sub:1"
    assert environ["BACKENDAI_CLUSTER_HOSTS"] == "main1,sub1"


def test_the_variables_of_the_core_count_are_the_image_s() -> None:
    labels = {"ai.backend.envs.corecount": "OMP_NUM_THREADS, NPROC,no-name,OWN"}
    spec = _spec(slots={"cpu": "2", "mem": "64m"}, environ={"OWN": "7"})
    environ = kernel_environ(spec, WorkloadConfig(), {}, labels)
    assert (environ["OMP_NUM_THREADS"], environ["NPROC"], environ["OWN"]) == ("2", "2", "7")
    assert "no-name" not in environ
    assert "NPROC" not in kernel_environ(_spec(slots={"mem": "64m"}), WorkloadConfig(), {}, labels)


def test_the_bootstrap_script_is_a_file_of_the_workload() -> None:
    files = config_files(_spec(bootstrap_script="echo hi"), {"A": "x\ny"}, ALLOCATION, WorkloadConfig())
    assert files["/home/config/bootstrap.sh"] == b"echo hi"
    assert files["/home/config/environ.txt"] == b"A=x\\ny\n"
    assert json.loads(files["/home/config/cluster.json"])["hosts"] == ["main1"]
