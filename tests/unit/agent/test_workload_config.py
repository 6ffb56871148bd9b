"""Merging what plugins want."""

from __future__ import annotations

import pytest

from ai.backend.agent.services.workload_config import merge_configs
from ai.backend.common.errors import CreationDenied
from ai.backend.plugin.accelerator import DeviceMapping, Mount, WorkloadConfig


def test_configs_are_joined_in_order() -> None:
    merged = merge_configs(
        [
            ("cuda", WorkloadConfig(env_vars={"A": "1"}, extra_gids=(5, 6), cpuset=(), networks=("rdma",))),
            ("cpu", WorkloadConfig(env_vars={"B": "2"}, extra_gids=(6, 7), cpuset=(0, 1), cpu_limit=2.0)),
            ("mem", WorkloadConfig(env_vars={"A": "1"}, memory_limit_bytes=10)),
        ]
    )
    assert merged.env_vars == {"A": "1", "B": "2"}
    assert merged.extra_gids == (5, 6, 7)
    assert (merged.cpuset, merged.cpu_limit, merged.memory_limit_bytes) == ((0, 1), 2.0, 10)
    assert merged.networks == ("rdma",)


@pytest.mark.parametrize(
    ("first", "second", "what"),
    [
        ({"env_vars": {"A": "1"}}, {"env_vars": {"A": "2"}}, "environment variable A"),
        ({"resource_data": {"A": "1"}}, {"resource_data": {"A": "2"}}, "resource data A"),
        (
            {"mounts": (Mount(source="/a", target="/x"),)},
            {"mounts": (Mount(source="/b", target="/x"),)},
            "mount /x",
        ),
        (
            {"devices": (DeviceMapping(source="/dev/a", permissions="r"),)},
            {"devices": (DeviceMapping(source="/dev/a", permissions="rw"),)},
            "device /dev/a",
        ),
        ({"cpu_limit": 1.0}, {"cpu_limit": 2.0}, "cpu_limit"),
        ({"cpuset": (0,)}, {"cpuset": (1,)}, "cpuset"),
    ],
)
def test_a_contradiction_names_both_plugins(first: dict[str, object], second: dict[str, object], what: str) -> None:
    with pytest.raises(CreationDenied) as caught:
        merge_configs([("cuda", WorkloadConfig(**first)), ("rocm", WorkloadConfig(**second))])  # type: ignore[arg-type]  # each is right
    assert what in str(caught.value)
    assert caught.value.data["plugins"] == ["cuda", "rocm"]


def test_the_same_wish_twice_is_one() -> None:
    mount = Mount(source="/a", target="/x")
    merged = merge_configs([("a", WorkloadConfig(mounts=(mount,))), ("b", WorkloadConfig(mounts=(mount,)))])
    assert merged.mounts == (mount,)
