"""Executes the controllers' orders on the devices of this node, and reports the outcome (see crd.operations)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import cast

import msgspec

from ai.backend.common.device_operations import OperationVerb
from ai.backend.common.errors import BackendError, PluginError
from ai.backend.common.structs import replace
from ai.backend.infra.loop import PeriodicLoop
from ai.backend.kubeacc.crd.accelerators import Program
from ai.backend.kubeacc.crd.classes import Signer
from ai.backend.kubeacc.crd.objects import ACCELERATORS, CLASSES, OPERATIONS, AcceleratorOperation
from ai.backend.kubeacc.crd.operations import Artifact, Report
from ai.backend.kubeacc.crd.vocabulary import NODE_MANAGER, Outcome
from ai.backend.kubeacc.drivers.artifact_store import ArtifactStore
from ai.backend.kubeacc.drivers.artifacts import verify_signature
from ai.backend.kubeacc.drivers.bare_metal import BareMetalDriver
from ai.backend.kubeacc.drivers.execution import PROGRAM_KEY, OrderExecution
from ai.backend.kubeacc.node_plugin.accelerators import AcceleratorReports
from ai.backend.kubeacc.node_plugin.devices import DeviceKey, DeviceTracker
from ai.backend.kubeacc.node_plugin.facts import FactStore
from ai.backend.kubeacc.node_plugin.served import wait_until_served
from ai.backend.node.kube_api.client import KubeApi
from ai.backend.node.kube_api.reflector import Reflector
from ai.backend.plugin.accelerator import Programmable

log = logging.getLogger(__name__)


class OperationExecutor(PeriodicLoop):
    """Executes the orders of this node's operations through the plugins of the devices.

    ``store`` has the images that devices are programmed with.
    """

    period_s = 60.0

    def __init__(
        self,
        api: KubeApi,
        tracker: DeviceTracker,
        reports: AcceleratorReports,
        fact_store: FactStore,
        node: str,
        *,
        store: ArtifactStore,
    ) -> None:
        self._api, self._tracker, self._reports, self._facts, self._node = api, tracker, reports, fact_store, node
        self._store = store
        self._executions: dict[str, OrderExecution] = {}
        self._written: dict[str, Report] = {}
        self.reflector: Reflector[AcceleratorOperation] = Reflector(
            api,
            OPERATIONS,
            field_selector=f"status.executor=node/{node}",
            on_change=lambda before, after: self.wake(),
        )
        tracker.subscribe(self.wake)

    async def watch(self) -> None:
        """Watches the operations of this node until cancelled. Waits until the cluster has the resource."""
        await wait_until_served(self._api, OPERATIONS)
        await self.reflector.run()

    async def close(self) -> None:
        """Stops running orders. The next process executes them again."""
        for execution in self._executions.values():
            await execution.close()

    async def once(self) -> None:
        if not self._tracker.is_complete.is_set():
            return
        operation_by_uid = {operation.metadata.uid: operation for operation in self.reflector.objects.values()}
        for uid in self._executions.keys() - operation_by_uid.keys():
            await self._executions.pop(uid).close()
            self._written.pop(uid, None)
        failure: BackendError | None = None
        for uid, operation in operation_by_uid.items():
            if operation.status.order is not None and not operation.status.phase.is_final:
                try:
                    await self._advance(uid, operation)
                except BackendError as e:  # what is refused for one operation keeps no other one waiting
                    log.warning("%s/%s: %s", operation.metadata.namespace, operation.metadata.name, e.message)
                    failure = e
        if failure is not None:
            raise failure

    async def _advance(self, uid: str, operation: AcceleratorOperation) -> None:
        order = operation.status.order
        assert order is not None  # once() has looked
        stored_report = self._written.get(uid) or operation.status.report
        key = self._reports.key_of(operation.spec.accelerator)
        plugin_handle = self._tracker.plugin_handle(key[0]) if key is not None else None
        execution = self._executions.get(uid)
        if execution is None:
            if key is None or plugin_handle is None:
                if order.rollback:  # which is not tried twice; the controllers say how long it may take
                    return
                message = f"this node has no plugin for {operation.spec.accelerator} now"
                if stored_report is None or stored_report.sequence != order.sequence:
                    report = Report(
                        sequence=order.sequence,
                        outcome=Outcome.FAILED,
                        retryable=True,
                        reason="NoPlugin",
                        message=message,
                    )
                    await self._write_report(operation, report)
                return
            execution = self._executions[uid] = OrderExecution(
                BareMetalDriver(lambda: plugin_handle.plugin, self._node),
                key[1],
                operation.spec,
                fetch_image=self._fetcher(operation.spec.accelerator),
                on_change=self.wake,
                # A plugin whose process has died is started anew, and may do then what it could not.
                is_temporary=lambda e: e.retryable or (isinstance(e, PluginError) and plugin_handle.has_ended),
            )
        report = execution.report(order, stored_report)
        if report == stored_report:
            return
        if report.outcome is Outcome.SUCCEEDED and key is not None:
            await self._record_success(key, operation, report)
        await self._write_report(operation, report)

    async def _record_success(self, key: DeviceKey, operation: AcceleratorOperation, report: Report) -> None:
        """Writes the new state of the device before the report, because the controllers compare the two."""
        spec, order, device_facts = operation.spec, operation.status.order, self._facts.get(key)
        is_undone = order is not None and order.rollback
        if spec.power is not None:
            previous_power = order.previous_power if order is not None and is_undone else None
            device_facts = replace(device_facts, power=previous_power or spec.power.state)
        if spec.program is not None and order is not None:
            image_path = report.result.get(PROGRAM_KEY, "")
            program = Program(image=image_path, sha256=spec.program.artifact.sha256)
            device_facts = replace(device_facts, program=order.previous_program if is_undone else program)
        elif device_facts.program is not None and spec.operation is not OperationVerb.DIAGNOSE:
            device_facts = replace(device_facts, program=await self._loaded_program(key, device_facts.program))
        if device_facts != self._facts.get(key):
            await asyncio.to_thread(self._facts.put, key, device_facts)
        try:
            await self._tracker.once()
            await self._reports.once()
        except BackendError as e:
            log.warning("the devices are not reported anew: %s", e.message)

    async def _loaded_program(self, key: DeviceKey, program: Program) -> Program | None:
        """Returns what a device has loaded after an operation that may have removed its image, as the plugin reports.

        Returns None if nothing is loaded or the plugin cannot report it.
        """
        plugin_handle = self._tracker.plugin_handle(key[0])
        if plugin_handle is None or not plugin_handle.plugin.capabilities.programmable:
            return None
        try:
            image_path = await plugin_handle.call(
                "programmed_image", lambda plugin: cast("Programmable", plugin).programmed_image(key[1])
            )
        except BackendError as e:
            log.warning("the image of %s is not known: %s", key[1], e.message)
            return None
        return program if image_path == program.image else None

    async def _write_report(self, operation: AcceleratorOperation, report: Report) -> None:
        body = {"metadata": {"uid": operation.metadata.uid}, "status": {"report": msgspec.to_builtins(report)}}
        name, namespace = operation.metadata.name, operation.metadata.namespace
        await self._api.apply(OPERATIONS, name, body, namespace, manager=NODE_MANAGER, force=True, subresource="status")
        self._written[operation.metadata.uid] = report

    def _fetcher(self, accelerator: str) -> Callable[[Artifact], asyncio.Future[Path]]:
        def fetch(artifact: Artifact) -> asyncio.Future[Path]:
            return asyncio.ensure_future(self._fetch(accelerator, artifact))

        return fetch

    async def _fetch(self, accelerator: str, artifact: Artifact) -> Path:
        """Returns a checked copy of an image. Raises ArtifactRejected, InvalidInput, NotFound."""
        verify_signature(artifact, await self._signers(accelerator), is_required=False)
        return await self._store.fetch(artifact)

    async def _signers(self, accelerator: str) -> tuple[Signer, ...]:
        device = await self._api.get(ACCELERATORS, accelerator)
        if device.status.class_name is None:
            return ()
        return tuple((await self._api.get(CLASSES, device.status.class_name)).spec.signers)
