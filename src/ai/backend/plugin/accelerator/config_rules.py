"""The rules of a WorkloadConfig, as the agent applies them to what ``pre_create`` gives."""

from __future__ import annotations

import math
import os.path
import re
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from ai.backend.plugin.accelerator.hooks import DeviceMapping, Mount, WorkloadConfig

_MAX_ITEMS = 1024
_MAX_TEXT = 65_536
"""Bytes of all variables, or of all lines for ``resource.txt``, of one plugin."""
_CLOSED = ("/proc", "/sys", "/dev", "/home/config", "/opt/backend.ai/kernel", "/opt/backend.ai/bin")
"""No plugin mounts anything at, below or above these."""
_KEPT = ("/home/work", "/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc", "/tmp", "/var/tmp")
"""No plugin mounts anything at or above these; below it may."""
_OTHERS = re.compile(r"/proc(/(\d+|self|thread-self)(/.*)?)?")
"""No plugin shows a session the processes of others: their memory is behind these."""
_BASIC_DEVICES = frozenset(
    f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom", "tty", "ptmx", "pts", "shm", "console")
)
_OWN_VARIABLES = frozenset({"HOME", "USER", "LOGNAME"})
_OWN_PREFIX = "BACKENDAI_"
_OWN_LINES = frozenset({"SCRATCH_SIZE", "MOUNTS", "SLOTS", "UNIFIED_DEVICES", "KID"})
_MAX_GID = 2**32 - 2
_CALL = re.compile(r"[a-z0-9_]{1,64}")
_NETWORK = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
_CDI = re.compile(r"[A-Za-z0-9._-]+/[A-Za-z0-9._-]+=[A-Za-z0-9._:-]+")

_LISTS = (
    "mounts", "devices", "env_vars", "resource_data", "networks", "extra_gids", "extra_syscalls", "cpuset",
    "memory_nodes",
)  # fmt: skip


def check_config(config: object, *, hidden: Sequence[str] = ()) -> WorkloadConfig:
    """Validates the result of ``pre_create`` and returns an own copy of it, with the declared types. Nothing at, above
    or below the host's paths in ``hidden`` may be mounted. Raises ValueError, naming field and value, for a broken rule
    of :class:`WorkloadConfig`."""
    if not isinstance(config, WorkloadConfig):
        raise ValueError(f"{type(config).__name__} instead of a WorkloadConfig")
    try:
        read = msgspec.convert(msgspec.to_builtins(config), WorkloadConfig)
    except (msgspec.ValidationError, TypeError, ValueError) as e:
        raise ValueError(f"malformed WorkloadConfig: {e}") from None
    for field in _LISTS:
        _require(len(getattr(read, field)) <= _MAX_ITEMS, field, f"more than {_MAX_ITEMS} items")
    for mount in read.mounts:
        _check_mount(mount, hidden)
    for device in read.devices:
        _check_device(device)
    _check_texts("env_vars", read.env_vars, lambda name: name in _OWN_VARIABLES or name.startswith(_OWN_PREFIX))
    _check_texts("resource_data", read.resource_data, lambda key: key in _OWN_LINES or key.endswith("_SHARES"))
    for name in read.networks:
        _require(_NETWORK.fullmatch(name), "networks", f"{name!r} is no name of a network")
    for name in read.extra_syscalls:
        _require(_CALL.fullmatch(name), "extra_syscalls", f"{name!r} is no name of a system call")
    for gid in read.extra_gids:
        _require(0 < gid <= _MAX_GID, "extra_gids", f"{gid} is not a group that a session may have")
    for field in ("cpuset", "memory_nodes"):
        numbers = getattr(read, field)
        _require(all(n >= 0 for n in numbers), field, f"{min(numbers, default=0)} is negative")
        _require(len(set(numbers)) == len(numbers), field, "a number is there twice")
    for field in ("cpu_limit", "memory_limit_bytes"):
        limit = getattr(read, field)
        _require(limit is None or (math.isfinite(limit) and limit > 0), field, f"{limit} is no limit")
    return read


def _require(condition: object, field: str, problem: str) -> None:
    if not condition:
        raise ValueError(f"bad WorkloadConfig: {field}: {problem[:300]}")


def _is_plain(path: str) -> bool:
    """Returns True for a normal absolute path without control characters."""
    return path.startswith("/") and not path.startswith("//") and os.path.normpath(path) == path and path.isprintable()


def _is_within(path: str, place: str) -> bool:
    return path == place or path.startswith(place.rstrip("/") + "/")


def _check_mount(mount: Mount, hidden: Sequence[str]) -> None:
    _require(_is_plain(mount.source), "mounts", f"the source {mount.source!r} is not a plain absolute path")
    source = os.path.realpath(mount.source)  # only links are read, which takes no time
    shows = any(_is_within(source, place) or _is_within(place, source) for place in hidden)
    shown = shows or source == "/" or _OTHERS.fullmatch(source)
    _require(not shown, "mounts", f"the source {mount.source!r} would show other sessions or the platform itself")
    _require(_is_plain(mount.target), "mounts", f"the target {mount.target!r} is not a plain absolute path")
    closed = any(_is_within(mount.target, place) or _is_within(place, mount.target) for place in _CLOSED)
    covers = any(_is_within(place, mount.target) for place in _KEPT)
    _require(not closed and not covers, "mounts", f"nothing can be mounted at {mount.target!r}")


def _check_device(device: DeviceMapping) -> None:
    if device.cdi_name is not None:
        _require(_CDI.fullmatch(device.cdi_name), "devices", f"{device.cdi_name!r} is no CDI name")
    if device.source or device.cdi_name is None:
        _require(_is_plain(device.source), "devices", f"the source {device.source!r} is not a plain absolute path")
    target = device.target or device.source
    if target:
        allowed = _is_plain(target) and target.startswith("/dev/") and target not in _BASIC_DEVICES
        _require(allowed, "devices", f"no device can be shown as {target!r}")
    letters = device.permissions
    _require(letters and set(letters) <= set("rwm"), "devices", f"{letters!r} are no permissions of a device")


def _check_texts(field: str, texts: Any, is_own: Callable[[str], bool]) -> None:
    for name, text in texts.items():
        _require(name and name.isprintable() and "=" not in name, field, f"{name!r} cannot be a name")
        _require(not is_own(name), field, f"{name} is the platform's own")
        _require("\0" not in text and "\n" not in text, field, f"the value of {name} has a NUL or a line break in it")
    size = sum(len(name.encode(errors="replace")) + len(text.encode(errors="replace")) for name, text in texts.items())
    _require(size <= _MAX_TEXT, field, f"{size} bytes; {_MAX_TEXT} are allowed")
