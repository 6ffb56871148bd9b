"""Lifecycle hooks of accelerator plugins, and what they add to the configuration of a workload."""

from __future__ import annotations

from abc import ABC
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

from ai.backend.common.devices import DeviceAllocation
from ai.backend.common.errors import waiting_time
from ai.backend.common.ids import KernelId, SessionId

MANAGED_STATE_LIMIT = 65_536


class LifecycleCause(StrEnum):
    """Why a hook is called."""

    CREATE = "create"
    RESTART_IN_PLACE = "restart-in-place"
    RELOCATE = "relocate"
    RECOVER = "recover"


class TerminationDeferred(Exception):
    """Raised by ``pre_terminate`` to ask for time; honoured until the deadline, never a cancellation.

    Args:
        retry_after: seconds until ``pre_terminate`` is called again; what is no time counts as one second.
    """

    def __init__(self, reason: str = "", *, retry_after: float = 1.0) -> None:
        super().__init__(reason)
        self.retry_after = waiting_time(retry_after)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A kernel's incarnation on this node: a container or a tree of native processes. ``id`` is the runtime's
    identifier (container id or leader process id); empty until the workload is created."""

    id: str
    type: Literal["container", "process_tree"]
    kernel_id: KernelId
    session_id: SessionId


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A host path in the workload; ``target`` is absolute."""

    source: str
    target: str
    read_only: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMapping:
    """A device node in the workload. ``permissions`` is a subset of ``rwm``; ``cdi_name`` is used where the runtime has
    CDI."""

    source: str
    target: str | None = None
    permissions: str = "rw"
    cdi_name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadConfig:
    """Describes what a plugin adds to a workload. All fields are optional (spec 00, "WorkloadConfig").

    Configs merge in allocation order. Lists are joined; the same key, mount target or device target with another value,
    a second ``cpuset``, ``memory_nodes``, ``cpu_limit`` or ``memory_limit_bytes`` that differs, denies the creation
    naming both plugins. A plugin's variable wins over the user's, the platform's own win over both. A config that
    breaks one of the rules below fails the creation and marks the plugin, which is named.

    Attributes:
        mounts: plain absolute paths; none at, above or below ``/proc``, ``/sys``, ``/dev``, ``/home/config`` or the
            runner's directory, none at or above the home. Shown parents first. The source must exist; it is not ``/``,
            nothing of other processes below ``/proc``, and nothing at, above or below the agent's own directories.
        devices: targets below ``/dev``; the source must exist, or ``cdi_name`` name it.
        env_vars: at most 64 KiB together, without line breaks; none that the platform sets (``BACKENDAI_*``, ``HOME``,
            ``USER``, ``LOGNAME``). They reach the session's programs only, not the runner or the sandbox.
        resource_data: lines ``KEY=VALUE`` of ``resource.txt``; none that the platform writes.
        networks: apply only where the runtime attaches networks; elsewhere the kernel's message says so.
        extra_gids: above 0; apply only where the agent may change groups; elsewhere the kernel's message says so.
        extra_syscalls: by name, beyond the allow-list, where there is a filter. Those that would open the sandbox, or
            that the machine does not have, deny the creation; so do those of io_uring, and ``perf_event_open``, unless
            the node's operator has agreed to them (``agent.consented-syscalls``).
        cpuset, memory_nodes, cpu_limit, memory_limit_bytes: where the runtime enforces them. Only one plugin sets each.
    """

    mounts: tuple[Mount, ...] = ()
    devices: tuple[DeviceMapping, ...] = ()
    env_vars: Mapping[str, str] = field(default_factory=dict)
    resource_data: Mapping[str, str] = field(default_factory=dict)
    networks: tuple[str, ...] = ()
    extra_gids: tuple[int, ...] = ()
    extra_syscalls: tuple[str, ...] = ()
    cpuset: tuple[int, ...] = ()
    memory_nodes: tuple[int, ...] = ()
    cpu_limit: float | None = None
    memory_limit_bytes: int | None = None


