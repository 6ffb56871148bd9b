"""Merging what plugins want, and blaming them for it."""

from __future__ import annotations

from typing import Any

import pytest

from ai.backend.agent.lifecycle.workload_config import AGENT, NEEDS_CONSENT, check_consent, merge_configs, with_authors
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


def test_mounts_come_parents_first_whoever_asked_first() -> None:
    deep, shallow = Mount(source="/a", target="/x/y"), Mount(source="/b", target="/x")
    merged = merge_configs([("a", WorkloadConfig(mounts=(deep,))), ("b", WorkloadConfig(mounts=(shallow,)))])
    assert merged.mounts == (shallow, deep)


def test_one_plugin_may_contradict_itself() -> None:
    twice = WorkloadConfig(mounts=(Mount(source="/a", target="/x"), Mount(source="/b", target="/x")))
    with pytest.raises(CreationDenied, match="the plugin cuda wants different values of mount /x"):
        merge_configs([("cuda", twice)])


def test_a_cpuset_is_a_set() -> None:
    parts = [("a", WorkloadConfig(cpuset=(1, 0))), ("b", WorkloadConfig(cpuset=(0, 1)))]
    assert merge_configs(parts).cpuset == (0, 1)


@pytest.mark.parametrize(
    ("data", "author"),
    [
        ({"field": "mounts", "key": "/x"}, "cuda"),
        ({"field": "devices", "key": "/dev/k"}, "rocm"),
        ({"field": "extra_syscalls", "key": "bpf"}, "cuda and rocm"),
        ({"field": "mounts", "key": "/home/work/v"}, None),
        ({"field": "hostname", "key": "x"}, None),
        ({}, None),
    ],
)
def test_a_refusal_of_the_runtime_names_who_asked(data: dict[str, Any], author: str | None) -> None:
    parts = [
        ("cuda", WorkloadConfig(mounts=(Mount(source="/a", target="/x"),), extra_syscalls=("bpf",))),
        ("rocm", WorkloadConfig(devices=(DeviceMapping(source="/dev/k"),), extra_syscalls=("bpf",))),
        (AGENT, WorkloadConfig(mounts=(Mount(source="/v", target="/home/work/v"),))),
    ]
    blamed = with_authors(CreationDenied("no such thing", data=data), parts)
    assert str(blamed) == (f"the plugin {author}: no such thing" if author else "no such thing")


@pytest.mark.parametrize("name", sorted(NEEDS_CONSENT))
def test_calls_that_reach_deep_into_the_kernel_need_consent(name: str) -> None:
    config = WorkloadConfig(extra_syscalls=("kcmp", name))
    check_consent(config, [name])
    check_consent(WorkloadConfig(extra_syscalls=("kcmp",)), [])
    with pytest.raises(CreationDenied, match="consented-syscalls") as refusal:
        check_consent(config, NEEDS_CONSENT - {name})
    parts = [("cuda", config), (AGENT, WorkloadConfig())]
    assert with_authors(refusal.value, parts).message.startswith(f"the plugin cuda: the system call '{name}'")
