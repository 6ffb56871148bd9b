"""Executes operations on the devices of this node: acts on the controllers' orders and reports (see crd.operations)."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast
from urllib.parse import unquote, urlsplit

import msgspec

from ai.backend.common.device_operations import OperationVerb
from ai.backend.common.errors import (
    BackendError,
    Conflict,
    DeadlineExceeded,
    InvalidInput,
    NotFound,
    PluginError,
    Unavailable,
)
from ai.backend.common.ids import DeviceId
from ai.backend.infra.loop import PeriodicLoop, cancel_all
from ai.backend.kubeacc.crd.accelerators import Program
from ai.backend.kubeacc.crd.objects import OPERATIONS, AcceleratorOperation
from ai.backend.kubeacc.crd.operations import Artifact, Report
from ai.backend.kubeacc.crd.vocabulary import NODE_MANAGER, Outcome, PartitionAction, PowerState
from ai.backend.kubeacc.node_plugin.accelerators import AcceleratorReports
from ai.backend.kubeacc.node_plugin.devices import DeviceBoard, DeviceKey
from ai.backend.kubeacc.node_plugin.facts import DeviceFacts, FactStore
from ai.backend.kubeacc.node_plugin.slices import parent_id
from ai.backend.node.kube_api.client import KubeApi
from ai.backend.node.kube_api.reflector import Reflector
from ai.backend.plugin.accelerator import Attachable, Partitionable, PowerControllable, Programmable
from ai.backend.pluginhost.handle import PluginHandle

log = logging.getLogger(__name__)
V = OperationVerb
_ABSENT_RETRY_S = 60.0
_BEFORE = "before-"
"""Keys of a report's result: the partitions that were there when the creation of another one began."""
_RETRYABLE = (Conflict, Unavailable, DeadlineExceeded)
_CHUNK_BYTES = 1 << 20
_MAX_RESULT = 512


class OperationExecutor(PeriodicLoop):
    """Acts once on each order of operations whose executor is this node.

    A new order is reported as begun, executed and reported with its outcome; an order that a process before this one
    has begun is executed again. An abort cancels what runs.
    """

    period_s = 60.0

    def __init__(
        self, api: KubeApi, board: DeviceBoard, reports: AcceleratorReports, facts: FactStore, node: str
    ) -> None:
        self._api, self._board, self._reports, self._facts = api, board, reports, facts
        self._running: dict[str, tuple[int, bool, asyncio.Task[None]]] = {}
        self._reported: dict[str, Report] = {}
        self._reflector: Reflector[AcceleratorOperation] = Reflector(
            api,
            OPERATIONS,
            field_selector=f"status.executor=node/{node}",
            on_change=lambda before, after: self.wake(),
        )

    async def follow(self) -> None:
        """Watches the operations of this node until cancelled, as soon as the cluster has the resource."""
        while not await self._api.is_served(OPERATIONS):
            await asyncio.sleep(_ABSENT_RETRY_S)
        try:
            await self._reflector.run()
        finally:
            await cancel_all(*(task for _, _, task in self._running.values()))

    async def once(self) -> None:
        if not self._board.is_complete.is_set():
            return
        present = {operation.metadata.uid: operation for operation in self._reflector.objects.values()}
        for uid, operation in present.items():
            await self._consider(uid, operation)
        for uid in self._reported.keys() - present.keys():
            del self._reported[uid]

    async def _consider(self, uid: str, operation: AcceleratorOperation) -> None:
        order = operation.status.order
        if order is None or operation.status.phase.is_final:
            return
        report = self._reported.get(uid) or operation.status.report
        is_done = report is not None and report.sequence >= order.sequence and report.outcome is not None
        running = self._running.get(uid)
        if running is not None and running[2].done():
            del self._running[uid]
            running = None
        if order.abort and not is_done:
            if running is not None:
                await cancel_all(running[2])
                del self._running[uid]
            await self._report(operation, Report(sequence=order.sequence, outcome=Outcome.ABORTED, reason="Aborted"))
        elif not is_done and running is None:
            task = asyncio.create_task(self._execute(operation), name=f"kube-acc-operation-{operation.metadata.name}")
            task.add_done_callback(lambda _: self.wake())
            self._running[uid] = (order.sequence, order.rollback, task)

    async def _execute(self, operation: AcceleratorOperation) -> None:
        order = operation.status.order
        assert order is not None  # _consider has looked
        before = operation.status.report
        has_begun = before is not None and before.sequence == order.sequence
        try:
            action = _Action(self._board, self._reports, self._facts, operation)
            begun = before.result if has_begun and before is not None else await action.begin()
            if not has_begun:
                await self._report(operation, Report(sequence=order.sequence, result=begun))
            result = await (action.undo() if order.rollback else action.do(begun))
            report = Report(sequence=order.sequence, outcome=Outcome.SUCCEEDED, reason="Done", result=_short(result))
        except BackendError as e:
            log.warning("the operation %s failed: %s", operation.metadata.name, e.message)
            report = Report(
                sequence=order.sequence,
                outcome=Outcome.FAILED,
                retryable=isinstance(e, _RETRYABLE),
                reason=type(e).__name__,
                message=e.message[:1024],
            )
        except OSError as e:
            report = Report(
                sequence=order.sequence, outcome=Outcome.FAILED, retryable=True, reason="IOError", message=str(e)[:1024]
            )
        self._board.wake()
        self._reports.wake()
        await self._report(operation, report)

    async def _report(self, operation: AcceleratorOperation, report: Report) -> None:
        delays = self._api.delays()
        while True:
            try:
                body = {"metadata": {"uid": operation.metadata.uid}, "status": {"report": msgspec.to_builtins(report)}}
                await self._api.apply(
                    OPERATIONS,
                    operation.metadata.name,
                    body,
                    operation.metadata.namespace,
                    manager=NODE_MANAGER,
                    force=True,
                    subresource="status",
                )
                break
            except (Unavailable, DeadlineExceeded) as e:
                log.warning("the report of %s waits for the API server: %s", operation.metadata.name, e.message)
                await delays.wait()
        self._reported[operation.metadata.uid] = report


