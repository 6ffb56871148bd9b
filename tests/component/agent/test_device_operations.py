"""What administrators do to devices while kernels come and go: on the mock, in the agent."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from ai.backend.accelerator.mock import MockPlugin
from ai.backend.agent.composition import Agent, this_host
from ai.backend.agent.lifecycle.supervisor import Supervisor
from ai.backend.common.devices import DeviceHealth
from ai.backend.common.errors import Conflict, InsufficientResource, InvalidInput, NotFound, PluginError
from ai.backend.common.ids import DeviceId
from ai.backend.common.slots import format_quantity
from ai.backend.common.states import KernelStatus
from ai.backend.common.structs import replace
from ai.backend.common.wire.agent import (
    ClaimSpec,
    CreateKernels,
    DestroyKernel,
    DeviceOptionsOf,
    KernelSpec,
    OperateDevice,
)
from ai.backend.plugin.accelerator import AbstractComputePlugin, DeviceHealthChange
from ai.backend.plugin.discovery import PluginSource
from tests.component.agent.conftest import Bench

DECLARATION = """
slot_name = "mock"
[[devices]]
mother_uuid = "a"
model_name = "Mock GPU"
memory_size = "40g"
[[devices.partitions]]
name = "1g.10gb"
memory_size = "10g"
subproc_count = 1
max = 2
[[devices]]
mother_uuid = "b"
model_name = "Mock GPU"
[[devices]]
mother_uuid = "far"
model_name = "Mock GPU"
is_attached = false
"""


class Slow(MockPlugin):
    """Resets only once the gate opens."""

    gate: ClassVar[asyncio.Event]

    async def reset(self, device_id: DeviceId) -> None:
        await self.gate.wait()
        await super().reset(device_id)


@pytest.fixture
def slow(bench: Bench, tmp_path: Path) -> Iterator[type[Slow]]:
    path = tmp_path / "mock-accelerator.toml"
    path.write_text(DECLARATION)

    class Made(Slow):
        gate = asyncio.Event()

    Made.gate.set()
    settings = {"config-path": str(path), "state-path": str(tmp_path / "state.json")}
    bench.options["plugins"] = {"mock": settings}

    def load() -> type[AbstractComputePlugin]:
        return Made

    bench.agent = lambda: _agent(bench, load)  # type: ignore[method-assign]  # this bench has a plugin with settings
    yield Made
    Made.gate.set()


def _agent(bench: Bench, load: object) -> Agent:
    source = PluginSource("mock", load)  # type: ignore[arg-type]  # a loader
    host = replace(this_host(bench.settings()), wall_clock=bench._now)
    agent = Agent(bench.settings(), bench.runtime, bench.manager, plugins=[source], host=host)
    bench.agents.append(agent)  # it is closed with the others
    return agent


def op(action: str, device: str, argument: str = "") -> OperateDevice:
    return OperateDevice(device_name="mock", device_id=device, action=action, argument=argument)


async def test_a_device_is_cut_used_and_made_whole(bench: Bench, slow: type[Slow]) -> None:
    agent = await bench.start()
    options = await agent.commands.device_options(DeviceOptionsOf(device_name="mock"))
    assert {"partition", "reset", "attach"} <= set(options.actions)
    assert [(p.name, p.available) for p in options.profiles["a"]] == [("1g.10gb", 2)]

    made = await agent.commands.operate_device(op("partition", "a", "1g.10gb"))
    (slot,) = [p.slot_name for p in options.profiles["a"]]
    spec = await bench.run(agent, slots={slot: "1"})
    with pytest.raises(Conflict, match="in use"):
        await agent.commands.operate_device(op("unpartition", made.device_id))
    await agent.commands.destroy_kernel(DestroyKernel(kernel_id=spec.kernel_id, attempt=1, forced=True))
    await bench.until(spec, KernelStatus.TERMINATED)
    await agent.commands.operate_device(op("unpartition", made.device_id))
    assert made.device_id not in (await agent.commands.device_options(DeviceOptionsOf(device_name="mock"))).devices
    await bench.run(agent, slots={"mock.device": "2"})


async def test_nobody_gets_a_device_that_is_worked_on(bench: Bench, slow: type[Slow]) -> None:
    slow.gate.clear()
    agent = await bench.start()
    resetting = asyncio.create_task(agent.commands.operate_device(op("reset", "a")))
    await asyncio.sleep(0.1)
    with pytest.raises(InsufficientResource):
        await agent.commands.create_kernels(CreateKernels(kernels=[bench.spec(slots={"mock.device": "2"})]))
    await bench.run(agent, slots={"mock.device": "1"})  # the other one
    assert not resetting.done()
    slow.gate.set()
    assert (await resetting).device_id == "a"
    await bench.run(agent, slots={"mock.device": "1"})


async def test_a_failed_operation_gives_the_device_back(bench: Bench, slow: type[Slow]) -> None:
    async def burn(self: Slow, device_id: str) -> None:
        raise OSError("smoke")

    slow.power_off = burn  # type: ignore[method-assign]  # a broken driver
    agent = await bench.start()
    with pytest.raises(PluginError, match="smoke"):
        await agent.commands.operate_device(op("power-off", "a"))
    await bench.run(agent, slots={"mock.device": "2"})


async def test_a_device_elsewhere_is_attached_and_detached(bench: Bench, slow: type[Slow]) -> None:
    agent = await bench.start()
    assert (await agent.commands.device_options(DeviceOptionsOf(device_name="mock"))).attachable == ["far"]
    await agent.commands.operate_device(op("attach", "far"))
    spec = await bench.run(agent, slots={"mock.device": "3"})
    with pytest.raises(Conflict):
        await agent.commands.operate_device(op("detach", "far"))
    await agent.commands.destroy_kernel(DestroyKernel(kernel_id=spec.kernel_id, attempt=1, forced=True))
    await bench.until(spec, KernelStatus.TERMINATED)
    await agent.commands.operate_device(op("detach", "far"))
    with pytest.raises(InsufficientResource):
        await agent.commands.create_kernels(CreateKernels(kernels=[bench.spec(slots={"mock.device": "3"})]))


@pytest.mark.parametrize(
    ("request_", "error", "words"),
    [
        (op("polish", "a"), InvalidInput, "no operation on a device; there are partition"),
        (op("reset", "nobody"), NotFound, "lists no device"),
        (op("partition", "a"), InvalidInput, "needs the profile"),
        (op("partition", "a", "9g"), NotFound, "no profile"),
        (OperateDevice(device_name="cuda", device_id="a", action="reset"), PluginError, "cuda"),
    ],
)
async def test_what_cannot_be_done_is_told(
    bench: Bench, slow: type[Slow], request_: OperateDevice, error: type[Exception], words: str
) -> None:
    agent = await bench.start()
    with pytest.raises(error, match=words):
        await agent.commands.operate_device(request_)
    await bench.run(agent, slots={"mock.device": "2"})


async def test_a_cordoned_device_takes_nothing_new_and_keeps_its_kernels(slow: type[Slow], bench: Bench) -> None:
    agent = await bench.start()
    holder = await bench.run(agent, slots={"mock.device": "1"}, devices={"mock.device": {"a": "1"}})
    cordon = OperateDevice(device_name="mock", device_id="a", action="cordon", argument="the fan\nis loud")
    await agent.commands.operate_device(cordon)
    report = await _devices(bench)
    assert report["a"] == ("unhealthy", "cordoned: the fan is loud")
    assert report["b"][0] == "healthy"
    assert all(not o.unhealthy_devices for o in bench.manager.observations), "the device has not failed"
    options = await agent.commands.device_options(DeviceOptionsOf(device_name="mock"))
    assert options.cordons == {"a": "cordoned: the fan is loud"}
    assert {"cordon", "uncordon"} <= set(options.actions)
    await agent.commands.destroy_kernel(DestroyKernel(kernel_id=holder.kernel_id, attempt=1))
    await bench.until(holder, KernelStatus.TERMINATED)
    first = await bench.run(agent, slots={"mock.device": "1"})
    assert (await bench.until(first, KernelStatus.RUNNING)).devices == {"mock.device": {"b": "1"}}
    with pytest.raises(InsufficientResource):
        await agent.commands.create_kernels(CreateKernels(kernels=[bench.spec(slots={"mock.device": "1"})]))
    await agent.commands.operate_device(op("uncordon", "a"))
    second = await bench.run(agent, slots={"mock.device": "1"})
    assert (await bench.until(second, KernelStatus.RUNNING)).devices == {"mock.device": {"a": "1"}}


@pytest.mark.parametrize("action", ["cordon", "taint"])
async def test_what_holds_for_a_device_holds_for_its_partitions(bench: Bench, slow: type[Slow], action: str) -> None:
    agent = await bench.start()
    slot = await _part_slot(agent)
    made = await agent.commands.operate_device(op("partition", "a", "1g.10gb"))
    await agent.commands.operate_device(op(action, "a", "looking into it"))
    with pytest.raises(InsufficientResource):
        await agent.commands.create_kernels(CreateKernels(kernels=[bench.spec(slots={slot: "1"})]))
    await agent.commands.operate_device(op("uncordon", "a"))
    spec = await bench.run(agent, slots={slot: "1"})
    assert (await bench.until(spec, KernelStatus.RUNNING)).devices == {slot: {made.device_id: "1"}}


async def test_a_cordon_survives_a_restart_and_ends(
    slow: type[Slow], bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ai.backend.agent.devices.upkeep._CORDON_CHECKS", 1000)
    clock = [1_800_000_000.0]
    bench.wall_clock = lambda: clock[0]
    agent = await bench.start()
    cordon = OperateDevice(
        device_name="mock", device_id="a", action="cordon", argument="firmware", expires_after_s=3600.0
    )
    await agent.commands.operate_device(cordon)
    await agent.stop()
    await bench.start()
    assert (await _devices(bench))["a"] == ("unhealthy", "cordoned until 2027-01-15 09:00Z: firmware")
    clock[0] += 3601
    async with asyncio.timeout(10):
        while (await _devices(bench))["a"][0] != "healthy":
            pass


@pytest.mark.parametrize(
    ("operation", "error"),
    [
        (OperateDevice(device_name="mock", device_id="a", action="cordon", argument=" "), InvalidInput),
        (OperateDevice(device_name="mock", device_id="zzz", action="cordon", argument="x"), NotFound),
        (OperateDevice(device_name="nobody", device_id="a", action="cordon", argument="x"), NotFound),
        (OperateDevice(device_name="mock", device_id="zzz", action="uncordon"), NotFound),
        (
            OperateDevice(device_name="mock", device_id="a", action="cordon", argument="x", expires_after_s=-1.0),
            InvalidInput,
        ),
    ],
)
async def test_a_cordon_that_makes_no_sense(
    slow: type[Slow], bench: Bench, operation: OperateDevice, error: type[Exception]
) -> None:
    agent = await bench.start()
    with pytest.raises(error):
        await agent.commands.operate_device(operation)
    await agent.commands.operate_device(op("uncordon", "a"))


async def _devices(bench: Bench) -> dict[str, tuple[str, str]]:
    await bench.manager.next_heartbeat()
    return {d["device_id"]: (d["health"], d["health_reason"]) for d in bench.manager.heartbeats[-1].devices}


def _supervisor(agent: Agent) -> Supervisor:
    assert agent.supervisor is not None
    return agent.supervisor


def _on_demand(bench: Bench, idle_s: float | None = None) -> None:
    bench.options["agent"] = {"partition-on-demand": ["mock"], "partition-idle": idle_s}


async def _part_slot(agent: Agent, name: str = "1g.10gb") -> str:
    options = await agent.commands.device_options(DeviceOptionsOf(device_name="mock"))
    return next(profile.slot_name for profile in options.profiles["a"] if profile.name == name)


async def _listed(agent: Agent) -> list[str]:
    return (await agent.commands.device_options(DeviceOptionsOf(device_name="mock"))).devices


async def _end(bench: Bench, agent: Agent, spec: KernelSpec) -> None:
    await agent.commands.destroy_kernel(DestroyKernel(kernel_id=spec.kernel_id, attempt=1, forced=True))
    await bench.until(spec, KernelStatus.TERMINATED)


def _amounts(agent: Agent) -> dict[str, str]:
    """Returns what the agent offers of the mock's slots."""
    slots = _supervisor(agent).context.inventory.kinds["mock"].slots
    return {name: format_quantity(amount) for name, amount in slots.items()}


