"""Runs the controllers with copies of the cluster's objects, and with one queue for each kind of object."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Sequence

from ai.backend.kubeacc.controllers.access import AccessController
from ai.backend.kubeacc.controllers.claims import ClaimController, waiting_devices
from ai.backend.kubeacc.controllers.cluster_view import ClusterView
from ai.backend.kubeacc.controllers.devices import DeviceController
from ai.backend.kubeacc.controllers.driver_runner import DriverRunner, refuse_image
from ai.backend.kubeacc.controllers.executors import Executors
from ai.backend.kubeacc.controllers.operations import Key, OperationController
from ai.backend.kubeacc.controllers.workqueue import WorkQueue
from ai.backend.kubeacc.crd.objects import Accelerator, AcceleratorOperation
from ai.backend.kubeacc.drivers.execution import FetchImage
from ai.backend.kubeacc.drivers.spi import AbstractAcceleratorDriver
from ai.backend.node.kube_api.client import KubeApi
from ai.backend.node.kube_api.objects import KubeObject, ResourceClaim

log = logging.getLogger(__name__)
_CLASS_PAUSE_S = 0.5
"""The seconds until the counts of classes follow devices, so that a thousand changes at once cause one write."""


class ControllerManager:
    """Runs the controllers of one leader. ``drivers`` are the IaaS drivers that execute inside of this process."""

    def __init__(
        self,
        api: KubeApi,
        *,
        drivers: Sequence[AbstractAcceleratorDriver] = (),
        fetch_image: FetchImage = refuse_image,
    ) -> None:
        self.view = ClusterView(api)
        self.runners = [DriverRunner(api, self.view, driver, fetch_image=fetch_image) for driver in drivers]
        executors = Executors(self.view, [driver.name for driver in drivers])
        self._devices = DeviceController(api, self.view)
        self._access = AccessController(api, self.view)
        self._operations = OperationController(
            api, self.view, executor_of=executors.executor_of, silent_s=executors.silent_s
        )
        self.device_queue: WorkQueue[str] = WorkQueue("accelerators", self._reconcile_device, workers=32)
        self.class_queue: WorkQueue[str] = WorkQueue("classes", self._devices.reconcile_class, workers=2)
        self.access_queue: WorkQueue[str] = WorkQueue("admission", self._access.reconcile, workers=1)
        self.operation_queue: WorkQueue[Key] = WorkQueue("operations", self._operations.reconcile)
        self.claim_queue: WorkQueue[Key] = WorkQueue("claims", ClaimController(api, self.view).reconcile, workers=4)
        self._operations_of: defaultdict[str, set[Key]] = defaultdict(set)
        self.view.accelerators.subscribe(self._on_device)
        self.view.operations.subscribe(self._on_operation)
        self.view.claims.subscribe(self._on_claim)
        self.view.classes.subscribe(self._on_rule_change)
        self.view.policies.subscribe(self._on_rule_change)

    def _on_device(self, before: Accelerator | None, after: Accelerator | None) -> None:
        device = after or before
        if device is None:
            return
        if after is not None:
            self.device_queue.add(after.metadata.name)
        for device_version in (before, after):
            if device_version is not None and device_version.status.class_name:
                self.class_queue.add_after(device_version.status.class_name, _CLASS_PAUSE_S)
        for key in self._operations_of.get(device.metadata.name, ()):
            self.operation_queue.add(key)

    def _on_operation(self, before: AcceleratorOperation | None, after: AcceleratorOperation | None) -> None:
        operation = after or before
        if operation is None:
            return
        name = operation.spec.accelerator
        if after is None:
            self._operations_of[name].discard(operation.key)
            if not self._operations_of[name]:
                del self._operations_of[name]
            self.device_queue.add(name)
        else:
            self._operations_of[name].add(operation.key)
            self.operation_queue.add(operation.key)
        if before is None or after is None or before.status.phase is not after.status.phase:
            self.access_queue.add_after("", _CLASS_PAUSE_S)

    def _on_claim(self, _before: ResourceClaim | None, after: ResourceClaim | None) -> None:
        if after is not None and waiting_devices(after):
            self.claim_queue.add(after.key)

    def _on_rule_change(self, before: KubeObject | None, after: KubeObject | None) -> None:
        """Queues every device and every waiting operation again after a change of a class or a policy.

        A change of a status, which the controllers themselves write while devices change, asks nobody.
        """
        if before is not None and after is not None and before.metadata.generation == after.metadata.generation:
            return
        self.access_queue.add("")
        for acc_class in self.view.classes.all():
            self.class_queue.add_after(acc_class.metadata.name, _CLASS_PAUSE_S)
        for device in self.view.accelerators.reflector.objects.values():
            self.device_queue.add(device.metadata.name)
        for operation in self.view.operations.reflector.objects.values():
            if not operation.status.phase.is_final:
                self.operation_queue.add(operation.key)

    async def _reconcile_device(self, name: str) -> float | None:
        device = self.view.accelerators.get(name)
        if device is not None and (holder := device.status.operation) is not None:
            operation = self.view.operations.get(holder.name, holder.namespace)
            if operation is None or operation.metadata.uid != holder.uid:
                await self._operations.release_orphan(device)
                return 0.0
        return await self._devices.reconcile(name)

    async def run(self, _term: int = 0) -> None:
        """Runs until cancelled. Nothing is decided before all copies are complete."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.view.run())
            await self.view.wait_until_synced()
            log.info(
                "the controllers know %d accelerators and %d operations",
                len(self.view.accelerators.reflector.objects),
                len(self.view.operations.reflector.objects),
            )
            self.access_queue.add("")
            queues = (self.device_queue, self.class_queue, self.access_queue, self.operation_queue, self.claim_queue)
            for queue in queues:
                tasks.create_task(queue.run())
            for runner in self.runners:
                tasks.create_task(runner.run())
