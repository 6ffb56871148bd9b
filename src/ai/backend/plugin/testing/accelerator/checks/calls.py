"""Deadlines, the event loop, and calls that overlap."""

from __future__ import annotations

import asyncio

from ai.backend.common.devices import DeviceAllocation
from ai.backend.plugin.accelerator import ManagedState, StatContext
from ai.backend.plugin.testing.accelerator.checks.registry import Checks, expect
from ai.backend.plugin.testing.accelerator.checks.results import CheckFailed, NotApplicable
from ai.backend.plugin.testing.accelerator.checks.subject import HOOKS, KERNEL, Subject

CHECKS = Checks()
_TRIES = 3
_LISTING = ("list_devices", "configurable_slots", "available_slots", "variant_namespaces", "get_node_info")


async def _everything(subject: Subject) -> None:
    for method in _LISTING:
        await subject.call(method)
    try:
        allocation = await subject.an_allocation()
    except NotApplicable:
        allocation = DeviceAllocation()
    await subject.call("alloc_to_devices", allocation)
    ctx = StatContext(at=1000.0, allocations={KERNEL: allocation})
    await subject.call("gather_node_metrics", ctx)
    await subject.call("gather_workload_metrics", ctx, [KERNEL])
    if subject.plugin.capabilities.process_metrics:
        await subject.call("gather_process_metrics", ctx, {})
    if allocation.slots:
        state = ManagedState()
        for name in HOOKS:
            await subject.hook(name, allocation, state)


@CHECKS.add("accelerator v2, The contract: host processes")
async def calls_leave_the_event_loop_free(subject: Subject) -> None:
    """A plugin that does not say that it is ``blocking`` never holds the event loop for long.

    The best of three rounds counts: a busy machine is not the plugin's fault.
    """
    if subject.plugin.capabilities.blocking:
        raise NotApplicable("the plugin is blocking, and so has a process of its own")
    best: dict[str, float] = {}
    for _ in range(_TRIES):
        subject.held_s.clear()
        await _everything(subject)
        for method, seconds in subject.held_s.items():
            best[method] = min(seconds, best.get(method, seconds))
        if all(seconds <= subject.max_block_s for seconds in best.values()):
            return
    worst = max(best, key=lambda method: best[method])
    raise CheckFailed(
        f"{worst} holds the event loop for {best[worst] * 1000:.0f} ms ({subject.max_block_s * 1000:.0f} ms are"
        " allowed): use asyncio.to_thread, or declare PluginCapabilities(blocking=True)"
    )


@CHECKS.add("AbstractComputePlugin: calls for different workloads may run concurrently")
async def calls_may_overlap(subject: Subject) -> None:
    """The same answers come when several calls run at once."""
    alone = [await subject.call(method) for method in _LISTING[:4]]
    together = await asyncio.gather(*(subject.call(method) for _ in range(3) for method in _LISTING[:4]))
    for number, answer in enumerate(together):
        method = _LISTING[number % 4]
        is_same = _steady(method, answer) == _steady(method, alone[number % 4])
        expect(is_same, f"{method} answers something else while other calls run")


def _steady(method: str, answer: object) -> object:
    """Returns an answer without what may change by itself: a device's health, and what follows from it."""
    if method == "list_devices":
        return [(d.device_id, d.slots) for d in answer]  # type: ignore[attr-defined]  # settled to devices
    return None if method == "available_slots" else answer