class _Action:
    """One order of one operation, executed by the plugin of its device."""

    def __init__(
        self, board: DeviceBoard, reports: AcceleratorReports, facts: FactStore, operation: AcceleratorOperation
    ) -> None:
        self._board, self._facts, self._operation = board, facts, operation
        key = reports.key_of(operation.spec.accelerator)
        if key is None:
            raise NotFound(f"this node has no accelerator {operation.spec.accelerator}")
        self._key: DeviceKey = key
        handle = board.handle(key[0])
        if handle is None:
            raise PluginError(f"the plugin {key[0]} is not available")
        self._handle: PluginHandle = handle

    @property
    def _device_id(self) -> DeviceId:
        return self._key[1]

    async def begin(self) -> dict[str, str]:
        """Returns what must be known to repeat the order without a second effect."""
        partition = self._operation.spec.partition
        if partition is None or partition.action is not PartitionAction.CREATE:
            return {}
        return {f"{_BEFORE}{number}": name for number, name in enumerate(await self._partitions())}

    async def _partitions(self) -> list[DeviceId]:
        devices = await self._handle.call("list_devices", lambda plugin: plugin.list_devices())
        return sorted(device.device_id for device in devices if parent_id(device.device_id) == self._device_id)

    async def do(self, begun: Mapping[str, str]) -> dict[str, str]:
        """Executes the operation; returns what the report says of it."""
        spec = self._operation.spec
        if spec.operation is V.ATTACH:
            await self._call("attach", lambda plugin: cast("Attachable", plugin).attach(self._device_id))
        elif spec.operation is V.DETACH:
            await self._call("detach", lambda plugin: cast("Attachable", plugin).detach(self._device_id))
        elif spec.operation is V.RESET:
            await self._call("reset", lambda plugin: cast("PowerControllable", plugin).reset(self._device_id))
        elif spec.power is not None:
            await self._switch(spec.power.state)
        elif spec.program is not None:
            await self._program(spec.program.artifact)
        elif spec.partition is not None:
            return await self._partition(spec.partition.action, spec.partition.profile or "", begun)
        elif spec.operation is V.DIAGNOSE:
            return await self._diagnose()
        return {}

    async def undo(self) -> dict[str, str]:
        """Undoes the operation as far as the order says what was before. Raises InvalidInput if it does not."""
        spec, order = self._operation.spec, self._operation.status.order
        assert order is not None  # only an order undoes
        if spec.operation is V.ATTACH:
            await self._call("detach", lambda plugin: cast("Attachable", plugin).detach(self._device_id))
        elif spec.operation is V.DETACH:
            await self._call("attach", lambda plugin: cast("Attachable", plugin).attach(self._device_id))
        elif spec.power is not None:
            before = order.previous_power
            if before not in (PowerState.ON, PowerState.OFF):
                before = PowerState.ON
            await self._switch(before)
        elif spec.program is not None:
            await self._program_before(order.previous_program)
        elif spec.partition is not None:
            created = order.result.get("partition")
            if spec.partition.action is PartitionAction.DESTROY:
                raise InvalidInput("nobody knows the profile of the partition that was destroyed: create it anew")
            if created:
                await self._destroy(DeviceId(created))
        return {}

    async def _call(self, name: str, call: Any) -> Any:
        return await self._handle.call(name, call)

    async def _switch(self, state: PowerState) -> None:
        if state is PowerState.ON:
            await self._call("power_on", lambda plugin: cast("PowerControllable", plugin).power_on(self._device_id))
        else:
            await self._call("power_off", lambda plugin: cast("PowerControllable", plugin).power_off(self._device_id))
        self._remember(power=state)

    async def _program(self, artifact: Artifact) -> None:
        if artifact.signature is not None:
            raise InvalidInput("the node plugin cannot check signatures of images yet")
        path = _local_path(artifact.uri)
        digest = await asyncio.to_thread(_sha256, path)
        if digest != artifact.sha256:
            raise InvalidInput(f"{path} has the digest {digest}, not {artifact.sha256}")
        await self._call("program", lambda plugin: cast("Programmable", plugin).program(self._device_id, str(path)))
        self._remember(program=Program(image=artifact.uri[:_MAX_RESULT], sha256=digest))

    async def _program_before(self, previous: Program | None) -> None:
        if previous is None or previous.sha256 is None:
            raise InvalidInput("nobody knows the image that the device had before")
        await self._program(Artifact(uri=previous.image, sha256=previous.sha256))

    async def _partition(self, action: PartitionAction, profile: str, begun: Mapping[str, str]) -> dict[str, str]:
        if action is PartitionAction.DESTROY:
            await self._destroy(self._device_id)
            return {}
        before = {name for key, name in begun.items() if key.startswith(_BEFORE)}
        created = [name for name in await self._partitions() if name not in before]
        if created:  # by this order, before a crash: one operation holds the device
            return {"partition": created[0]}
        name = await self._call(
            "create_partition",
            lambda plugin: cast("Partitionable", plugin).create_partition(self._device_id, profile),
        )
        return {"partition": str(name)}

    async def _destroy(self, partition: DeviceId) -> None:
        await self._call("destroy_partition", lambda plugin: cast("Partitionable", plugin).destroy_partition(partition))

    async def _diagnose(self) -> dict[str, str]:
        info = await self._handle.call("get_node_info", lambda plugin: plugin.get_node_info())
        device = next((one for one in self._board.devices(self._key[0]) if one.device_id == self._device_id), None)
        result = {
            "health": str(device.health) if device is not None else "not listed",
            "reason": device.health_reason if device is not None else "",
            "plugin": self._handle.reason or "healthy",
            "driver": info.driver_version or "",
            "runtime": info.runtime_version or "",
        }
        return {key: value for key, value in result.items() if value}

    def _remember(self, **changes: Any) -> None:
        facts: DeviceFacts = msgspec.structs.replace(self._facts.get(self._key), **changes)
        self._facts.put(self._key, facts)


def _local_path(uri: str) -> Path:
    """Returns the path of an image on this node. Raises InvalidInput for an image elsewhere."""
    parts = urlsplit(uri)
    path = Path(unquote(parts.path))
    if parts.scheme != "file" or parts.netloc or ".." in path.parts:
        raise InvalidInput(f"{uri[:200]}: the node plugin loads images from files of the node (file:///...)")
    return path


def _sha256(path: Path) -> str:
    """Raises InvalidInput if there is no such regular file."""
    if not path.is_file():
        raise InvalidInput(f"{path} is no file")
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def _short(result: Mapping[str, str]) -> dict[str, str]:
    return {key: value[:_MAX_RESULT] for key, value in result.items()}
