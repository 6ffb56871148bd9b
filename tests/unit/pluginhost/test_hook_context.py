"""A hook in a host process has the whole context of its call."""

from __future__ import annotations

from dataclasses import fields
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

from ai.backend.common.devices import DeviceAllocation
from ai.backend.common.ids import KernelId, SessionId
from ai.backend.plugin.accelerator import HookContext, LifecycleCause, ManagedState, Workload, WorkloadImage
from ai.backend.plugin.accelerator.shapes import HookCall
from ai.backend.pluginhost.proxy import HostedHook

IMAGE = WorkloadImage(name="python", architecture="x86_64", distribution="alpine3.19", libc="musl")


async def test_every_field_of_the_context_is_sent() -> None:
    sent: list[HookCall] = []

    async def call(method: str, arguments: tuple[Any, ...], deadline_s: float, state: Any) -> None:
        sent.extend(arguments)

    plugin = cast("Any", SimpleNamespace(deadline_s=5.0, host=SimpleNamespace(call=call)))
    workload = Workload(id="", type="container", kernel_id=KernelId(UUID(int=1)), session_id=SessionId(UUID(int=2)))
    context = HookContext(
        cause=LifecycleCause.CREATE,
        attempt=3,
        state=ManagedState(),
        previous_allocation=DeviceAllocation(),
        deadline_s=4.0,
        image=IMAGE,
        cluster_role="sub",
        cluster_rank=2,
        cluster_size=4,
        end_reason="preempted",
        is_forced=True,
        is_diagnostic=True,
    )
    await HostedHook(workload, DeviceAllocation(), context, plugin)._call("pre_terminate")
    (request,) = sent
    for field in fields(HookContext):
        if field.name != "state":
            assert getattr(request, field.name) == getattr(context, field.name), field.name
