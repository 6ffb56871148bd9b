"""What the engine is asked for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from ai.backend.common.errors import CreationDenied
from ai.backend.common.ids import KernelId, SessionId
from ai.backend.common.structs import replace
from ai.backend.plugin.accelerator import DeviceMapping, Mount, WorkloadConfig
from ai.backend.plugin.runtime import WorkloadKey, WorkloadSpec
from ai.backend.runtime.docker.capabilities import engine_facts, why_unfit
from ai.backend.runtime.docker.container_config import EngineFacts, HostPaths, compose, devices, networks_of
from ai.backend.runtime.docker.images import ImageFacts, etc_files
from ai.backend.runtime.docker.settings import DockerRuntimeSettings
from ai.backend.runtime.docker.workloads import exit_of

PLAIN = EngineFacts(
    version="20.10", cgroups=1, cdi_directories=(), network="none", limits=frozenset(), has_seccomp=True
)
WITH_CDI = replace(PLAIN, version="28.2", cgroups=2, cdi_directories=("/no/cdi",), network="bridge")
IMAGE = ImageFacts(
    id="sha256:1", python="/usr/bin/python3", injected=False, runtime="python", shell="/bin/bash", runner="/r",
    environ=("PATH", "LANG"), volumes=("/scratch", "/home/work"),
)  # fmt: skip
SCENE = HostPaths(
    home=Path("/s/homes/k"), channel=Path("/s/w/channel"), files={"/home/config/resource.txt": Path("/s/w/files/0")},
    staged={"/folder/./a": Path("/s/w/staged/0")}, interpreter=Path("/s/interpreter"), uid=59500, gid=59501,
    instance="me",
)  # fmt: skip


def body(config: WorkloadConfig | None = None, engine: EngineFacts = PLAIN, **more: Any) -> dict[str, Any]:
    settings = DockerRuntimeSettings(**more.pop("settings", {}))
    return compose(_spec(config, **more), IMAGE, settings, engine, SCENE)


def _spec(config: WorkloadConfig | None, **more: Any) -> WorkloadSpec:
    return WorkloadSpec(
        key=WorkloadKey(kernel_id=KernelId(UUID(int=1)), attempt=2),
        session_id=SessionId(UUID(int=2)),
        image="x",
        config=config or WorkloadConfig(),
        **more,
    )


def test_a_session_has_no_power_of_its_own() -> None:
    plain = body()
    host = plain["HostConfig"]
    assert plain["User"] == "59500:59501"
    assert host["CapDrop"] == ["ALL"]
    assert host["SecurityOpt"][0] == "no-new-privileges"
    assert host["ReadonlyRootfs"]
    assert not host.keys() & {"Privileged", "CapAdd", "PidMode", "UsernsMode", "PortBindings"}
    assert all("docker.sock" not in mount.get("Source", "") for mount in host["Mounts"])


def test_limits_of_plugins_reach_the_engine() -> None:
    config = WorkloadConfig(
        cpu_limit=1.5, memory_limit_bytes=1 << 28, cpuset=(0, 1), memory_nodes=(0,), extra_gids=(7,)
    )
    host = body(config, shmem_bytes=1 << 20, pids=50, home_bytes=1 << 24)["HostConfig"]
    assert (host["NanoCpus"], host["Memory"], host["MemorySwap"]) == (1_500_000_000, 1 << 28, 1 << 28)
    assert (host["CpusetCpus"], host["CpusetMems"], host["GroupAdd"]) == ("0,1", "0", ["7"])
    assert (host["ShmSize"], host["PidsLimit"]) == (1 << 20, 50)
    assert {"Name": "fsize", "Soft": 1 << 24, "Hard": 1 << 24} in host["Ulimits"]


def test_the_session_names_no_variable_of_the_runner() -> None:
    asked = {"LD_PRELOAD": "/home/work/x.so", "HOME": "/evil", "LANG": "de_DE"}
    environ = dict(line.split("=", 1) for line in body(environ=asked)["Env"])
    assert environ["HOME"] == "/home/work"
    assert "LD_PRELOAD" not in environ
    assert environ["BACKENDAI_SESSION_ENVIRON_LD_PRELOAD"] == "/home/work/x.so"
    assert "LANG" not in environ, "the image has one"


def test_mounts_are_private_and_staged_where_they_must_be(tmp_path: Path) -> None:
    mounts = (Mount(source=str(tmp_path), target="/data"), Mount(source="/folder/./a", target="/home/work/a"))
    with pytest.raises(CreationDenied, match="/home/work/a"):
        body(WorkloadConfig(mounts=mounts))  # there is no /folder
    (tmp_path / "a").mkdir()
    beneath = Mount(source=f"{tmp_path}/./a", target="/home/work/a", read_only=False)
    SCENE.staged[beneath.source] = Path("/s/w/staged/0")  # type: ignore[index]  # of this test alone
    found = {m["Target"]: m for m in body(WorkloadConfig(mounts=(mounts[0], beneath)))["HostConfig"]["Mounts"]}
    assert (found["/data"]["Source"], found["/data"]["ReadOnly"]) == (str(tmp_path), True)
    assert (found["/home/work/a"]["Source"], found["/home/work/a"]["ReadOnly"]) == ("/s/w/staged/0", False)
    assert all(m["BindOptions"]["Propagation"] == "rprivate" for m in found.values() if m["Type"] == "bind")
    for target in ("/", "/proc/x", "/opt/backend.ai/kernel", "relative"):
        with pytest.raises(CreationDenied):
            body(WorkloadConfig(mounts=(Mount(source=str(tmp_path), target=target),)))


def test_no_volume_is_without_a_limit() -> None:
    found = [m for m in body(settings={"tmp_bytes": 1 << 20})["HostConfig"]["Mounts"] if m["Type"] == "tmpfs"]
    options = {"SizeBytes": 1 << 20, "Mode": 0o1777}
    assert found == [{"Type": "tmpfs", "Target": "/scratch", "TmpfsOptions": options}]


def test_networks_of_plugins_are_attached_to_the_default_one() -> None:
    assert body()["HostConfig"]["NetworkMode"] == "none"
    assert body(settings={"network": "host"})["HostConfig"]["NetworkMode"] == "host"
    config = WorkloadConfig(networks=("fabric", "bridge", "other"))
    assert networks_of(_spec(config), DockerRuntimeSettings(), WITH_CDI) == ("bridge", "fabric", "other")
    assert networks_of(_spec(config), DockerRuntimeSettings(network="own"), WITH_CDI)[0] == "own"
    assert networks_of(_spec(config), DockerRuntimeSettings(), PLAIN) == ("fabric", "bridge", "other")
    asked = body(config, PLAIN, hostname="sub1")
    assert asked["NetworkingConfig"]["EndpointsConfig"] == {"fabric": {"Aliases": ["sub1"]}}
    with pytest.raises(CreationDenied) as denied:
        body(config, settings={"network": "host"})
    assert denied.value.data == {"field": "networks", "key": "fabric"}


NVIDIA = DeviceMapping(source="", cdi_name="nvidia.com/gpu=GPU-1")
BOTH = DeviceMapping(source="/dev/null", target="/dev/acc0", cdi_name="acme.com/npu=0", permissions="rwm")
NODE = {"PathOnHost": "/dev/null", "PathInContainer": "/dev/acc0", "CgroupPermissions": "rwm"}


def described(folder: Path, *names: str) -> EngineFacts:
    """An engine whose directory describes these devices."""
    for name in names:
        kind, _, device = name.partition("=")
        edits = {"env": ["A=1"]}
        content = {"cdiVersion": "0.3.0", "kind": kind, "devices": [{"name": device, "containerEdits": edits}]}
        (folder / f"{device}.json").write_text(json.dumps(content))
    return replace(WITH_CDI, cdi_directories=(str(folder),))


def requests_of(found: dict[str, Any]) -> list[tuple[str, list[str]]]:
    return [(request["Driver"], request["DeviceIDs"]) for request in found["DeviceRequests"]]


def test_a_cdi_name_is_used_where_a_specification_describes_it(tmp_path: Path) -> None:
    engine = described(tmp_path, "nvidia.com/gpu=GPU-1", "acme.com/npu=n0")
    both = replace(BOTH, cdi_name="acme.com/npu=n0")
    found = devices([NVIDIA, both], engine)
    assert (found["Devices"], requests_of(found)) == ([], [("cdi", ["nvidia.com/gpu=GPU-1", "acme.com/npu=n0"])])


def test_an_engine_that_only_has_directories_for_cdi_falls_back(tmp_path: Path) -> None:
    """Newer engines always name directories, which may be empty."""
    engine = described(tmp_path)
    found = devices([NVIDIA, BOTH], engine)
    assert (found["Devices"], requests_of(found)) == ([NODE], [("nvidia", ["GPU-1"])])


def test_the_vendors_runtime_comes_before_a_bare_node() -> None:
    """A node alone brings no libraries of the driver."""
    gpu = replace(NVIDIA, source="/dev/null", target="/dev/nvidia0")
    assert requests_of(devices([gpu], PLAIN)) == []
    found = devices([gpu], replace(PLAIN, runtimes=("nvidia",)))
    assert (found["Devices"], requests_of(found)) == ([], [("nvidia", ["GPU-1"])])


@pytest.mark.parametrize(
    ("bad", "problem"),
    [
        (DeviceMapping(source="", cdi_name="acme.com/npu=0"), "no CDI specification in /no/cdi describes it"),
        (DeviceMapping(source="/etc/passwd", target="/dev/x"), "is no device"),
    ],
)
def test_what_cannot_be_had_is_denied_with_its_name(bad: DeviceMapping, problem: str) -> None:
    with pytest.raises(CreationDenied, match=problem) as denied:
        devices([bad], WITH_CDI)
    assert denied.value.data["key"] in ("acme.com/npu=0", "/dev/x")


def test_calls_of_plugins_are_added_to_the_filter() -> None:
    profile = json.loads(body()["HostConfig"]["SecurityOpt"][1].removeprefix("seccomp="))
    allowed = {name for rule in profile["syscalls"] if rule["action"] == "SCMP_ACT_ALLOW" for name in rule["names"]}
    assert "read" in allowed
    assert "mount" not in allowed
    extra = next(iter({"mbind", "perf_event_open", "io_uring_setup", "kcmp"} - allowed))
    config = WorkloadConfig(extra_syscalls=(extra,))
    assert extra in body(config)["HostConfig"]["SecurityOpt"][1]
    with pytest.raises(CreationDenied):
        body(WorkloadConfig(extra_syscalls=("mount",)))
    with pytest.raises(CreationDenied):
        body(config, settings={"seccomp": "engine"})


def test_the_user_of_the_session_takes_the_place_of_the_image_s() -> None:
    image = ImageFacts(
        id="1", python="p", injected=False, runtime="app", shell="/bin/sh", runner="/r",
        passwd="root:x:0:0:root:/root:/bin/sh\nwork:x:5:5::/:/x\nother:x:59500:1::/:/x\nbad\n", group="root:x:0:\n",
    )  # fmt: skip
    files = etc_files(image, 59500, 59500)
    assert files["/etc/passwd"].splitlines() == [
        "root:x:0:0:root:/root:/bin/sh",
        "work:x:59500:59500:work:/home/work:/bin/sh",
    ]
    assert files["/etc/group"].splitlines() == ["root:x:0:", "work:x:59500:"]


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ({"ExitCode": 3}, (3, None, False, "")),
        ({"ExitCode": 137, "OOMKilled": True}, (None, 9, True, "out-of-memory")),
        ({"ExitCode": 0, "OOMKilled": True}, (0, None, False, "")),
        ({"ExitCode": 143}, (None, 15, False, "")),
    ],
)
def test_how_a_container_has_ended(state: dict[str, Any], expected: tuple[Any, ...]) -> None:
    ended = exit_of({"State": state}, "")
    assert (ended.code, ended.signal, ended.oom, ended.reason) == expected
    assert exit_of({"State": state}, "stopped").reason == "stopped"


def test_a_container_that_is_gone_was_killed() -> None:
    assert exit_of(None, "").reason == "container-removed"
    assert exit_of({"State": {"ExitCode": 137}}, "", engine_failed=True).reason == "engine-stopped"


@pytest.mark.parametrize(
    ("host", "info", "problem"),
    [
        ("unix:///x", {"SecurityOptions": ["name=seccomp,profile=default"]}, ""),
        ("tcp://192.0.2.1:2375", {}, "not on this machine"),
        ("unix:///x", {"SecurityOptions": ["name=userns"]}, "other user ids"),
        ("unix:///x", {"SecurityOptions": ["name=rootless"]}, "other user ids"),
        ("unix:///x", {"OSType": "windows"}, "sessions need Linux"),
    ],
)
def test_engines_that_cannot_be_used(host: str, info: dict[str, Any], problem: str) -> None:
    found = why_unfit(host, info)
    assert problem in found
    assert bool(found) == bool(problem)


def test_facts_of_engines() -> None:
    info = {
        "ApiVersion": "1.44",
        "CgroupVersion": "2",
        "CDISpecDirs": ["/etc/cdi"],
        "MemoryLimit": True,
        "CPUSet": False,
    }
    facts = engine_facts(info, [{"Name": "bridge"}])
    assert (facts.cdi_directories, facts.cgroups) == (("/etc/cdi",), 2)
    assert (facts.network, facts.limits) == ("bridge", frozenset({"memory"}))
    old = engine_facts({"ApiVersion": "1.41"}, [{"Name": "none"}])
    assert (old.cdi_directories, old.cgroups, old.network, old.has_seccomp) == ((), 1, "none", False)