async def test_a_device_is_cut_for_the_session_that_gets_a_part(bench: Bench, slow: type[Slow]) -> None:
    _on_demand(bench)
    agent = await bench.start()
    slot = await _part_slot(agent)
    first = await bench.run(agent, slots={slot: "1"})
    second = await bench.run(agent, slots={slot: "1"})
    held = [_supervisor(agent).kernels[spec.kernel_id].record.allocation[slot] for spec in (first, second)]
    assert held == [{"a/1g.10gb/0": "1"}, {"a/1g.10gb/1": "1"}]
    with pytest.raises(InsufficientResource):
        await agent.commands.create_kernels(CreateKernels(kernels=[bench.spec(slots={slot: "1"})]))
    with pytest.raises(InsufficientResource):  # a is in parts, b is whole
        await agent.commands.create_kernels(CreateKernels(kernels=[bench.spec(slots={"mock.device": "2"})]))
    assert _amounts(agent)["mock.device"] == "2"  # so a session that asks for both waits


async def test_parts_that_nobody_holds_are_joined_for_the_session_that_gets_the_device(
    bench: Bench, slow: type[Slow]
) -> None:
    _on_demand(bench)
    agent = await bench.start()
    slot = await _part_slot(agent)
    first, second = [await bench.run(agent, slots={slot: "1"}) for _ in range(2)]
    await _end(bench, agent, first)
    with pytest.raises(InsufficientResource):  # the other part is held
        await agent.commands.create_kernels(CreateKernels(kernels=[bench.spec(slots={"mock.device": "2"})]))
    await _end(bench, agent, second)
    assert {"a/1g.10gb/0", "a/1g.10gb/1"} <= set(await _listed(agent))
    both = await bench.run(agent, slots={"mock.device": "2"})
    assert _supervisor(agent).kernels[both.kernel_id].record.allocation["mock.device"] == {"a": "1", "b": "1"}
    assert not {"a/1g.10gb/0", "a/1g.10gb/1"} & set(await _listed(agent))
    with pytest.raises(InsufficientResource):
        await agent.commands.create_kernels(CreateKernels(kernels=[bench.spec(slots={slot: "1"})]))


