"""Merges the configs that plugins request for a workload, and names the plugin whose request is refused."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from typing import Any, TypeVar

from ai.backend.common.errors import CreationDenied
from ai.backend.plugin.accelerator import DeviceMapping, WorkloadConfig

T = TypeVar("T")
H = TypeVar("H", bound=Hashable)
AGENT = "the agent"
"""The author of the agent's own config."""

NEEDS_CONSENT = frozenset({"io_uring_enter", "io_uring_register", "io_uring_setup", "perf_event_open"})
"""System calls that do not open the sandbox by themselves, but lead to kernel code with a history of exploits."""

_Part = tuple[str, WorkloadConfig]


def _conflict(what: str, key: object, first: str, second: str) -> CreationDenied:
    who = f"the plugins {first} and {second} want" if first != second else f"the plugin {first} wants"
    return CreationDenied(
        f"{who} different values of {what} {key}",
        data={"plugins": [first, second], "field": what, "key": str(key)},
    )


def _merge(what: str, parts: Iterable[tuple[str, Iterable[tuple[str, T]]]]) -> dict[str, T]:
    merged: dict[str, T] = {}
    authors: dict[str, str] = {}
    for author, values in parts:
        for key, value in values:
            if key in merged and merged[key] != value:
                raise _conflict(what, key, authors[key], author)
            merged.setdefault(key, value)
            authors.setdefault(key, author)
    return merged


def _one(what: str, parts: Iterable[tuple[str, T | None]]) -> T | None:
    return _merge(what, ((author, [(what, value)]) for author, value in parts if value is not None)).get(what)


def _union(parts: Iterable[Sequence[H]]) -> tuple[H, ...]:
    return tuple(dict.fromkeys(item for part in parts for item in part))


def _only_one_sets(what: str, parts: Iterable[tuple[str, tuple[int, ...]]]) -> tuple[int, ...]:
    return _one(what, ((author, tuple(sorted(value)) or None) for author, value in parts)) or ()


def _device_key(device: DeviceMapping) -> str:
    return device.cdi_name or device.target or device.source


def merge_configs(parts: Sequence[_Part]) -> WorkloadConfig:
    """Merge the configs of all plugins in their order. Mounts are sorted parents first, so that none hides another.

    Raises:
        CreationDenied: different values for one environment variable, mount target, device target, resource key or
            limit; both plugins are named.
    """
    mounts = _merge("mount", ((a, [(m.target, m) for m in c.mounts]) for a, c in parts))
    return WorkloadConfig(
        mounts=tuple(mount for _, mount in sorted(mounts.items())),
        devices=tuple(_merge("device", ((a, [(_device_key(d), d) for d in c.devices]) for a, c in parts)).values()),
        env_vars=_merge("environment variable", ((a, c.env_vars.items()) for a, c in parts)),
        resource_data=_merge("resource data", ((a, c.resource_data.items()) for a, c in parts)),
        networks=_union(c.networks for _, c in parts),
        extra_gids=_union(c.extra_gids for _, c in parts),
        extra_syscalls=_union(c.extra_syscalls for _, c in parts),
        cpuset=_only_one_sets("cpuset", ((a, c.cpuset) for a, c in parts)),
        memory_nodes=_only_one_sets("memory_nodes", ((a, c.memory_nodes) for a, c in parts)),
        cpu_limit=_one("cpu_limit", ((a, c.cpu_limit) for a, c in parts)),
        memory_limit_bytes=_one("memory_limit_bytes", ((a, c.memory_limit_bytes) for a, c in parts)),
    )


def check_consent(config: WorkloadConfig, consented: Collection[str]) -> None:
    """Check the system calls. Raises CreationDenied if the node's operator has not consented to one of them."""
    for name in config.extra_syscalls:
        if name in NEEDS_CONSENT and name not in consented:
            raise CreationDenied(
                f"the system call {name!r} is allowed only where the node's operator names it in"
                " `agent.consented-syscalls`",
                data={"field": "extra_syscalls", "key": name},
            )


_KEYS: dict[str, Callable[[Any], str]] = {
    "mounts": lambda mount: mount.target,
    "devices": _device_key,
    "extra_syscalls": str,
}


def blame(error: CreationDenied, parts: Sequence[_Part]) -> CreationDenied:
    """Return the refusal with the names of the plugins that requested its ``field`` and ``key`` in ``error.data``."""
    field, refused = str(error.data.get("field")), error.data.get("key")
    key = _KEYS.get(field)
    authors = [
        author
        for author, config in parts
        if key is not None and author != AGENT and any(key(item) == refused for item in getattr(config, field))
    ]
    if not authors:
        return error
    return CreationDenied(
        f"the plugin {' and '.join(authors)}: {error.message}", data={**error.data, "plugins": authors}
    )
