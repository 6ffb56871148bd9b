"""Executes orders of operations through a driver, and reports the outcome.

An executor calls :meth:`OrderExecution.report` for every state of an operation that it sees; the same order is begun
once in one process, and again after a restart, which actions are safe for."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from ai.backend.common.device_operations import OperationVerb
from ai.backend.common.errors import BackendError, InvalidInput, PluginError
from ai.backend.infra.loop import cancel_all
from ai.backend.infra.retry import Backoff
from ai.backend.kubeacc.crd.operations import AcceleratorOperationSpec, Artifact, Order, Report
from ai.backend.kubeacc.crd.vocabulary import Outcome, PartitionAction, PowerState
from ai.backend.kubeacc.drivers.spi import AbstractAcceleratorDriver, DriverDevice

log = logging.getLogger(__name__)
V = OperationVerb
FetchImage = Callable[[Artifact], Awaitable[Path]]
"""Returns a checked image of this machine. Raises ArtifactRejected, NotFound, or a retryable error."""
PARTITION_KEY, PROGRAM_KEY = "partition", "image"
_UNDO_DELAYS_S = 1.0, 30.0


class OrderExecution:
    """Executes the orders of one operation on one device. ``on_change`` is called when a report has changed;
    ``is_temporary`` says of which errors the same order may succeed later."""

    def __init__(
        self,
        driver: AbstractAcceleratorDriver,
        device_id: str,
        spec: AcceleratorOperationSpec,
        *,
        fetch_image: FetchImage,
        on_change: Callable[[], None],
        is_temporary: Callable[[BackendError], bool] = lambda error: error.retryable,
    ) -> None:
        self._driver, self._device_id, self._spec = driver, device_id, spec
        self._fetch_image, self._on_change, self._is_temporary = fetch_image, on_change, is_temporary
        self._task: asyncio.Task[Mapping[str, str]] | None = None
        self._order: Order | None = None
        self._report: Report | None = None

    def report(self, order: Order, stored_report: Report | None) -> Report:
        """Starts, stops or continues an order, and returns the report to store now."""
        if stored_report is not None and stored_report.sequence == order.sequence and stored_report.outcome is not None:
            return stored_report
        if self._order is None or self._order.sequence != order.sequence:
            if order.abort:  # never begun here, or interrupted by a restart
                return Report(sequence=order.sequence, outcome=Outcome.ABORTED, message="the order was not running")
            self._begin(order)
        elif order.abort and self._task is not None and not self._task.done():
            self._task.cancel()
        return self._report or Report(sequence=order.sequence)

    def _begin(self, order: Order) -> None:
        if self._task is not None:
            self._task.cancel()
        self._order, self._report = order, None
        action = self._undo_until_done(order) if order.rollback else self._execute()
        self._task = asyncio.ensure_future(action)
        self._task.add_done_callback(lambda task: self._finish(order, task))

    def _finish(self, order: Order, task: asyncio.Task[Mapping[str, str]]) -> None:
        if task is not self._task:
            return
        self._report = _report_of(order, task, self._is_temporary)
        self._on_change()

    async def close(self) -> None:
        """Stops a running order. After a restart, the order is executed again."""
        if self._task is not None:
            task, self._task = self._task, None
            await cancel_all(task)

    async def _execute(self) -> Mapping[str, str]:
        spec, driver, device_id = self._spec, self._driver, self._device_id
        if spec.attach is not None:
            await driver.attach(device_id, spec.attach.node_name)
        elif spec.operation is V.DETACH:
            await driver.detach(device_id)
        elif spec.program is not None:
            image = await self._fetch_image(spec.program.artifact)
            await driver.program(device_id, image)
            return {PROGRAM_KEY: str(image)}
        elif spec.power is not None:
            await driver.power(device_id, spec.power.state)
        elif spec.operation is V.RESET:
            await driver.reset(device_id)
        elif spec.partition is not None and spec.partition.action is PartitionAction.CREATE:
            partition = await driver.create_partition(device_id, spec.partition.profile or "")
            if not isinstance(partition, str) or not partition:  # it could not be undone
                raise PluginError(f"the driver names no partition, but says {partition!r:.100}")
            return {PARTITION_KEY: partition}
        elif spec.partition is not None:
            await driver.destroy_partition(device_id)
        else:
            return _checked_facts(await driver.diagnose(device_id))
        return {}

    async def _undo_until_done(self, order: Order) -> Mapping[str, str]:
        """Undoes an order, and tries again after temporary failures. Returns the facts of the undone order.

        The controllers end the attempts if they take too long.
        """
        delays = Backoff(*_UNDO_DELAYS_S, jitter=0.5)
        while True:
            try:
                return await self._undo(order)
            except BackendError as e:
                if not self._is_temporary(e):
                    raise
                log.warning("%s is not undone yet: %s", self._device_id, e)
            await delays.wait()

    async def _undo(self, order: Order) -> Mapping[str, str]:
        """Restores the earlier state of the device that the order describes.

        Raises InvalidInput where that is not possible.
        """
        spec, driver, device_id = self._spec, self._driver, self._device_id
        device: DriverDevice | None = None
        if spec.attach is not None or spec.operation is V.DETACH:
            device = next(
                (listed_device for listed_device in await driver.discover() if listed_device.device_id == device_id),
                None,
            )
        if spec.attach is not None:
            if device is None or device.node_name in (None, spec.attach.node_name):
                await driver.detach(device_id)  # else somebody has attached it elsewhere, which is not ours to undo
        elif spec.operation is V.DETACH:
            if device is None or device.node_name is None:
                raise InvalidInput("the device is detached; attach it again by an operation")
        elif spec.program is not None:
            if order.previous_program is None:
                raise InvalidInput("the device had no image before, and its driver cannot remove one")
            await driver.program(device_id, Path(order.previous_program.image))
        elif spec.power is not None:
            if order.previous_power in (None, PowerState.UNKNOWN):
                raise InvalidInput("it is not known whether the device was on or off before")
            await driver.power(device_id, order.previous_power or PowerState.UNKNOWN)
        elif spec.partition is not None and spec.partition.action is PartitionAction.CREATE:
            if partition := order.result.get(PARTITION_KEY):
                await driver.destroy_partition(partition)
        elif spec.partition is not None:
            device_ids = {device.device_id for device in await driver.discover()}
            if device_id not in device_ids:
                raise InvalidInput("the partition is destroyed; create it again by an operation")
        return {}


def _checked_facts(answer: Any) -> dict[str, str]:
    """Returns the facts that a driver reports, cut to the limits of a report. Raises PluginError."""
    if not isinstance(answer, Mapping):
        raise PluginError(f"the driver says {answer!r:.100} instead of facts")
    return {str(key)[:128]: str(value)[:512] for key, value in list(answer.items())[:64] if str(key)}


def _report_of(
    order: Order, task: asyncio.Task[Mapping[str, str]], is_temporary: Callable[[BackendError], bool]
) -> Report:
    sequence = order.sequence
    if task.cancelled():
        return Report(sequence=sequence, outcome=Outcome.ABORTED, message="the order was stopped")
    error = task.exception()
    if error is None:
        return Report(sequence=sequence, outcome=Outcome.SUCCEEDED, result=_checked_facts(task.result()))
    if not isinstance(error, BackendError):
        log.error("an order failed", exc_info=error)
    return Report(
        sequence=sequence,
        outcome=Outcome.FAILED,
        retryable=isinstance(error, BackendError) and is_temporary(error),
        reason=_reason_of(error),
        message=str(error)[:1024],
    )


def _reason_of(error: BaseException) -> str:
    """Converts an error code to a condition's reason: ``not-found`` becomes ``NotFound``."""
    code = error.code if isinstance(error, BackendError) else "driver-failed"
    return "".join(word.capitalize() for word in code.split("-"))