async def test_a_part_that_nobody_holds_is_used_again(bench: Bench, slow: type[Slow]) -> None:
    _on_demand(bench)
    agent = await bench.start()
    slot = await _part_slot(agent)
    first, second = [await bench.run(agent, slots={slot: "1"}) for _ in range(2)]
    await _end(bench, agent, first)
    slow.create_partition = None  # type: ignore[assignment,method-assign]  # nothing is cut
    third = await bench.run(agent, slots={slot: "1"})
    held = [_supervisor(agent).kernels[spec.kernel_id].record.allocation[slot] for spec in (second, third)]
    assert held == [{"a/1g.10gb/1": "1"}, {"a/1g.10gb/0": "1"}]


LARGER = """memory_size = "40g"
[[devices.partitions]]
name = "4g.40gb"
memory_size = "40g"
subproc_count = 4
max = 1
[[devices.partitions]]
name = "1g.10gb"
memory_size = "10g"
subproc_count = 1
max = 4
[[devices]]
mother_uuid = "b"
model_name = "Mock GPU"
"""


async def test_small_parts_are_joined_for_a_larger_one(bench: Bench, slow: type[Slow], tmp_path: Path) -> None:
    start = DECLARATION.index('memory_size = "40g"')
    (tmp_path / "mock-accelerator.toml").write_text(DECLARATION[:start] + LARGER)
    _on_demand(bench)
    agent = await bench.start()
    small, large = await _part_slot(agent), await _part_slot(agent, "4g.40gb")
    specs = [await bench.run(agent, slots={small: "1"}) for _ in range(3)]
    for spec in specs:
        await _end(bench, agent, spec)
    larger = await bench.run(agent, slots={large: "1"})
    assert _supervisor(agent).kernels[larger.kernel_id].record.allocation[large] == {"a/4g.40gb/0": "1"}
    assert await _listed(agent) == ["a", "a/4g.40gb/0", "b"]


