"""Wraps the plugin under test, and calls the plugin for checks."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from functools import partial
from types import coroutine
from typing import Any
from uuid import UUID

import msgspec

from ai.backend.common.devices import ComputeDevice, DeviceAllocation, DeviceHealth
from ai.backend.common.errors import BackendError, CreationDeferred, CreationDenied
from ai.backend.common.ids import KernelId, SessionId, SlotName
from ai.backend.common.structs import replace
from ai.backend.plugin.accelerator import (
    AbstractComputePlugin,
    AbstractLifecycleHook,
    HookContext,
    LifecycleCause,
    ManagedState,
    TerminationDeferred,
    Workload,
    WorkloadConfig,
    check_config,
)
from ai.backend.plugin.accelerator.shapes import DIRECT_CALLS, InvalidResponse, normalized
from ai.backend.plugin.testing.accelerator.checks.registry import CheckFailed, NotApplicable, format_value
from ai.backend.plugin.tracebacks import description_of

KERNEL = KernelId(UUID(int=1))
OTHER_KERNEL = KernelId(UUID(int=3))
SESSION = SessionId(UUID(int=2))
HOOKS = ("pre_create", "post_create", "pre_terminate", "post_terminate")
_MAX_DEFERRALS = 5
"""The largest number of times that a termination may be deferred in a check."""

Remake = Callable[[AbstractComputePlugin], Awaitable[AbstractComputePlugin]]


@coroutine
def _await_timed(awaitable: Awaitable[Any], record_seconds: Callable[[float], None]) -> Generator[Any, Any, Any]:
    """Awaits work, and records how long each of its steps held the event loop."""
    coroutine_steps = awaitable.__await__()
    next_step: Callable[[], Any] = partial(next, coroutine_steps)
    while True:
        started_at = time.perf_counter()
        try:
            pending_future = next_step()
        except StopIteration as done:
            return done.value
        finally:
            record_seconds(time.perf_counter() - started_at)
        try:
            resume_value = yield pending_future
        except BaseException as e:  # noqa: BLE001  # a cancellation is thrown in, as into any coroutine
            next_step = partial(coroutine_steps.throw, e)
        else:
            next_step = (
                partial(coroutine_steps.send, resume_value)
                if resume_value is not None
                else partial(next, coroutine_steps)
            )


@dataclass(slots=True, kw_only=True)
class Subject:
    """Wraps the plugin under test with the operations that checks use.

    Attributes:
        plugin: not initialised yet where the check says so.
        remake: makes the plugin of the next agent process, not initialised.
        deadline_s: for each call.
        max_block_s: how long a plugin that is not ``blocking`` may hold the event loop in one piece.
        has_device_files: whether the paths of the plugin's hooks are on this machine.
        image: host path of an image for a ``programmable`` plugin.
        block_s_by_method: the longest time that a call of each method held the event loop.
        begun_workloads: the workloads, by kernel and attempt, whose ``pre_create`` was called and that have not ended.
    """

    plugin: AbstractComputePlugin
    remake: Remake
    deadline_s: float = 10.0
    max_block_s: float = 0.1
    may_alter: bool = True
    has_device_files: bool = True
    image: str | None = None
    block_s_by_method: dict[str, float] = field(default_factory=dict)
    begun_workloads: dict[tuple[KernelId, int], tuple[DeviceAllocation, ManagedState]] = field(default_factory=dict)

    async def call(self, method: str, *arguments: Any, hook: Any = None) -> Any:
        """Calls a method of the plugin, or of ``hook``, within the deadline, and returns its answer.

        The answer is as it would arrive through a host process. Raises CheckFailed if it is late, unusable or an
        exception that the interface does not name; BackendError and TerminationDeferred as the plugin does.
        """

        def record_block(seconds: float) -> None:
            self.block_s_by_method[method] = max(self.block_s_by_method.get(method, 0.0), seconds)

        target = self.plugin if hook is None else hook
        try:
            async with asyncio.timeout(self.deadline_s):
                answer = await _await_timed(_call_async(getattr(target, method), arguments), record_block)
            return normalized(method, answer) if method in DIRECT_CALLS else answer
        except TimeoutError:
            raise CheckFailed(f"{method} took longer than {self.deadline_s:g} s") from None
        except InvalidResponse as e:
            raise CheckFailed(f"{method}: {e}") from None
        except (BackendError, TerminationDeferred, CheckFailed):
            raise
        except Exception as e:
            raise CheckFailed(f"{method} raised {description_of(e)}") from e

    async def call_validated(self, method: str, validate: Callable[[Any], Any], *arguments: Any) -> Any:
        """Calls a method and returns its answer as the agent validates it. Raises CheckFailed if that fails."""
        try:
            return validate(await self.call(method, *arguments))
        except InvalidResponse as e:
            raise CheckFailed(f"{method}: {e}") from None

    async def call_refused(
        self, method: str, *arguments: Any, error_class: type[BackendError], circumstance: str
    ) -> None:
        """Calls a method that must raise an error of ``error_class``.

        Raises CheckFailed if the call succeeds, or fails in another way.
        """
        try:
            await self.call(method, *arguments)
        except error_class:
            return
        except BackendError as e:
            raise CheckFailed(
                f"{method} raised {type(e).__name__} instead of {error_class.__name__} {circumstance}: {e}"
            ) from e
        raise CheckFailed(f"{method} was done {circumstance}; it must raise {error_class.__name__}")

    @asynccontextmanager
    async def restart(self) -> AsyncIterator[Subject]:
        """Yields the plugin after a restart of the agent, initialised."""
        restarted_subject = replace(self, plugin=await self.remake(self.plugin))
        await restarted_subject.call("init")
        try:
            yield restarted_subject
        finally:
            await restarted_subject.call("cleanup")

    async def devices(self) -> Sequence[ComputeDevice]:
        listed_devices: tuple[ComputeDevice, ...] = await self.call("list_devices")
        return listed_devices

    async def a_device(self) -> ComputeDevice:
        """Returns a healthy device. Raises NotApplicable if there is none."""
        for device in await self.devices():
            if device.health is DeviceHealth.HEALTHY:
                return device
        raise NotApplicable("this node has no healthy device of the plugin")

    async def smallest_amounts(self) -> dict[SlotName, Decimal]:
        """Returns the smallest quantity of every slot that can be allocated now."""
        quanta = {slot.slot_name: slot.quantum for device in await self.devices() for slot in device.slots}
        total_by_slot: Mapping[SlotName, Decimal] = await self.call("available_slots")
        return {slot: quanta[slot] for slot, total_amount in total_by_slot.items() if total_amount and slot in quanta}

    async def a_request(self) -> dict[SlotName, Decimal]:
        """Returns a request for one slot's smallest quantity. Raises NotApplicable if there is nothing."""
        for slot, quantity in (await self.smallest_amounts()).items():
            return {slot: quantity}
        raise NotApplicable("this node offers no device of the plugin")

    async def an_allocation(self) -> DeviceAllocation:
        """Returns the devices that a fresh alloc map gives for :meth:`a_request`."""
        request = await self.a_request()
        allocation: DeviceAllocation = (await self.call("create_alloc_map")).allocate(request)
        return allocation

    async def hook(
        self, method: str, allocation: DeviceAllocation, state: ManagedState, kernel: KernelId = KERNEL, **context: Any
    ) -> Any:
        """Creates a lifecycle hook and calls one of its methods, as the agent does.

        A deferred termination is repeated. Raises NotApplicable if the plugin takes no workload now, CheckFailed as
        :meth:`call`, and for a config that the agent would refuse.
        """
        context_fields = {"cause": LifecycleCause.CREATE, "attempt": 1, "deadline_s": self.deadline_s, **context}
        incarnation = (kernel, int(context.get("attempt", 1)))
        if method == "pre_create":
            self.begun_workloads[incarnation] = (allocation, state)
        workload = Workload(
            id="" if method == "pre_create" else "workload-1", type="process_tree", kernel_id=kernel, session_id=SESSION
        )
        for _ in range(_MAX_DEFERRALS):
            lifecycle_hook: AbstractLifecycleHook = self.plugin.create_lifecycle_hook(
                workload, allocation, HookContext(state=state, **context_fields)
            )
            try:
                answer = await self.call(method, hook=lifecycle_hook)
            except TerminationDeferred as e:
                if method != "pre_terminate":
                    raise CheckFailed(f"{method} raised TerminationDeferred, which only pre_terminate may") from e
                await asyncio.sleep(min(e.retry_after, 0.1))
                continue
            except (CreationDenied, CreationDeferred) as e:
                if method != "pre_create":
                    raise CheckFailed(f"{method} raised {type(e).__name__}, which only pre_create may") from e
                raise NotApplicable(f"the plugin takes no workload now: {e.message}") from e
            if method == "post_terminate":
                self.begun_workloads.pop(incarnation, None)
            return validate_config(answer) if method == "pre_create" else None
        return None

    async def end_workloads(self) -> None:
        """Calls ``post_terminate`` for all workloads that a check has begun, and ignores failures.

        Other checks prove that the call works.
        """
        for (kernel, attempt), (allocation, state) in list(self.begun_workloads.items()):
            try:
                await self.hook("post_terminate", allocation, state, kernel, attempt=attempt)
            except (CheckFailed, BackendError):
                continue


async def _call_async(method: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    answer = method(*arguments)
    if not hasattr(answer, "__await__"):
        raise CheckFailed(f"{method.__name__} is not `async def`: it returned {format_value(answer)}")
    return await answer


def validate_config(config: object) -> WorkloadConfig:
    """Returns a hook's configuration as the agent validates it. Raises CheckFailed."""
    try:
        return check_config(config)
    except ValueError as e:
        raise CheckFailed(f"pre_create: {e}") from None


def restore_state(state: ManagedState) -> ManagedState:
    """Returns a managed state as a restarted agent reads it. Raises CheckFailed if the state is no JSON."""
    try:
        return ManagedState(json.loads(msgspec.json.encode(state.data)), state.version)
    except (TypeError, ValueError) as e:
        raise CheckFailed(f"the managed state is not JSON: {e}") from None
