"""Orders: begun once, stopped, undone, and reported."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ai.backend.common.device_operations import OperationVerb as V
from ai.backend.common.errors import Conflict, Unavailable
from ai.backend.kubeacc.crd.accelerators import Program
from ai.backend.kubeacc.crd.operations import (
    AcceleratorOperationSpec,
    Artifact,
    AttachParameters,
    Order,
    PartitionParameters,
    PowerParameters,
    ProgramParameters,
    Report,
)
from ai.backend.kubeacc.crd.vocabulary import Outcome, PartitionAction, PowerState
from ai.backend.kubeacc.drivers.execution import OrderExecution
from ai.backend.kubeacc.drivers.spi import AbstractAcceleratorDriver, DriverDevice

IMAGE = Path("/store/new.bit")


class RecordingDriver(AbstractAcceleratorDriver):
    """Records its calls; ``act`` runs within each of them."""

    name = "recording"
    operations = frozenset(V)

    def __init__(self) -> None:
        self.calls: list[tuple[str, ...]] = []
        self.devices: list[DriverDevice] = []
        self.act: Callable[[], Awaitable[None]] = lambda: asyncio.sleep(0)

    async def discover(self) -> list[DriverDevice]:
        return self.devices

    async def _call(self, *call: str) -> str:
        self.calls.append(call)
        await self.act()
        return "part-0"

    async def attach(self, device_id: str, node_name: str) -> None:
        await self._call("attach", node_name)

    async def detach(self, device_id: str) -> None:
        await self._call("detach")

    async def program(self, device_id: str, image: Path) -> None:
        await self._call("program", str(image))

    async def power(self, device_id: str, state: PowerState) -> None:
        await self._call("power", state)

    async def reset(self, device_id: str) -> None:
        await self._call("reset")

    async def create_partition(self, device_id: str, profile: str) -> str:
        return await self._call("create", profile)

    async def destroy_partition(self, device_id: str) -> None:
        await self._call("destroy", device_id)


def spec(verb: V, **parts: Any) -> AcceleratorOperationSpec:
    return AcceleratorOperationSpec(accelerator="a", operation=verb, requested_by="alice", **parts)


ATTACH = spec(V.ATTACH, attach=AttachParameters(node_name="n"))
PROGRAM = spec(V.PROGRAM, program=ProgramParameters(artifact=Artifact(uri="https://a", sha256="0" * 64)))
POWER = spec(V.POWER, power=PowerParameters(state=PowerState.OFF))
CREATE = spec(V.PARTITION, partition=PartitionParameters(action=PartitionAction.CREATE, profile="half"))
DESTROY = spec(V.PARTITION, partition=PartitionParameters(action=PartitionAction.DESTROY))
RESET = spec(V.RESET)


class Executor:
    def __init__(self, operation: AcceleratorOperationSpec) -> None:
        self.driver = RecordingDriver()
        self.changed = asyncio.Event()
        self.execution = OrderExecution(
            self.driver, "dev", operation, fetch_image=self._fetch, on_change=self.changed.set
        )

    async def _fetch(self, artifact: Artifact) -> Path:
        return IMAGE

    async def execute(self, order: Order) -> Report:
        assert self.execution.report(order, None).outcome is None
        await asyncio.wait_for(self.changed.wait(), 5)
        self.changed.clear()
        return self.execution.report(order, None)


def undo(**before: Any) -> Order:
    return Order(sequence=2, rollback=True, **before)


CASES: list[tuple[AcceleratorOperationSpec, Order, tuple[str, ...] | None]] = [
    (ATTACH, Order(sequence=1), ("attach", "n")),
    (ATTACH, undo(), ("detach",)),
    (spec(V.DETACH), Order(sequence=1), ("detach",)),
    (PROGRAM, Order(sequence=1), ("program", str(IMAGE))),
    (PROGRAM, undo(previous_program=Program(image="/old")), ("program", "/old")),
    (PROGRAM, undo(), None),
    (POWER, Order(sequence=1), ("power", "Off")),
    (POWER, undo(previous_power=PowerState.ON), ("power", "On")),
    (POWER, undo(previous_power=PowerState.UNKNOWN), None),
    (CREATE, Order(sequence=1), ("create", "half")),
    (CREATE, undo(result={"partition": "part-0"}), ("destroy", "part-0")),
    (DESTROY, Order(sequence=1), ("destroy", "dev")),
    (DESTROY, undo(), None),
    (RESET, Order(sequence=1), ("reset",)),
]


@pytest.mark.parametrize(("operation", "order", "call"), CASES)
async def test_each_order_is_one_call_or_a_reason(
    operation: AcceleratorOperationSpec, order: Order, call: tuple[str, ...] | None
) -> None:
    executor = Executor(operation)
    report = await executor.execute(order)
    assert executor.driver.calls == ([call] if call else [])
    assert report.outcome is (Outcome.SUCCEEDED if call else Outcome.FAILED)
    assert report.sequence == order.sequence
    assert bool(report.message) == (call is None)


async def test_an_order_is_begun_once_and_its_result_kept() -> None:
    executor = Executor(CREATE)
    order = Order(sequence=4)
    report = await executor.execute(order)
    assert report == executor.execution.report(order, report)
    assert report.result == {"partition": "part-0"}
    assert executor.execution.report(order, None) == report
    assert len(executor.driver.calls) == 1


async def test_an_order_is_stopped_in_the_middle() -> None:
    executor = Executor(RESET)
    forever = asyncio.Event()

    async def wait() -> None:
        await forever.wait()

    executor.driver.act = wait
    executor.execution.report(Order(sequence=1), None)
    await asyncio.sleep(0)
    executor.execution.report(Order(sequence=1, abort=True), None)
    await asyncio.wait_for(executor.changed.wait(), 5)
    assert executor.execution.report(Order(sequence=1, abort=True), None).outcome is Outcome.ABORTED


async def test_after_a_restart_an_order_is_repeated_and_a_stopped_one_is_not() -> None:
    executor = Executor(RESET)
    begun = Report(sequence=1)
    assert executor.execution.report(Order(sequence=1, abort=True), begun).outcome is Outcome.ABORTED
    assert executor.driver.calls == []
    executor.execution.report(Order(sequence=1), begun)
    await asyncio.wait_for(executor.changed.wait(), 5)
    assert executor.driver.calls == [("reset",)]


@pytest.mark.parametrize(
    ("error", "reason", "retryable"),
    [
        (Conflict("held"), "Conflict", False),
        (Unavailable("away"), "Unavailable", True),
        (OSError("x"), "DriverFailed", False),
    ],
)
async def test_errors_are_reported_with_their_word(error: Exception, reason: str, retryable: bool) -> None:
    executor = Executor(RESET)

    async def fail() -> None:
        raise error

    executor.driver.act = fail
    report = await executor.execute(Order(sequence=1))
    assert (report.outcome, report.retryable, report.message) == (Outcome.FAILED, retryable, str(error))
    assert report.reason == reason


@pytest.mark.parametrize("answer", [7, None, ["a"], ""])
async def test_a_driver_that_lies_ends_the_order_with_a_reason(monkeypatch: pytest.MonkeyPatch, answer: object) -> None:
    async def lie(*_: object) -> object:
        return answer

    for operation, method in ((CREATE, "create_partition"), (spec(V.DIAGNOSE), "diagnose")):
        executor = Executor(operation)
        monkeypatch.setattr(executor.driver, method, lie)
        report = await executor.execute(Order(sequence=1))
        assert (report.outcome, report.reason) == (Outcome.FAILED, "PluginError")


async def test_facts_of_a_driver_are_cut_to_the_limits_of_a_report(monkeypatch: pytest.MonkeyPatch) -> None:
    async def boast(_device: str) -> dict[object, object]:
        return {"": "x", 1: 2, **{f"{number}{'k' * 200}": "v" * 2000 for number in range(100)}}

    executor = Executor(spec(V.DIAGNOSE))
    monkeypatch.setattr(executor.driver, "diagnose", boast)
    report = await executor.execute(Order(sequence=1))
    assert report.outcome is Outcome.SUCCEEDED
    assert report.result["1"] == "2"
    msgspec.convert(msgspec.to_builtins(report), Report)  # raises beyond a limit


async def test_an_undo_is_repeated_until_the_driver_can(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ai.backend.kubeacc.drivers.execution._UNDO_DELAYS_S", (0.0, 0.0))
    executor = Executor(ATTACH)
    errors: list[Exception] = [Unavailable("away"), Unavailable("away")]

    async def fail() -> None:
        if errors:
            raise errors.pop()

    executor.driver.act = fail
    assert (await executor.execute(undo())).outcome is Outcome.SUCCEEDED
    assert executor.driver.calls == [("detach",)] * 3
    errors[:] = [Conflict("held")]
    executor = Executor(ATTACH)
    executor.driver.act = fail
    assert (await executor.execute(undo())).reason == "Conflict"


async def test_an_attach_that_failed_does_not_detach_what_others_have_attached() -> None:
    executor = Executor(ATTACH)
    executor.driver.devices = [DriverDevice(device_id="dev", node_name="elsewhere")]
    assert (await executor.execute(undo())).outcome is Outcome.SUCCEEDED
    assert executor.driver.calls == []