async def test_a_part_that_cannot_be_joined_defers_the_session_once(bench: Bench, slow: type[Slow]) -> None:
    async def refuse(self: Slow, partition_id: DeviceId) -> None:
        raise Conflict(f"a program runs on {partition_id}")

    slow.destroy_partition = refuse  # type: ignore[method-assign,assignment]  # the one call that fails
    _on_demand(bench)
    agent = await bench.start()
    slot = await _part_slot(agent)
    await _end(bench, agent, await bench.run(agent, slots={slot: "1"}))
    spec = bench.spec(slots={"mock.device": "2"})
    await agent.commands.create_kernels(CreateKernels(kernels=[spec]))
    assert "a program runs on a/1g.10gb/0" in str(await bench.until(spec, KernelStatus.PENDING))
    assert _amounts(agent)["mock.device"] == "1"  # it is not planned again at once
    with pytest.raises(InsufficientResource):
        await agent.commands.create_kernels(CreateKernels(kernels=[bench.spec(slots={"mock.device": "2"})]))
    await bench.run(agent, slots={slot: "1"})  # as a part it may be used


@pytest.mark.parametrize("action", ["cordon", "taint"])
async def test_a_part_with_a_cordon_or_taint_is_not_joined(bench: Bench, slow: type[Slow], action: str) -> None:
    _on_demand(bench, 0.0)
    agent = await bench.start()
    await _end(bench, agent, await bench.run(agent, slots={await _part_slot(agent): "1"}))
    await agent.commands.operate_device(op(action, "a/1g.10gb/0", "looking into it"))
    with pytest.raises(InsufficientResource):
        await agent.commands.create_kernels(CreateKernels(kernels=[bench.spec(slots={"mock.device": "2"})]))
    await _supervisor(agent).context.partitioner.join_idle()
    assert "a/1g.10gb/0" in await _listed(agent)
    await agent.commands.operate_device(op("uncordon", "a/1g.10gb/0"))
    await bench.run(agent, slots={"mock.device": "2"})


