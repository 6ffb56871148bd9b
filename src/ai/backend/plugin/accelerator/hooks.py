"""Defines lifecycle hooks of accelerator plugins, and checks the additions to a workload's configuration."""

from __future__ import annotations

import math
import os.path
import re
from abc import ABC
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

import msgspec

from ai.backend.common.devices import DeviceAllocation
from ai.backend.common.errors import waiting_time
from ai.backend.common.ids import KernelId, SessionId

MANAGED_STATE_LIMIT = 65_536


class LifecycleCause(StrEnum):
    """The reason for which the agent calls a lifecycle hook."""

    CREATE = "create"
    RESTART_IN_PLACE = "restart-in-place"
    RELOCATE = "relocate"
    RECOVER = "recover"


class TerminationDeferred(Exception):
    """Raised by ``pre_terminate`` to defer the end of the workload: it is called again in ``retry_after`` seconds.

    An invalid ``retry_after`` counts as 1. Deferrals are possible until the deadline.
    """

    def __init__(self, reason: str = "", *, retry_after: float = 1.0) -> None:
        super().__init__(reason)
        self.retry_after = waiting_time(retry_after)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Describes a kernel's incarnation on this node: a container or a tree of native processes.

    ``id`` is the runtime's identifier (container id or leader process id); empty until the workload is created.
    """

    id: str
    type: Literal["container", "process_tree"]
    kernel_id: KernelId
    session_id: SessionId


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """Describes a host path that a workload sees; ``target`` is absolute."""

    source: str
    target: str
    read_only: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMapping:
    """Describes a device node that a workload gets, with its permissions.

    ``permissions`` is a subset of ``rwm``; ``cdi_name`` is used where the runtime finds a specification of it.
    """

    source: str
    target: str | None = None
    permissions: str = "rw"
    cdi_name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadConfig:
    """Describes what a plugin adds to a workload. All fields are optional (spec 00, "WorkloadConfig").

    Configs merge in allocation order: lists are joined; two values for one key, target or limit deny the creation
    naming both plugins. A plugin's variable wins over the user's, the platform's own win over both. A config that
    breaks a rule below fails the creation and marks the plugin.

    Attributes:
        mounts: plain absolute paths; none at, above or below ``/proc``, ``/sys``, ``/dev``, ``/home/config`` or the
            runner's directory, none at or above the home. Parents first. The source must exist, and shows no other
            processes and none of the agent's own directories.
        devices: targets below ``/dev``; the source must exist, or ``cdi_name`` name it.
        env_vars: at most 64 KiB together, without line breaks; none that the platform sets (``BACKENDAI_*``, ``HOME``,
            ``USER``, ``LOGNAME``). They reach the session's programs only.
        resource_data: lines ``KEY=VALUE`` of ``resource.txt``; none that the platform writes.
        networks, extra_gids: apply where the runtime attaches networks, or the agent may change groups (above 0);
            elsewhere the kernel's message says so.
        extra_syscalls: by name, beyond the allow-list, where there is a filter. Unknown ones and those that would open
            the sandbox deny the creation; so do those of io_uring, and ``perf_event_open``, unless
            ``agent.consented-syscalls`` names them.
        ipc: a folder of the host (a ``tmpfs`` with a limit of its own, mode 1777) that is the workload's ``/dev/shm``
            instead of a private one: for a daemon of the device that shares memory with its clients, which then share
            it with each other. The host's own is never given. Where workloads have no ``/dev/shm`` of their own the
            creation is denied.
        cpuset, memory_nodes, cpu_limit, memory_limit_bytes: where the runtime enforces them. Only one plugin sets each.
    """

    mounts: tuple[Mount, ...] = ()
    devices: tuple[DeviceMapping, ...] = ()
    env_vars: Mapping[str, str] = field(default_factory=dict)
    resource_data: Mapping[str, str] = field(default_factory=dict)
    networks: tuple[str, ...] = ()
    extra_gids: tuple[int, ...] = ()
    extra_syscalls: tuple[str, ...] = ()
    ipc: str | None = None
    cpuset: tuple[int, ...] = ()
    memory_nodes: tuple[int, ...] = ()
    cpu_limit: float | None = None
    memory_limit_bytes: int | None = None


class ManagedState:
    """Holds a JSON object of at most 64 KiB for one plugin and one workload, until ``post_terminate`` has ended.

    The agent stores the object. It is stored durably when a hook call ends, also by an exception or its deadline, and
    by :meth:`save`. A state that cannot be stored fails the call. ``version`` is the plugin's.
    """

    __slots__ = ("_saver", "data", "version")

    def __init__(
        self,
        data: Mapping[str, Any] | None = None,
        version: int = 1,
        *,
        saver: Callable[[ManagedState], Awaitable[None]] | None = None,
    ) -> None:
        self.data: dict[str, Any] = dict(data or {})
        self.version = version
        self._saver = saver

    async def save(self) -> None:
        """Stores the present value durably at once, before an action outside of this node.

        Raises PluginError if it is not JSON or too large; the stored value stays.
        """
        if self._saver is not None:
            await self._saver(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadImage:
    """Describes the image of a workload: its name, architecture, Linux distribution and C library.

    ``distribution`` is that of its label, such as ``ubuntu22.04``, or the node's own for an image of its files;
    ``libc`` is ``glibc`` or ``musl``; either is empty where nobody knows.
    """

    name: str
    architecture: str
    distribution: str = ""
    libc: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class HookContext:
    """Holds the cause and the other arguments of one call of a lifecycle hook.

    Attributes:
        cause: RECOVER where an agent process that died or stopped since began this call before for this attempt; else
            RESTART_IN_PLACE for all calls of a restart; else RELOCATE where the kernel was on another node; else
            CREATE.
        attempt: of the kernel, from 1; grows with every placement and restart. ``(kernel_id, attempt)`` names the
            workload.
        state: of this plugin and this attempt.
        previous_allocation: in a restart in place, what the kernel holds before and after: the same devices.
        deadline_s: how long this call may take.
        image: of the workload, to choose libraries for it.
        cluster_role, cluster_rank, cluster_size: which member of a cluster session it is; the rank counts from 0.
        end_reason: for ``pre_terminate`` and ``post_terminate``, why the workload ends: ``user-requested``,
            ``idle-timeout``, ``out-of-memory``, ``preempted``, ``restarting`` and others (``KernelEventReason``); empty
            if nobody ended it, as after a creation that failed.
        is_forced: whether that end was forced, so that it waits for no deferral.
        is_diagnostic: an administrator looks into the devices of ``device_alloc``, which are not allocated, may have
            failed, and may be held by other workloads: show them, and take and change nothing. ``CreationDenied``
            refuses it. Only with the capability ``diagnosable``.
        options: those that the session gives to this plugin, as JSON that its schema allows; the same in every call of
            a workload. A plugin makes its ``options_model`` of them.
    """

    cause: LifecycleCause
    attempt: int
    state: ManagedState
    previous_allocation: DeviceAllocation | None = None
    deadline_s: float = 30.0
    image: WorkloadImage | None = None
    cluster_role: str = "main"
    cluster_rank: int = 0
    cluster_size: int = 1
    end_reason: str = ""
    is_forced: bool = False
    is_diagnostic: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)


class AbstractLifecycleHook(ABC):  # noqa: B024  # every method has a default: a hook overrides what it needs
    """Lets a plugin act before and after the creation and the end of one workload.

    For each attempt of a kernel and each plugin whose devices it holds, the calls are a prefix of::

        pre_create+  (post_create+  pre_terminate*)?  post_terminate+

    * Before a call its beginning is stored durably: ``post_terminate`` follows every ``pre_create`` that began.
    * A call is cancelled at its deadline, and when the kernel is to end. Calls for one kernel never overlap, and those
      of an older attempt end first. Calls for different kernels run concurrently.
    * A call is repeated, boundedly, after a crash of the agent at any instruction, and where it failed as told below.
      It must have its effect once.
    * Hooks are stateless: one is made anew before each call; what must survive goes into ``context.state``.
    * Of several plugins, the creating calls come in allocation order, the ending ones in reverse.
    """

    def __init__(self, workload: Workload, device_alloc: DeviceAllocation, context: HookContext) -> None:
        self.workload = workload
        self.device_alloc = device_alloc
        self.context = context

    async def pre_create(self) -> WorkloadConfig:
        """Prepares the allocated devices before the workload exists (``workload.id`` is empty).

        The config is merged with those of other plugins. A repeat must give an equal one.

        Raises:
            CreationDenied: the kernel fails for good with this reason shown to its user.
            CreationDeferred: the session gives back its devices and waits for the scheduler, at least ``retry_after``
                seconds and a few times at most. A restart in place fails at once.

        After any exception or a missed deadline no further plugin is called, and ``post_terminate`` of all that were
        runs in reverse order.
        """
        return WorkloadConfig()

    async def post_create(self) -> None:
        """Called once the workload runs and its runner answers, before the user can use the workload.

        A failure does not end the workload: it is recorded in the kernel's ``status_data``, and the call is repeated
        in the background, also by a restarted agent, ever more rarely, until it succeeds, the kernel ends or the
        agent gives up.
        """

    async def pre_terminate(self) -> None:
        """Called before a workload is ended, or after it has ended by itself, while its devices are still allocated.

        Only called if ``post_create`` was begun. After a failure, a forced termination, or the deadline of all
        deferrals together (``kernel-lifecycles.termination-deferral``), the termination goes on. Raises
        TerminationDeferred to be called again in ``retry_after`` seconds.
        """

    async def post_terminate(self) -> None:
        """Undoes everything after the workload is gone, or never was; the managed state is dropped afterwards.

        A failure is recorded and the call repeated until the deadline of one call; then the devices are given back, and
        it is repeated in the background, ever more rarely, until it succeeds or the agent gives up. Another kernel may
        hold the devices meanwhile, but not a newer attempt of this kernel.
        """


_MAX_ITEMS = 1024
_MAX_TEXT_BYTES = 65_536
"""Bytes of all variables, or of all lines for ``resource.txt``, of one plugin."""
_PLATFORM_PATHS = ("/proc", "/sys", "/dev", "/home/config", "/opt/backend.ai/kernel", "/opt/backend.ai/bin")
"""No plugin mounts anything at, below or above these."""
_REQUIRED_PATHS = ("/home/work", "/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc", "/tmp", "/var/tmp")
"""No plugin mounts anything at or above these; below it may."""
_SYSTEM_PATHS = ("/proc", "/sys", "/dev", "/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc", "/boot", "/root", "/home")
"""No shared memory lies at, above or below these."""
_PROC_PROCESS_PATH_PATTERN = re.compile(r"/proc(/(\d+|self|thread-self)(/.*)?)?")
"""Paths of processes in /proc, which no plugin may mount: the memory of the processes can be read there."""
_BASIC_DEVICES = frozenset(
    f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom", "tty", "ptmx", "pts", "shm", "console")
)
_PLATFORM_VARIABLES = frozenset({"HOME", "USER", "LOGNAME"})
_PLATFORM_PREFIX = "BACKENDAI_"
_PLATFORM_LINES = frozenset({"SCRATCH_SIZE", "MOUNTS", "SLOTS", "UNIFIED_DEVICES", "KID"})
_MAX_GID = 2**32 - 2
_SYSCALL_NAME = re.compile(r"[a-z0-9_]{1,64}")
_NETWORK_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
_CDI_NAME = re.compile(r"[A-Za-z0-9._-]+/[A-Za-z0-9._-]+=[A-Za-z0-9._:-]+")

_COLLECTION_FIELDS = (
    "mounts", "devices", "env_vars", "resource_data", "networks", "extra_gids", "extra_syscalls", "cpuset",
    "memory_nodes",
)  # fmt: skip


def check_config(config: object, *, hidden_paths: Sequence[str] = ()) -> WorkloadConfig:
    """Validates the result of ``pre_create``, and returns a copy of it with the declared types.

    Nothing at, above or below the ``hidden_paths`` of the host may be mounted. Raises ValueError, naming field and
    value, for a broken rule of :class:`WorkloadConfig`.
    """
    if not isinstance(config, WorkloadConfig):
        raise ValueError(f"{type(config).__name__} instead of a WorkloadConfig")
    try:
        checked_config = msgspec.convert(msgspec.to_builtins(config), WorkloadConfig)
    except (msgspec.ValidationError, TypeError, ValueError) as e:
        raise ValueError(f"malformed WorkloadConfig: {e}") from None
    for field_name in _COLLECTION_FIELDS:
        _require(len(getattr(checked_config, field_name)) <= _MAX_ITEMS, field_name, f"more than {_MAX_ITEMS} items")
    for mount in checked_config.mounts:
        _check_mount(mount, hidden_paths)
    for device in checked_config.devices:
        _check_device(device)
    _check_texts(
        "env_vars",
        checked_config.env_vars,
        lambda name: name in _PLATFORM_VARIABLES or name.startswith(_PLATFORM_PREFIX),
    )
    _check_texts(
        "resource_data", checked_config.resource_data, lambda key: key in _PLATFORM_LINES or key.endswith("_SHARES")
    )
    if checked_config.ipc is not None:
        _check_ipc(checked_config.ipc, hidden_paths)
    for name in checked_config.networks:
        _require(_NETWORK_NAME.fullmatch(name), "networks", f"{name!r} is no name of a network")
    for name in checked_config.extra_syscalls:
        _require(_SYSCALL_NAME.fullmatch(name), "extra_syscalls", f"{name!r} is no name of a system call")
    for gid in checked_config.extra_gids:
        _require(0 < gid <= _MAX_GID, "extra_gids", f"{gid} is not a group that a session may have")
    for field_name in ("cpuset", "memory_nodes"):
        numbers = getattr(checked_config, field_name)
        _require(all(number >= 0 for number in numbers), field_name, f"{min(numbers, default=0)} is negative")
        _require(len(set(numbers)) == len(numbers), field_name, "a number is there twice")
    for field_name in ("cpu_limit", "memory_limit_bytes"):
        limit = getattr(checked_config, field_name)
        _require(limit is None or (math.isfinite(limit) and limit > 0), field_name, f"{limit} is no limit")
    return checked_config


def _require(condition: object, field: str, problem: str) -> None:
    if not condition:
        raise ValueError(f"bad WorkloadConfig: {field}: {problem[:300]}")


def _is_plain(path: str) -> bool:
    """Returns True for a normal absolute path without control characters."""
    return path.startswith("/") and not path.startswith("//") and os.path.normpath(path) == path and path.isprintable()


def _is_within(path: str, ancestor_path: str) -> bool:
    return path == ancestor_path or path.startswith(ancestor_path.rstrip("/") + "/")


def _check_mount(mount: Mount, hidden_paths: Sequence[str]) -> None:
    _require(_is_plain(mount.source), "mounts", f"the source {mount.source!r} is not a plain absolute path")
    source = os.path.realpath(mount.source)  # only links are read, which takes no time
    shows_hidden = any(_is_within(source, other_path) or _is_within(other_path, source) for other_path in hidden_paths)
    is_forbidden_source = shows_hidden or source == "/" or _PROC_PROCESS_PATH_PATTERN.fullmatch(source)
    _require(
        not is_forbidden_source,
        "mounts",
        f"the source {mount.source!r} would show other sessions or the platform itself",
    )
    _require(_is_plain(mount.target), "mounts", f"the target {mount.target!r} is not a plain absolute path")
    is_platform_target = any(
        _is_within(mount.target, other_path) or _is_within(other_path, mount.target) for other_path in _PLATFORM_PATHS
    )
    covers_required = any(_is_within(other_path, mount.target) for other_path in _REQUIRED_PATHS)
    _require(not is_platform_target and not covers_required, "mounts", f"nothing can be mounted at {mount.target!r}")


def _check_ipc(folder: str, hidden_paths: Sequence[str]) -> None:
    _require(_is_plain(folder), "ipc", f"{folder!r} is not a plain absolute path")
    source = os.path.realpath(folder)
    shows_hidden = any(_is_within(source, other_path) or _is_within(other_path, source) for other_path in hidden_paths)
    is_system_path = any(
        _is_within(source, other_path) or _is_within(other_path, source) for other_path in _SYSTEM_PATHS
    )
    _require(not shows_hidden and not is_system_path, "ipc", f"{folder!r} is not a folder that sessions may share")


def _check_device(device: DeviceMapping) -> None:
    if device.cdi_name is not None:
        _require(_CDI_NAME.fullmatch(device.cdi_name), "devices", f"{device.cdi_name!r} is no CDI name")
    if device.source or device.cdi_name is None:
        _require(_is_plain(device.source), "devices", f"the source {device.source!r} is not a plain absolute path")
    target_path = device.target or device.source
    if target_path:
        is_allowed = _is_plain(target_path) and target_path.startswith("/dev/") and target_path not in _BASIC_DEVICES
        _require(is_allowed, "devices", f"no device can be shown as {target_path!r}")
    permissions = device.permissions
    _require(
        permissions and set(permissions) <= set("rwm"), "devices", f"{permissions!r} are no permissions of a device"
    )


def _check_texts(field: str, text_by_name: Any, is_platform_name: Callable[[str], bool]) -> None:
    for name, value in text_by_name.items():
        _require(name and name.isprintable() and "=" not in name, field, f"{name!r} cannot be a name")
        _require(not is_platform_name(name), field, f"{name} is the platform's own")
        _require("\0" not in value and "\n" not in value, field, f"the value of {name} has a NUL or a line break in it")
    total_bytes = sum(
        len(name.encode(errors="replace")) + len(value.encode(errors="replace")) for name, value in text_by_name.items()
    )
    _require(total_bytes <= _MAX_TEXT_BYTES, field, f"{total_bytes} bytes; {_MAX_TEXT_BYTES} are allowed")
