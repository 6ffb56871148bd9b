"""The Kubernetes runtime of one node: each workload is a pod that the manager's plan pins there."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

from ai.backend.common.errors import BackendError, Conflict, CreationDenied, NotSupported, Unavailable
from ai.backend.common.ids import SessionId
from ai.backend.common.wire.link import ByteStream
from ai.backend.node.kube_api.client import path_of
from ai.backend.node.kube_api.errors import ApiRefusal, ObjectConflict, ObjectNotFound
from ai.backend.node.kube_api.resources import NODES, PODS
from ai.backend.plugin.accelerator import Measurement
from ai.backend.plugin.crash_points import crash_point
from ai.backend.plugin.runtime import (
    AbstractRuntime,
    CommitRequest,
    CommittedImage,
    ImageRequest,
    NetworkView,
    Overlay,
    PortExposure,
    RunnerChannel,
    RuntimeImage,
    RuntimeInfo,
    TellProgress,
    WorkloadExit,
    WorkloadExited,
    WorkloadKey,
    WorkloadSpec,
    WorkloadView,
)
from ai.backend.runtime.kubernetes import capabilities
from ai.backend.runtime.kubernetes.channel import PodChannel
from ai.backend.runtime.kubernetes.claims import devices_for_claim
from ai.backend.runtime.kubernetes.cluster import ClusterConnection
from ai.backend.runtime.kubernetes.creation import Creation
from ai.backend.runtime.kubernetes.handles import Handle
from ai.backend.runtime.kubernetes.homes import Homes
from ai.backend.runtime.kubernetes.images import images_of
from ai.backend.runtime.kubernetes.records import MAIN_CONTAINER, pod_name
from ai.backend.runtime.kubernetes.settings import KubernetesRuntimeSettings
from ai.backend.runtime.kubernetes.statistics import measurements_of

log = logging.getLogger(__name__)
END_TIMEOUT_S = 30.0
LOG_SILENCE_S = 20.0
_MAX_TAIL_BYTES = 1 << 20
"""Up to so many bytes of a log are asked for by their number of lines, in which the kubelet finds their beginning."""
_EXIT_CHECK_S = 15.0
IMAGES_FRESH_S = 240.0


class KubernetesRuntime(AbstractRuntime):
    """Implements :class:`AbstractRuntime` for one node of a cluster.

    Args:
        cluster: shared with the runtimes of the other nodes.
        node: the node's name; its pods are the workloads of this runtime.
    """

    name: ClassVar[str] = "kubernetes"
    settings_model = KubernetesRuntimeSettings

    def __init__(self, cluster: ClusterConnection, node: str) -> None:
        self._cluster = cluster
        self._node = node
        self._handles = cluster.handles
        self._homes = Homes(cluster.api, cluster.settings, node)
        self._is_set_up = False
        self._images: Sequence[RuntimeImage] = ()
        self._images_read_at = float("-inf")

    # ---- lifetime

    async def setup(self) -> None:
        """Connects to the cluster unless another node's runtime has. Raises Unavailable, InvalidInput."""
        await self._cluster.acquire(self._node)
        self._is_set_up = True

    async def shutdown(self) -> None:
        if self._is_set_up:
            self._is_set_up = False
            await self._cluster.release(self._node)

    def info(self) -> RuntimeInfo:
        return self._cluster.info

    # ---- images

    async def list_images(self) -> Sequence[RuntimeImage]:
        """Lists the images that the node reports, which are its 50 largest only; others are pulled at a start.

        A kubelet tells of them rarely, they have no labels, and five calls in the life of each session ask for one that
        is not listed, so the list is read anew after ``IMAGES_FRESH_S`` only.
        """
        now = time.monotonic()
        if now - self._images_read_at > IMAGES_FRESH_S:
            self._images = images_of(await self._cluster.api.request("GET", path_of(NODES, name=self._node)))
            self._images_read_at = now
        return self._images

    async def pull_image(self, request: ImageRequest, tell: TellProgress) -> None:
        raise NotSupported(capabilities.NO_PULL)

    async def load_image(self, name: str, archive: Path) -> None:
        raise NotSupported(capabilities.NO_LOAD)

    async def remove_image(self, name: str) -> None:
        raise NotSupported(capabilities.NO_REMOVE)

    async def commit(self, key: WorkloadKey, request: CommitRequest, tell: TellProgress) -> CommittedImage:
        raise NotSupported(capabilities.NO_COMMIT)

    # ---- networks

    async def create_network(
        self, session_id: SessionId, hosts: Sequence[str], overlay: Overlay | None = None
    ) -> NetworkView:
        if overlay is not None:
            raise CreationDenied(capabilities.NO_MULTI_NODE_NETWORKS)
        return await self._cluster.networks.create(session_id, hosts, self._node)

    async def remove_network(self, session_id: SessionId) -> None:
        await self._cluster.networks.remove(session_id, self._node)

    async def list_networks(self) -> Sequence[SessionId]:
        return await self._cluster.networks.on_node(self._node)

    # ---- creation

    async def create(self, spec: WorkloadSpec) -> WorkloadView:
        self._require_class(spec.runtime_class)
        async with self._handles.lock(spec.key):
            cluster = self._cluster
            creation = Creation(
                spec, self._node, cluster.settings, cluster.facts, cluster.api, cluster.handles, self._homes
            )
            handle = self._find_handle(spec.key)
            if handle is not None and (handle.exit is not None or handle.has_begun):
                return handle.view()
            try:
                handle = await creation.finish(handle) if handle is not None else await creation.run()
            except BaseException:
                await asyncio.shield(self._undo(spec))
                raise
            return handle.view()

    def _require_class(self, runtime_class: str) -> None:
        runtime_classes = self.info().runtime_classes
        if runtime_class and runtime_class not in runtime_classes:
            class_names = ", ".join(runtime_classes) or "none"
            raise CreationDenied(f"this cluster has no runtime class {runtime_class!r}; there are {class_names}")

    async def _undo(self, spec: WorkloadSpec) -> None:
        """Removes the objects of a failed creation. Objects that cannot be removed now are removed by a later sweep."""
        handle = self._find_handle(spec.key)
        try:
            if handle is not None:
                handle.reason = handle.reason or "removed"
                await self._cluster.delete(handle)
        except BackendError as error:
            log.warning("the creation of %s cannot be undone yet: %s", spec.key, error)
        if devices_for_claim(spec.config.devices):
            await self._cluster.delete_claim(pod_name(spec.key))
        await self._homes.undo(spec)

    # ---- end

    async def stop(self, key: WorkloadKey, *, grace_s: float) -> WorkloadExit | None:
        async with self._handles.lock(key):
            handle = self._find_handle(key)
            return None if handle is None else await self._end_workload(handle, grace_s, "stopped")

    async def _end_workload(self, handle: Handle, grace_s: float, reason: str) -> WorkloadExit:
        """Ends a workload through its relay, which needs no API server.

        Deletes the pod if the relay does not end the workload. Raises Unavailable.
        """
        if handle.exit is not None:
            return handle.exit
        handle.reason = handle.reason or reason
        link = handle.link
        if link is not None and link.is_open:
            with suppress(Unavailable):
                await link.send({"t": "end", "grace": max(0.0, grace_s), "reason": reason})
                crash_point("stop.requested")
                await handle.wait_until(
                    lambda: handle.exit is not None or handle.link is not link, grace_s + END_TIMEOUT_S
                )
        if handle.exit is None and handle.pod is not None:
            deleted_pod_name, settings = handle.pod.metadata.name, self._cluster.settings
            delete_grace_s = max(1, math.ceil(grace_s))
            with suppress(ObjectConflict):
                await self._cluster.api.delete(
                    PODS, deleted_pod_name, settings.namespace, uid=handle.uid, grace_s=delete_grace_s
                )
            await handle.wait_until(lambda: handle.exit is not None, grace_s + END_TIMEOUT_S)
        crash_point("stop.exited")
        workload_exit = handle.view().exit
        if workload_exit is None:
            raise Unavailable(f"the node {self._node} does not end the pod of {handle.key}")
        return workload_exit

    async def remove(self, key: WorkloadKey, *, keep_home: bool = False) -> None:
        async with self._handles.lock(key):
            handle = self._find_handle(key)
            if handle is not None:
                handle.reason = handle.reason or "removed"
                await self._cluster.delete(handle)
            if not keep_home and not self._has_other_attempt(key):
                await self._homes.remove(key.kernel_id)

    def _has_other_attempt(self, key: WorkloadKey) -> bool:
        return any(
            handle.record.kernel_id == key.kernel_id and handle.key != key
            for handle in self._handles.on_node(self._node)
        )

    # ---- knowledge

    def _find_handle(self, key: WorkloadKey) -> Handle | None:
        handle = self._handles.get(key)
        return handle if handle is not None and handle.record.node == self._node else None

    async def inspect(self, key: WorkloadKey) -> WorkloadView | None:
        handle = self._find_handle(key)
        return None if handle is None else handle.view()

    async def list_workloads(self) -> Sequence[WorkloadView]:
        """Lists the workloads from the copy of the cluster's pods."""
        return [handle.view() for handle in self._handles.on_node(self._node)]

    async def open_channel(self, key: WorkloadKey, *, epoch: int, last_seq: int = 0) -> RunnerChannel:
        handle = self._find_handle(key)
        if handle is None:
            raise Unavailable("there is no such workload")
        try:
            link = await self._cluster.open_link(handle)
        except Unavailable:
            if handle.exit is None:
                raise
            return PodChannel(None, lambda: self._exit_after(handle, None))
        if epoch < handle.epoch:
            raise Conflict("a newer agent drives this workload")
        handle.epoch = epoch
        channel = PodChannel(link, lambda: self._exit_after(handle, channel))
        previous_channel, handle.channel = handle.channel, channel
        if previous_channel is not None:
            previous_channel.cut()
        try:
            await channel.attach(epoch=epoch, last_seq=last_seq)
        except BaseException:
            if handle.channel is channel:
                handle.channel = None
            raise
        if handle.reported_end is not None:
            channel.on_ended(handle.reported_end.last_seq)
        return channel

    async def _exit_after(self, handle: Handle, channel: PodChannel | None) -> WorkloadExit | None:
        """Waits after the end of a channel until the workload's exit is known, and returns the exit.

        Returns None if another channel or another agent serves the workload now.
        """

        def is_decided() -> bool:
            is_replaced = handle.channel is not None and handle.channel is not channel
            return handle.exit is not None or is_replaced or (handle.link is not None and handle.reported_end is None)

        while not is_decided():
            await handle.wait_until(is_decided, _EXIT_CHECK_S)
        return handle.exit

    async def port_exposure(self, key: WorkloadKey) -> PortExposure:
        self._require_living(key)
        return PortExposure.PRIVATE

    async def open_port(self, key: WorkloadKey, port: int) -> ByteStream:
        return await self._cluster.dial(self._require_living(key), port)

    def _require_living(self, key: WorkloadKey) -> Handle:
        handle = self._find_handle(key)
        if handle is None or handle.exit is not None:
            raise Unavailable("there is no such workload")
        return handle

    async def events(self) -> AsyncIterator[WorkloadExited]:
        queue = self._cluster.queue(self._node)
        while True:
            yield await queue.get()

    async def read_logs(self, key: WorkloadKey, *, max_bytes: int) -> bytes:
        handle = self._find_handle(key)
        if handle is None or handle.pod is None or max_bytes <= 0:
            return b""
        path = path_of(PODS, self._cluster.settings.namespace, handle.pod.metadata.name, "log")
        query = {"container": MAIN_CONTAINER}
        if max_bytes <= _MAX_TAIL_BYTES:
            # A line has at least one byte, so these lines have the bytes; of a long log the kubelet sends only them.
            query["tailLines"] = str(max_bytes)
        log_tail = bytearray()
        try:
            async with self._cluster.api.stream(path, query, silence_s=LOG_SILENCE_S) as chunks:
                async for chunk in chunks:
                    log_tail += chunk
                    if len(log_tail) > 2 * max_bytes:
                        del log_tail[:-max_bytes]
        except ObjectNotFound:
            return b""
        except ApiRefusal as refusal:
            log.info("the log of %s cannot be read: %s", key, refusal)
        return bytes(log_tail[-max_bytes:])

    async def measure(self, keys: Sequence[WorkloadKey]) -> Mapping[WorkloadKey, Sequence[Measurement]]:
        handles = [handle for key in keys if (handle := self._find_handle(key)) is not None]
        return {
            handle.key: measurements_of(handle.last_sample, handle.record)
            for handle in handles
            if handle.exit is None and handle.last_sample is not None
        }

    async def pids(self, key: WorkloadKey) -> tuple[int, ...]:
        """Returns process ids in the pod's own namespace; those of the node stay hidden."""
        handle = self._find_handle(key)
        return () if handle is None or handle.last_sample is None else tuple(handle.last_sample.report.pids)