async def test_the_device_of_a_held_part_is_refused_for_operations(bench: Bench, slow: type[Slow]) -> None:
    _on_demand(bench)
    agent = await bench.start()
    await bench.run(agent, slots={await _part_slot(agent): "1"})
    with pytest.raises(Conflict, match="in use"):
        await agent.commands.operate_device(op("reset", "a"))


async def test_a_part_that_is_idle_is_joined_and_never_under_a_session(bench: Bench, slow: type[Slow]) -> None:
    _on_demand(bench, 0.0)
    agent = await bench.start()
    slot = await _part_slot(agent)
    first, second = [await bench.run(agent, slots={slot: "1"}) for _ in range(2)]
    await _end(bench, agent, first)
    await _supervisor(agent).context.partitioner.join_idle()
    assert "a/1g.10gb/0" not in await _listed(agent)
    assert "a/1g.10gb/1" in await _listed(agent)
    await _end(bench, agent, second)
    await _supervisor(agent).context.partitioner.join_idle()
    assert await _listed(agent) == ["a", "b"]
    await bench.run(agent, slots={"mock.device": "2"})


CLAIM = "11111111-1111-4111-8111-111111111111"


def claim_of(slot: str, devices: dict[str, str] | None = None) -> ClaimSpec:
    """A claim of one partition, bound where it has devices."""
    return ClaimSpec(
        id=CLAIM, slots={slot: "1"}, devices={} if devices is None else {slot: devices}, is_bound=devices is not None
    )


