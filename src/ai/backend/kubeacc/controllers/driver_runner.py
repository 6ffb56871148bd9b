"""Runs an IaaS driver inside of the controllers: shows its devices as accelerators, and executes orders by it."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec

from ai.backend.common.errors import BackendError, DeadlineExceeded, InvalidInput, PluginError
from ai.backend.infra.loop import PeriodicCall
from ai.backend.kubeacc.controllers.cluster_view import ClusterView
from ai.backend.kubeacc.controllers.executors import DRIVER
from ai.backend.kubeacc.controllers.workqueue import WorkQueue
from ai.backend.kubeacc.crd.accelerators import Program
from ai.backend.kubeacc.crd.objects import ACCELERATORS, OPERATIONS, AcceleratorOperation
from ai.backend.kubeacc.crd.operations import Artifact, Report
from ai.backend.kubeacc.crd.vocabulary import DRIVER_MANAGER, Outcome
from ai.backend.kubeacc.drivers.execution import PROGRAM_KEY, FetchImage, OrderExecution
from ai.backend.kubeacc.drivers.spi import AbstractAcceleratorDriver, DriverDevice
from ai.backend.node.kube_api.client import KubeApi

log = logging.getLogger(__name__)
_DISCOVERY_S = 30.0
_DISCOVERY_LIMIT_S = 120.0
_NAME_LENGTH = 200
Key = tuple[str, str]


async def refuse_image(artifact: Artifact) -> Path:
    """Refuses every image, because these controllers have no folder of images."""
    raise InvalidInput(f"these controllers load no images; {artifact.uri[:200]} is not reached")


def accelerator_name(driver: str, device_id: str) -> str:
    """Returns the name of a device's Accelerator object. The name is readable, and differs for different ids."""
    readable_id = re.sub(r"[^a-z0-9-]+", "-", device_id.lower()).strip("-")
    name = f"{driver}-{readable_id}"
    if readable_id == device_id and len(name) <= _NAME_LENGTH:
        return name
    return f"{name[:_NAME_LENGTH].rstrip('-')}-{sha256(device_id.encode()).hexdigest()[:8]}"


