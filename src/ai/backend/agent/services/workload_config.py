"""Merging what several plugins want of one workload."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import TypeVar

from ai.backend.common.errors import CreationDenied
from ai.backend.plugin.accelerator import DeviceMapping, Mount, WorkloadConfig

T = TypeVar("T")
H = TypeVar("H", bound=Hashable)
AGENT = "the agent"
"""The author of the agent's own part."""

_Part = tuple[str, WorkloadConfig]


def _conflict(what: str, key: object, first: str, second: str) -> CreationDenied:
    return CreationDenied(
        f"the plugins {first} and {second} want different values of {what} {key}",
        data={"plugins": [first, second], "field": what, "key": str(key)},
    )


def _merge_maps(what: str, parts: Iterable[tuple[str, Mapping[str, T]]]) -> dict[str, T]:
    merged: dict[str, T] = {}
    authors: dict[str, str] = {}
    for author, values in parts:
        for key, value in values.items():
            if key in merged and merged[key] != value:
                raise _conflict(what, key, authors[key], author)
            merged.setdefault(key, value)
            authors.setdefault(key, author)
    return merged


def _one(what: str, parts: Iterable[tuple[str, T | None]]) -> T | None:
    values = _merge_maps(what, ((author, {what: value}) for author, value in parts if value is not None))
    return values.get(what)


def _union(parts: Iterable[Sequence[H]]) -> tuple[H, ...]:
    return tuple(dict.fromkeys(item for part in parts for item in part))


def _only_one_sets(what: str, parts: Iterable[tuple[str, tuple[int, ...]]]) -> tuple[int, ...]:
    return _one(what, ((author, value or None) for author, value in parts)) or ()


def merge_configs(parts: Sequence[_Part]) -> WorkloadConfig:
    """One config of all plugins, in the order given.

    Raises:
        CreationDenied: two plugins want different values for the same environment variable, mount target, device
        target,
            resource key or limit; both are named.
    """

    def mounts(config: WorkloadConfig) -> dict[str, Mount]:
        return {mount.target: mount for mount in config.mounts}

    def devices(config: WorkloadConfig) -> dict[str, DeviceMapping]:
        return {device.cdi_name or device.target or device.source: device for device in config.devices}

    return WorkloadConfig(
        mounts=tuple(_merge_maps("mount", ((a, mounts(c)) for a, c in parts)).values()),
        devices=tuple(_merge_maps("device", ((a, devices(c)) for a, c in parts)).values()),
        env_vars=_merge_maps("environment variable", ((a, c.env_vars) for a, c in parts)),
        resource_data=_merge_maps("resource data", ((a, c.resource_data) for a, c in parts)),
        networks=_union(c.networks for _, c in parts),
        extra_gids=_union(c.extra_gids for _, c in parts),
        extra_syscalls=_union(c.extra_syscalls for _, c in parts),
        cpuset=_only_one_sets("cpuset", ((a, c.cpuset) for a, c in parts)),
        memory_nodes=_only_one_sets("memory_nodes", ((a, c.memory_nodes) for a, c in parts)),
        cpu_limit=_one("cpu_limit", ((a, c.cpu_limit) for a, c in parts)),
        memory_limit_bytes=_one("memory_limit_bytes", ((a, c.memory_limit_bytes) for a, c in parts)),
    )