@pytest.mark.parametrize("is_restarted", [False, True])
async def test_a_part_that_a_claim_keeps_is_neither_joined_nor_given_to_others(
    bench: Bench, slow: type[Slow], is_restarted: bool
) -> None:
    _on_demand(bench, 0.0)
    agent = await bench.start()
    slot = await _part_slot(agent)
    first = await bench.run(agent, slots={slot: "1"}, claim=claim_of(slot))
    bench.manager.kept = {CLAIM: {slot: {"a/1g.10gb/0": "1"}}}
    await _end(bench, agent, first)
    if is_restarted:
        await agent.stop()
        agent = await bench.start()
    for _ in range(2):
        await _supervisor(agent).context.partitioner.join_idle()
    assert "a/1g.10gb/0" in await _listed(agent)
    whole = CreateKernels(kernels=[bench.spec(slots={"mock.device": "2"})], kept=bench.manager.kept)
    with pytest.raises(InsufficientResource):
        await agent.commands.create_kernels(whole)
    spec = bench.spec(slots={slot: "1"})
    await agent.commands.create_kernels(CreateKernels(kernels=[spec], kept=bench.manager.kept))
    await bench.until(spec, KernelStatus.RUNNING)
    assert _supervisor(agent).kernels[spec.kernel_id].record.allocation[slot] == {"a/1g.10gb/1": "1"}
    bound = claim_of(slot, {"a/1g.10gb/0": "1"})
    again = await bench.run(agent, slots={slot: "1"}, claim=bound)
    assert _supervisor(agent).kernels[again.kernel_id].record.allocation[slot] == {"a/1g.10gb/0": "1"}
    for ended in (spec, again):
        await _end(bench, agent, ended)
    bench.manager.kept = {}
    await bench.run(agent, slots={"mock.device": "2"})


async def test_nothing_is_joined_while_nobody_says_what_claims_keep(bench: Bench, slow: type[Slow]) -> None:
    """The manager binds a claim by what it hears: an agent that it has not heard out must not trust its answer."""
    _on_demand(bench, 0.0)
    agent = await bench.start()
    slot = await _part_slot(agent)
    first = await bench.run(agent, slots={slot: "1"}, claim=claim_of(slot))
    bench.manager.deaf = True
    await agent.commands.destroy_kernel(DestroyKernel(kernel_id=first.kernel_id, attempt=1, forced=True))
    supervisor = _supervisor(agent)
    async with asyncio.timeout(20):
        while supervisor.kernels:  # noqa: ASYNC110  # the end is an event for the manager only, which is deaf
            await asyncio.sleep(0.01)
    joining = asyncio.create_task(supervisor.context.partitioner.join_idle())
    await asyncio.sleep(0.1)  # that nothing happens has no event
    assert not joining.done(), "it waits until its observations have been heard"
    bench.manager.kept = {CLAIM: {slot: {"a/1g.10gb/0": "1"}}}
    bench.manager.deaf = False
    await joining
    assert "a/1g.10gb/0" in await _listed(agent)


async def test_a_part_that_the_plugin_cannot_cut_defers_the_session(bench: Bench, slow: type[Slow]) -> None:
    async def refuse(self: Slow, device_id: str, profile: str) -> DeviceId:
        raise Conflict("the slices that are left are not beside each other")

    slow.create_partition = refuse  # type: ignore[method-assign]  # the one call that fails
    _on_demand(bench)
    agent = await bench.start()
    (slot,) = [
        p.slot_name for p in (await agent.commands.device_options(DeviceOptionsOf(device_name="mock"))).profiles["a"]
    ]
    spec = bench.spec(slots={slot: "1"})
    await agent.commands.create_kernels(CreateKernels(kernels=[spec]))
    ended = await bench.until(spec, KernelStatus.PENDING)
    assert "not beside each other" in str(ended)
    await bench.run(agent, slots={"mock.device": "2"})