class DriverRunner:
    """Writes the devices of a driver when they change, and executes the orders of ``driver/NAME``."""

    def __init__(
        self,
        api: KubeApi,
        view: ClusterView,
        driver: AbstractAcceleratorDriver,
        *,
        fetch_image: FetchImage = refuse_image,
    ) -> None:
        self._api, self._view, self._driver, self._fetch_image = api, view, driver, fetch_image
        self._programs: dict[str, Program] = {}
        self._written: dict[str, bytes] = {}
        self._executions: dict[str, OrderExecution] = {}
        self._discovering = asyncio.Lock()
        self.discovery = PeriodicCall(f"discovery of {driver.name}", _DISCOVERY_S, self.discover_devices)
        self._queue: WorkQueue[Key] = WorkQueue(f"orders of {driver.name}", self._reconcile)
        view.operations.subscribe(self._on_operation)

    async def run(self) -> None:
        """Discovers devices and executes the orders of operations until cancelled, then stops the running orders.

        The next leader executes unfinished orders again.
        """
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self.discovery.run())
                tasks.create_task(self._queue.run())
        finally:
            for execution in self._executions.values():
                await execution.close()

    def _on_operation(self, before: AcceleratorOperation | None, after: AcceleratorOperation | None) -> None:
        operation = after or before
        if operation is not None and operation.status.executor == f"{DRIVER}{self._driver.name}":
            self._queue.add(operation.key)

    async def discover_devices(self) -> None:
        """Writes the devices of the driver. Only one discovery runs at a time, so that no older result is written."""
        async with self._discovering:
            await self._write_devices()

    async def _write_devices(self) -> None:
        devices = {
            accelerator_name(self._driver.name, driver_device.device_id): driver_device
            for driver_device in await self._list_devices()
        }
        failure: BackendError | None = None
        for name, device in devices.items():
            try:
                await self._write_device(name, device)
            except BackendError as e:  # a device that the server refuses keeps no other one from being reported
                log.warning("the accelerator %s is not reported: %s", name, e.message)
                failure = e
        for accelerator in self._view.accelerators.all():
            name, spec = accelerator.metadata.name, accelerator.spec
            if spec.driver == self._driver.name and name not in devices and accelerator.status.operation is None:
                await self._api.delete(ACCELERATORS, name, uid=accelerator.metadata.uid)
                self._written.pop(name, None)
        if failure is not None:
            raise failure

    async def _list_devices(self) -> Sequence[DriverDevice]:
        """Asks the driver for its devices. Raises DeadlineExceeded if it is too slow, PluginError for a wrong type."""
        try:
            async with asyncio.timeout(_DISCOVERY_LIMIT_S):
                devices = await self._driver.discover()
        except TimeoutError:
            limit_text = f"{_DISCOVERY_LIMIT_S:g} s"
            raise DeadlineExceeded(f"the driver {self._driver.name} has not told its devices in {limit_text}") from None
        if not isinstance(devices, list | tuple) or any(not isinstance(device, DriverDevice) for device in devices):
            raise PluginError(f"the driver {self._driver.name} says {devices!r:.100} instead of its devices")
        return devices

    async def _write_device(self, name: str, device: DriverDevice) -> None:
        spec: dict[str, Any] = {
            "driver": self._driver.name,
            "deviceID": device.device_id,
            "type": device.type,
            "attachment": device.attachment,
            **({"nodeName": device.node_name} if device.node_name else {}),
        }
        description = {
            "model": device.model,
            "operations": sorted(self._driver.operations),
            "extra": dict(device.properties),
        }
        status: dict[str, Any] = {
            "device": description,
            "attachState": device.attach_state,
            "powerState": device.power_state,
        }
        if (program := self._program_of(name, device)) is not None:
            status["program"] = msgspec.to_builtins(program)
        encoded_device = msgspec.json.encode([spec, status])
        if self._written.get(name) == encoded_device and self._view.accelerators.get(name) is not None:
            return
        options: dict[str, Any] = {"manager": DRIVER_MANAGER, "force": True}
        await self._api.apply(ACCELERATORS, name, {"spec": spec}, **options)
        await self._api.apply(ACCELERATORS, name, {"status": status}, **options, subresource="status")
        self._written[name] = encoded_device

    def _program_of(self, name: str, device: DriverDevice) -> Program | None:
        """Returns the image that a device has loaded, from the last operation unless the driver reports another one."""
        accelerator = self._view.accelerators.get(name)
        program = self._programs.get(name) or (accelerator.status.program if accelerator is not None else None)
        if device.program is not None and (program is None or program.image != device.program):
            return Program(image=device.program)
        return program

    def _record_program(self, operation: AcceleratorOperation, report: Report) -> None:
        """Remembers the image that the device has loaded now, until it is stored."""
        spec, order = operation.spec, operation.status.order
        if spec.program is None or order is None or report.outcome is not Outcome.SUCCEEDED:
            return
        program: Program | None = Program(image=report.result.get(PROGRAM_KEY, ""), sha256=spec.program.artifact.sha256)
        if order.rollback:
            program = order.previous_program
        if program is not None:
            self._programs[spec.accelerator] = program

    async def _reconcile(self, key: Key) -> float | None:
        namespace, name = key
        operation = self._view.operations.get(name, namespace)
        if operation is None or operation.status.phase.is_final or operation.status.order is None:
            uid = operation.metadata.uid if operation is not None else ""
            if (execution := self._executions.pop(uid, None)) is not None:
                await execution.close()
            return None
        accelerator = self._view.accelerators.get(operation.spec.accelerator)
        if accelerator is None:
            return None
        execution = self._executions.get(operation.metadata.uid)
        if execution is None:
            execution = self._executions[operation.metadata.uid] = OrderExecution(
                self._driver,
                accelerator.spec.device_id,
                operation.spec,
                fetch_image=self._fetch_image,
                on_change=lambda: self._queue.add(key),
            )
        stored_report, order = operation.status.report, operation.status.order
        report = self._refusal_of(operation) or execution.report(order, stored_report)
        if report == stored_report:
            return None
        if report.outcome is not None:
            self._record_program(operation, report)
            await self.discover_now()
        body = {"metadata": {"uid": operation.metadata.uid}, "status": {"report": msgspec.to_builtins(report)}}
        written_operation = await self._api.apply(
            OPERATIONS, name, body, namespace, manager=DRIVER_MANAGER, force=True, subresource="status"
        )
        self._view.operations.record(written_operation)
        return None

    def _refusal_of(self, operation: AcceleratorOperation) -> Report | None:
        """Refuses to attach a device to a machine that is no node of the cluster. An IaaS also has other machines."""
        attach, order = operation.spec.attach, operation.status.order
        if attach is None or order is None or order.rollback or self._view.nodes.get(attach.node_name) is not None:
            return None
        if operation.status.report is not None and operation.status.report.sequence == order.sequence:
            return None  # the order was begun while there was the node
        message = f"the cluster has no node {attach.node_name}"
        return Report(sequence=order.sequence, outcome=Outcome.FAILED, reason="NoSuchNode", message=message)

    async def discover_now(self) -> None:
        """Writes the present devices at once, because the controllers compare them with the report that follows."""
        try:
            await self.discover_devices()
        except BackendError as e:
            log.warning("the devices of %s are not known anew: %s", self._driver.name, e)
