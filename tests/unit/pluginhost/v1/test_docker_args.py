"""Docker's arguments become a WorkloadConfig exactly, or are named."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from ai.backend.plugin.accelerator import DeviceMapping, Mount
from ai.backend.pluginhost.v1.api.plugin import AbstractComputePlugin
from ai.backend.pluginhost.v1.docker_args import ARGUMENTS, DockerArguments, Untranslatable, denial_of, translate

PAGE = Path(__file__).resolve().parents[4] / "docs" / "reference" / "accelerators" / "legacy.md"


def host(**config: Any) -> dict[str, Any]:
    return {"HostConfig": config}


CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "Env": ({"Env": ["A=1", "B=x=y", "C="]}, {"env_vars": {"A": "1", "B": "x=y", "C": ""}}),
    "HostConfig.Binds": (
        host(Binds=["/a:/b", "/c:/d:ro", "/e:/f:rw"]),
        {"mounts": [Mount(source=s, target=t, read_only=r) for s, t, r in
                    (("/a", "/b", False), ("/c", "/d", True), ("/e", "/f", False))]},
    ),
    "HostConfig.CpuPeriod": (host(CpuPeriod=50_000, CpuQuota=75_000), {"cpu_limit": 1.5}),
    "HostConfig.CpuQuota": (host(CpuQuota=250_000), {"cpu_limit": 2.5}),
    "HostConfig.Cpus": (host(Cpus=4), {"cpu_limit": 4.0}),
    "HostConfig.CpusetCpus": (host(CpusetCpus="0-2,7"), {"cpuset": (0, 1, 2, 7)}),
    "HostConfig.CpusetMems": (host(CpusetMems="1"), {"memory_nodes": (1,)}),
    "HostConfig.DeviceRequests": (
        host(DeviceRequests=[
            {"Driver": "nvidia", "DeviceIDs": ["GPU-1"], "Capabilities": [["utility", "compute"]], "Count": 0},
            {"Driver": "cdi", "DeviceIDs": ["acme.com/npu=2"]},
        ]),
        {"devices": [DeviceMapping(source="", cdi_name="nvidia.com/gpu=GPU-1"),
                     DeviceMapping(source="", cdi_name="acme.com/npu=2")]},
    ),
    "HostConfig.Devices": (
        host(Devices=[
            {"PathOnHost": "/dev/x", "PathInContainer": "/dev/y", "CgroupPermissions": "rw"},
            {"PathOnHost": "/dev/z", "PathInContainer": "/dev/z", "CgroupPermissions": "mrw"},
        ]),
        {"devices": [DeviceMapping(source="/dev/x", target="/dev/y", permissions="rw"),
                     DeviceMapping(source="/dev/z", permissions="mrw")]},
    ),
    "HostConfig.GroupAdd": (host(GroupAdd=["44", 109]), {"gids": [44, 109]}),
    "HostConfig.Memory": (host(Memory=1 << 30), {"memory_limit_bytes": 1 << 30}),
    "HostConfig.MemorySwap": (host(Memory=1 << 30, MemorySwap=1 << 30), {"memory_limit_bytes": 1 << 30}),
    "HostConfig.Mounts": (
        host(Mounts=[{"Type": "bind", "Source": "/a", "Target": "/b", "ReadOnly": True, "Consistency": ""}]),
        {"mounts": [Mount(source="/a", target="/b", read_only=True)]},
    ),
    "HostConfig.NanoCpus": (host(NanoCpus=1_500_000_000), {"cpu_limit": 1.5}),
}  # fmt: skip


def test_every_argument_has_a_case_and_a_row_in_the_reference() -> None:
    assert set(CASES) == set(ARGUMENTS)
    page = PAGE.read_text()
    for name, argument in ARGUMENTS.items():
        assert f"| `{name}` | {argument.becomes} |" in page


def test_the_reference_tells_of_every_method() -> None:
    page = PAGE.read_text()
    names = [name for c in AbstractComputePlugin.__mro__[:2] for name in vars(c) if not name.startswith("_")]
    assert len(names) > 20
    kept = {"init", "cleanup", "config_watch_enabled"}  # mean the same in both
    assert [name for name in names if f"`{name}`" not in page and name not in kept] == []


@pytest.mark.parametrize("name", CASES)
def test_an_argument_is_translated_exactly(name: str) -> None:
    arguments, expected = CASES[name]
    wishes = translate(arguments, runtime="container")
    fields = ("env_vars", "mounts", "devices", "gids", "cpuset", "memory_nodes", "cpu_limit", "memory_limit_bytes")
    empty = DockerArguments("container")
    assert {f: getattr(wishes, f) for f in fields} == {**{f: getattr(empty, f) for f in fields}, **expected}


@pytest.mark.parametrize("empty", [None, False, 0, "", [], {}])
def test_what_is_empty_asks_for_nothing(empty: object) -> None:
    assert translate(
        {"Volumes": empty, **host(ShmSize=empty, Privileged=empty)}, runtime="process_tree"
    ) == DockerArguments("process_tree")
    assert translate({"HostConfig": None}, runtime="container") == DockerArguments("container")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"Labels": {"a": "b"}}, "Labels"),
        ({"Cmd": ["sh"]}, "Cmd"),
        (host(ShmSize=1 << 30), "HostConfig.ShmSize"),
        (host(CapAdd=["SYS_ADMIN"]), "HostConfig.CapAdd"),
        (host(IpcMode="host"), "HostConfig.IpcMode"),
        (host(Privileged=True), "HostConfig.Privileged"),
        (host(Runtime="habana"), "HostConfig.Runtime"),
        (host(SecurityOpt=["seccomp=unconfined"]), "HostConfig.SecurityOpt"),
        (host(Ulimits=[{"Name": "memlock", "Soft": -1, "Hard": -1}]), "HostConfig.Ulimits"),
        ({"Env": ["A"]}, "Env"),
        ({"Env": "A=1"}, "Env"),
        ({"Env": [1]}, "Env"),
        (host(Binds=["volume:/b"]), "HostConfig.Binds"),
        (host(Binds=["/a:/b:Z"]), "HostConfig.Binds"),
        (host(Binds=["/a"]), "HostConfig.Binds"),
        (host(Mounts=[{"Type": "tmpfs", "Target": "/b"}]), "HostConfig.Mounts.Type"),
        (host(Mounts=[{"Type": "bind", "Source": "/a", "Target": "/b", "BindOptions": {"Propagation": "shared"}}]),
         "HostConfig.Mounts.BindOptions"),
        (host(Devices=[{"PathInContainer": "/dev/x"}]), "HostConfig.Devices.PathOnHost"),
        (host(Devices=["/dev/x"]), "HostConfig.Devices"),
        (host(DeviceRequests=[{"Driver": "nvidia", "Count": -1}]), "HostConfig.DeviceRequests.Count"),
        (host(DeviceRequests=[{"Driver": "nvidia", "Capabilities": [["gpu"]]}]), "HostConfig.DeviceRequests.DeviceIDs"),
        (host(DeviceRequests=[{"Driver": "amd", "DeviceIDs": ["1"]}]), "HostConfig.DeviceRequests.Driver"),
        (host(DeviceRequests=[{"DeviceIDs": ["1"], "Capabilities": [["tpu"]]}]),
         "HostConfig.DeviceRequests.Capabilities"),
        (host(GroupAdd=["video"]), "HostConfig.GroupAdd"),
        (host(CpusetCpus="3-1"), "HostConfig.CpusetCpus"),
        (host(CpusetCpus="0-99999999999"), "HostConfig.CpusetCpus"),
        (host(CpusetMems=0.5), "HostConfig.CpusetMems"),
        (host(Memory=-1), "HostConfig.Memory"),
        (host(Memory="1g"), "HostConfig.Memory"),
        (host(Memory=1024, MemorySwap=2048), "HostConfig.MemorySwap"),
        (host(MemorySwap=-1), "HostConfig.MemorySwap"),
        (host(CpuPeriod=100_000), "HostConfig.CpuPeriod"),
        (host(CpuQuota=100_000, NanoCpus=1), "HostConfig.CpuQuota"),
        (host(Cpus=2, NanoCpus=1), "HostConfig.NanoCpus"),
        (host(Cpus="many"), "HostConfig.Cpus"),
        (host(Cpus=Decimal("NaN")), "HostConfig.Cpus"),
        ({"HostConfig": ["x"]}, "HostConfig"),
        (["x"], "as a whole"),
        (None, "as a whole"),
    ],
)  # fmt: skip
def test_what_cannot_be_translated_is_named(arguments: object, named: str) -> None:
    with pytest.raises(Untranslatable) as caught:
        translate(arguments, runtime="container")
    assert caught.value.argument == named
    refused = denial_of("acme", caught.value)
    assert refused.data == {"plugin": "acme", "argument": named}
    assert refused.message == f"the v1 plugin acme wants the Docker argument {named}, which {caught.value}"


def test_device_requests_need_a_container_engine() -> None:
    with pytest.raises(Untranslatable, match="process trees") as caught:
        translate(host(DeviceRequests=[{"Driver": "cdi", "DeviceIDs": ["a.b/c=1"]}]), runtime="process_tree")
    assert caught.value.argument == "HostConfig.DeviceRequests"