async def test_a_part_outlives_a_restart_of_the_agent(bench: Bench, slow: type[Slow]) -> None:
    _on_demand(bench)
    agent = await bench.start()
    (slot,) = [
        p.slot_name for p in (await agent.commands.device_options(DeviceOptionsOf(device_name="mock"))).profiles["a"]
    ]
    spec = await bench.run(agent, slots={slot: "1"})
    await agent.stop()
    agent = await bench.start()
    assert _supervisor(agent).kernels[spec.kernel_id].record.allocation[slot] == {"a/1g.10gb/0": "1"}
    other = await bench.run(agent, slots={slot: "1"})
    assert _supervisor(agent).kernels[other.kernel_id].record.allocation[slot] == {"a/1g.10gb/1": "1"}
    assert _amounts(agent)["mock.device"] == "2"  # what a cut device offers as a whole outlives it, too
    for ended in (spec, other):
        await _end(bench, agent, ended)
    await agent.stop()
    agent = await bench.start()
    await bench.run(agent, slots={"mock.device": "2"})


async def test_a_tainted_device_takes_those_who_tolerate_it(bench: Bench, slow: type[Slow]) -> None:
    agent = await bench.start()
    await agent.commands.operate_device(op("taint", "a", "burn-in new board"))
    options = await agent.commands.device_options(DeviceOptionsOf(device_name="mock"))
    assert options.cordons == {"a": "tainted burn-in: new board"}
    await bench.run(agent, slots={"mock.device": "1"})  # b
    with pytest.raises(InsufficientResource):
        await agent.commands.create_kernels(CreateKernels(kernels=[bench.spec(slots={"mock.device": "1"})]))
    other = bench.spec(slots={"mock.device": "1"}, device_requests=['tolerates("other")'])
    with pytest.raises(InsufficientResource):
        await agent.commands.create_kernels(CreateKernels(kernels=[other]))
    await bench.run(agent, slots={"mock.device": "1"}, device_requests=['tolerates("burn-in")'])
    await agent.stop()
    agent = await bench.start()
    options = await agent.commands.device_options(DeviceOptionsOf(device_name="mock"))
    assert options.cordons == {"a": "tainted burn-in: new board"}
    await agent.commands.operate_device(op("uncordon", "a"))
    assert not (await agent.commands.device_options(DeviceOptionsOf(device_name="mock"))).cordons


@pytest.mark.parametrize("argument", ["", "burn-in", "-x reason", "a/b reason", "x" * 70 + " reason"])
async def test_a_taint_needs_a_key_and_a_reason(bench: Bench, slow: type[Slow], argument: str) -> None:
    agent = await bench.start()
    with pytest.raises(InvalidInput):
        await agent.commands.operate_device(op("taint", "a", argument))


async def test_a_device_that_fails_too_often_is_cordoned(bench: Bench, slow: type[Slow]) -> None:
    bench.options["agent"] = {"device-cordons": {"failures": 2, "within": 60.0, "duration": None}}
    agent = await bench.start()
    inventory = _supervisor(agent).context.inventory
    change = DeviceHealthChange(device_id=DeviceId("a"), health=DeviceHealth.UNHEALTHY, reason="it flaps")
    assert inventory.on_health_changes("mock", [change])
    assert not inventory.on_health_changes("mock", [change]), "a repeated report is no other failure"
    inventory.failed("mock", DeviceId("a"))  # it had recovered, which takes longer than this test
    cordons: dict[str, str] = {}
    async with asyncio.timeout(20):
        while not cordons:
            await asyncio.sleep(0.05)
            cordons = (await agent.commands.device_options(DeviceOptionsOf(device_name="mock"))).cordons
    assert cordons.keys() == {"a"}
    assert cordons["a"].startswith("cordoned: failed 2 times within")


