"""Which WorkloadConfigs are taken."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ai.backend.plugin.accelerator import DeviceMapping, Mount, WorkloadConfig, check_config

GOOD = WorkloadConfig(
    mounts=(Mount(source="/opt/vendor/lib", target="/usr/local/vendor"), Mount(source="/d", target="/home/work/d")),
    devices=(DeviceMapping(source="/dev/dri/card0"), DeviceMapping(source="", cdi_name="nvidia.com/gpu=0")),
    env_vars={"LD_PRELOAD": "/usr/local/vendor/hook.so", "A": "x y"},
    resource_data={"CUDA_DEVICES": "0,1"},
    networks=("rdma0",),
    extra_gids=(44,),
    extra_syscalls=("io_uring_setup",),
    cpuset=(3, 1),
    memory_nodes=(0,),
    cpu_limit=0.5,
    memory_limit_bytes=1 << 30,
)


def test_a_good_config_is_read_as_it_is() -> None:
    assert check_config(GOOD) == GOOD
    assert check_config(WorkloadConfig()) == WorkloadConfig()


def test_what_is_read_is_apart_from_the_plugins_own_objects() -> None:
    env = {"A": "1"}
    read = check_config(WorkloadConfig(env_vars=env))
    env["A"] = "2"
    assert read.env_vars == {"A": "1"}


BAD: list[tuple[dict[str, Any], str]] = [
    *(
        ({"mounts": (Mount(source="/a", target=target),)}, "mounts")
        for target in (
            "x", "", "/", "//x", "/x/", "/x/../etc", "/x\0", "/x\ny", "/proc", "/proc/1", "/sys/x", "/dev/x", "/home",
            "/home/config", "/home/config/resource.txt", "/home/work", "/opt", "/opt/backend.ai/kernel/x", "/usr",
            "/etc",
        )
    ),
    *(({"mounts": (Mount(source=source, target="/x"),)}, "mounts") for source in ("a", "", "/a/..", "/a\0")),
    ({"mounts": (Mount(source=Path("/a"), target="/x"),)}, "malformed"),  # type: ignore[arg-type]  # what plugins do
    ({"mounts": (("/a", "/x"),)}, "malformed"),
    ({"mounts": tuple(Mount(source="/a", target=f"/x{i}") for i in range(2000))}, "mounts"),
    *(
        ({"devices": (DeviceMapping(**device),)}, "devices")
        for device in (
            {"source": "dev/x"}, {"source": ""}, {"source": "/dev/x", "target": "/etc/x"}, {"source": "/dev/null"},
            {"source": "/etc/passwd"}, {"source": "/dev/x", "permissions": "rwx"},
            {"source": "/dev/x", "permissions": ""},
            {"source": "/dev/x", "cdi_name": "gpu 0"}, {"source": "/dev/x", "target": "/dev/../etc/x"},
        )
    ),
    *(
        ({"env_vars": env}, "env_vars")
        for env in (
            {"": "x"}, {"A=B": "x"}, {"A\0": "x"}, {"A": "x\0"}, {"A": "x\ny"}, {"HOME": "/root"}, {"USER": "root"},
            {"BACKENDAI_KERNEL_ID": "x"}, {"BACKENDAI_SESSION_ENVIRON_PATH": "x"}, {"BIG": "x" * 1_000_000},
        )
    ),
    ({"env_vars": {"A": 1}}, "malformed"),
    ({"env_vars": None}, "malformed"),
    *(({"resource_data": lines}, "resource_data") for lines in ({"SLOTS": "{}"}, {"CPU_SHARES": "0:9"}, {"A\n": "x"})),
    *(({"networks": (name,)}, "networks") for name in ("", "-x", "a b", "x" * 200)),
    *(({"extra_gids": (gid,)}, "extra_gids") for gid in (0, -1, 2**32)),
    ({"extra_gids": (True,)}, "malformed"),
    *(({"extra_syscalls": (name,)}, "extra_syscalls") for name in ("", "Open", "open;mount")),
    ({"cpuset": (-1,)}, "cpuset"),
    ({"cpuset": (1, 1)}, "cpuset"),
    ({"cpuset": (1.5,)}, "malformed"),
    *(({"cpu_limit": limit}, "cpu_limit") for limit in (0.0, -1.0, float("inf"))),
    ({"memory_limit_bytes": 0}, "memory_limit_bytes"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "named"), BAD)
def test_a_bad_config_is_refused_and_the_field_named(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        check_config(WorkloadConfig(**fields))


@pytest.mark.parametrize("answer", [None, {}, "x", WorkloadConfig])
def test_what_is_no_config_is_refused(answer: object) -> None:
    with pytest.raises(ValueError, match="instead of a WorkloadConfig"):
        check_config(answer)


@pytest.mark.parametrize("source", ["/", "/proc", "/proc/1", "/proc/self/root", "/link", "/data", "/data/homes/x"])
def test_no_session_is_shown_others_or_the_platform(tmp_path: Path, source: str) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "link").symlink_to("data")
    given = str(tmp_path) + source if source.startswith(("/data", "/link")) else source
    config = WorkloadConfig(mounts=(Mount(source=given, target="/x"),))
    with pytest.raises(ValueError, match="would show other sessions or the platform itself"):
        check_config(config, hidden_paths=[str(tmp_path / "data")])
    above = WorkloadConfig(mounts=(Mount(source=str(tmp_path), target="/x"),))
    with pytest.raises(ValueError, match="would show"):
        check_config(above, hidden_paths=[str(tmp_path / "data")])