class ManagedState:
    """A small JSON object that the agent keeps with the workload for one plugin; other plugins have their own.

    Present again after an agent restart, gone after ``post_terminate``. At most 64 KiB of JSON; ``version`` is the
    plugin's. It is kept durably when a hook call ends, also by an exception or by its deadline, and at once by
    :meth:`save`. A state that cannot be kept fails the call, and the value before it stays. What is changed after the
    call has ended is not kept.
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
        """Keep the present value durably now: before an act outside of this node that a crash must not forget. Raises
        PluginError: it is not JSON, or too large; nothing is kept."""
        if self._saver is not None:
            await self._saver(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class HookContext:
    """Circumstances of a hook call.

    Attributes:
        cause: RECOVER where this call was begun before for this attempt by an agent process that died or stopped since;
            else RESTART_IN_PLACE for every call of a restart, those that end the old workload and those that create
            the new one; else RELOCATE where the kernel was on another node before; else CREATE. An end that no restart
            follows is therefore never RESTART_IN_PLACE.
        attempt: of the kernel, from 1; grows with every placement and every restart. ``(kernel_id, attempt)`` names the
            workload: what a plugin makes for it, it should find again by these two.
        state: see :class:`ManagedState`; of this plugin and this attempt.
        previous_allocation: for the calls of a restart in place, also where the cause is RECOVER: what the kernel holds
            here before and after, the same devices.
        deadline_s: how long this call may take.
    """

    cause: LifecycleCause
    attempt: int
    state: ManagedState
    previous_allocation: DeviceAllocation | None = None
    deadline_s: float = 30.0


class AbstractLifecycleHook(ABC):  # noqa: B024  # every method has a default: a hook overrides what it needs
    """Lets a plugin act before and after the creation and the end of one workload.

    For each attempt of a kernel and each plugin whose devices it holds, the calls are a prefix of::

        pre_create+  (post_create+  pre_terminate*)?  post_terminate+

    * Before a call: its managed state is there as the last call left it, and that the call begins is noted durably. So
      whatever a plugin began, it is asked to end: ``post_terminate`` follows every ``pre_create`` that began, also one
      that raised, hung, or died with the agent.
    * During a call: at its deadline, and when the kernel is to end, it is cancelled (``asyncio.CancelledError`` at its
      next await). Calls for one kernel never overlap, and those of an older attempt end before those of a newer one
      begin. Calls for different kernels run concurrently.
    * Repeats: a call is repeated after a crash of the agent at any instruction, before its effect, after it or in the
      middle of it, and where it failed as told below. It must have its effect once. The number of repeats is bounded.
    * Instances: stateless. One is made anew before each call; what must survive goes into ``context.state``.
    * Several plugins: the creating calls come in allocation order, the ending ones in reverse.
    """

    def __init__(self, workload: Workload, device_alloc: DeviceAllocation, context: HookContext) -> None:
        self.workload = workload
        self.device_alloc = device_alloc
        self.context = context

    async def pre_create(self) -> WorkloadConfig:
        """Prepare the devices. They are allocated, and the workload does not exist (``workload.id`` is empty).

        When it returns, the devices are ready and its config is merged with those of the others. A repeat must give an
        equal config: the workload may have been made from the first one.

        Raises:
            CreationDenied: the kernel fails for good with this reason shown to its user.
            CreationDeferred: the whole session gives back its devices and waits for the scheduler, at least
                ``retry_after`` seconds and at most a few times; then it fails with the last reason. In a restart in
                place there is nowhere to wait, and it fails at once.

        After these, any other exception and a missed deadline, no further plugin is asked, and ``post_terminate`` of
        all that were asked runs in reverse order, this one's first.
        """
        return WorkloadConfig()

    async def post_create(self) -> None:
        """The workload runs and its runner answers; the user does not have it yet. ``workload.id`` is set. A failure
        does not end the workload: it is recorded in the kernel's ``status_data``, the kernel starts, and the call is
        repeated in the background, ever more rarely, also by a restarted agent, until it succeeds, the kernel ends or
        the agent gives up."""

    async def pre_terminate(self) -> None:
        """The workload is about to be ended, or has ended by itself; its devices are still allocated.

        Only called if ``post_create`` was begun. It cannot prevent the end: after a failure the termination goes on,
        and so it does after the deadline of all deferrals together (``kernel-lifecycles.termination-deferral``), which
        a restart of the agent does not begin anew. A deferral over the deadline is recorded in the kernel's
        ``status_data``. A forced termination does not wait.

        Raises:
            TerminationDeferred: call again in ``retry_after`` seconds.
        """

    async def post_terminate(self) -> None:
        """The workload is gone, or never was. Undo everything; the managed state is dropped afterwards.

        A failure is recorded, and the call repeated until the deadline of one call; then the devices are given back,
        and the call goes on being repeated in the background, ever more rarely, also by a restarted agent, until it
        succeeds or the agent gives up, which is recorded too. Meanwhile another kernel may hold the devices, but not a
        newer attempt of this kernel.
        """