async def test_a_device_that_its_metrics_condemn_takes_only_who_tolerates_it(
    bench: Bench, slow: type[Slow], tmp_path: Path
) -> None:
    text = DECLARATION.replace('mother_uuid = "a"', 'mother_uuid = "a"\nmetrics.temperature = 99', 1)
    (tmp_path / "mock-accelerator.toml").write_text(text)
    rule = {"name": "hot", "when": "metric.mock_temperature >= 95", "seconds": 0.1, "taint": "hot", "recovery": 0.0}
    bench.options["agent"] = {"device-rules": [rule]}
    agent = await bench.start()
    tainted: dict[str, str] = {}
    async with asyncio.timeout(20):
        while not tainted:
            await asyncio.sleep(0.05)  # the agent's round of measurements has no event outside of it
            tainted = (await agent.commands.device_options(DeviceOptionsOf(device_name="mock"))).cordons
    assert tainted == {
        "a": "tainted hot: rule hot: metric.mock_temperature >= 95 for 0.1 s (metric.mock_temperature is 99)"
    }
    spec = await bench.run(agent, slots={"mock.device": "1"})
    assert _supervisor(agent).kernels[spec.kernel_id].record.allocation["mock.device"] == {"b": "1"}
    await bench.run(agent, slots={"mock.device": "1"}, device_requests=['tolerates("hot")'])
    await agent.stop()
    agent = await bench.start()
    options = await agent.commands.device_options(DeviceOptionsOf(device_name="mock"))
    assert options.cordons == tainted, "it is kept over a restart"


async def test_an_administrator_sees_a_device_that_another_session_holds(bench: Bench, slow: type[Slow]) -> None:
    agent = await bench.start()
    holder = await bench.run(agent, slots={"mock.device": "1"})
    (held,) = _supervisor(agent).kernels[holder.kernel_id].record.allocation["mock.device"]
    seen = await bench.run(agent, slots={}, diagnosed_devices={"mock": [held]})
    kernel = _supervisor(agent).kernels[seen.kernel_id]
    assert bench.runtime.specs[kernel.key].environ["MOCK_VISIBLE_DEVICES"] == held
    assert not _supervisor(agent).context.inventory.holding(seen.kernel_id).slots, "it holds nothing"
    options = await agent.commands.device_options(DeviceOptionsOf(device_name="mock"))
    assert options.diagnosed == {held: [seen.kernel_id]}, "operators see who looks into the device"
    await _end(bench, agent, seen)
    assert (await agent.commands.device_options(DeviceOptionsOf(device_name="mock"))).diagnosed == {}
    with pytest.raises(Conflict):  # the end of the diagnosis has not ended the hold
        await agent.commands.operate_device(op("reset", held))
    await bench.run(agent, slots={"mock.device": "1"})  # the other one


async def test_an_administrator_sees_a_device_that_is_cordoned_or_has_failed(bench: Bench, slow: type[Slow]) -> None:
    agent = await bench.start()
    await agent.commands.operate_device(op("cordon", "a", "ECC errors"))
    await agent.commands.operate_device(op("power-off", "b"))
    seen = await bench.run(agent, slots={}, diagnosed_devices={"mock": ["a", "b"]})
    kernel = _supervisor(agent).kernels[seen.kernel_id]
    assert bench.runtime.specs[kernel.key].environ["MOCK_VISIBLE_DEVICES"] == "a,b"
    await agent.commands.operate_device(op("power-on", "b"))  # who diagnoses a device does not hold it
    await agent.stop()
    agent = await bench.start()
    await _end(bench, agent, seen)
    assert slow.capabilities.diagnosable


async def test_a_plugin_refuses_a_diagnosis(bench: Bench, slow: type[Slow]) -> None:
    agent = await bench.start()
    for changes, reason in (
        ({"diagnosed_devices": {"mock": ["nobody"]}}, "no device 'nobody'"),
        ({"diagnosed_devices": {"mock": ["a"]}, "slots": {"mock.device": "1"}}, "holds devices of mock"),
        ({"diagnosed_devices": {"mock": ["a"]}, "plugin_options": {"mock": {"image": "x.bit"}}}, "not programmed"),
        ({"diagnosed_devices": {"other": ["a"]}}, "plugin other is not available"),
    ):
        spec = bench.spec(**{"slots": {}, **changes})
        await agent.commands.create_kernels(CreateKernels(kernels=[spec]))
        assert reason in str(await bench.until(spec, KernelStatus.ERROR))
    slow.capabilities = replace(slow.capabilities, diagnosable=False)
    spec = bench.spec(slots={}, diagnosed_devices={"mock": ["a"]})
    await agent.commands.create_kernels(CreateKernels(kernels=[spec]))
    assert "shows no devices for a diagnosis" in str(await bench.until(spec, KernelStatus.ERROR))
