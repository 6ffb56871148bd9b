"""Holds the connection to one cluster, which the runtimes of all its nodes share.

They share the API client, the copy of the pods and the listener. :class:`KubernetesRuntime` is one node's view of it.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Coroutine
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec

from ai.backend.common.errors import (
    AuthenticationFailed,
    BackendError,
    Conflict,
    InvalidInput,
    InvalidQuantity,
    NotFound,
    Unavailable,
)
from ai.backend.common.ids import KernelId, SessionId
from ai.backend.common.structs import replace
from ai.backend.node.kube_api.client import KubeApi
from ai.backend.node.kube_api.errors import ApiRefusal, ObjectConflict, ObjectNotFound
from ai.backend.node.kube_api.objects import Pod, RuntimeClass
from ai.backend.node.kube_api.quantities import parse_quantity
from ai.backend.node.kube_api.reflector import Reflector
from ai.backend.node.kube_api.resources import NETWORK_POLICIES, PODS, RESOURCE_CLAIMS, RUNTIME_CLASSES
from ai.backend.plugin.crash_points import crash_point
from ai.backend.plugin.runtime import RuntimeInfo, WorkloadExited, WorkloadKey, WorkloadSpec
from ai.backend.runtime.kubernetes.capabilities import describe
from ai.backend.runtime.kubernetes.certificates import listener_context, make_certificate
from ai.backend.runtime.kubernetes.creation import longest_creation_s
from ai.backend.runtime.kubernetes.handles import Handle, Handles
from ai.backend.runtime.kubernetes.isolation import PROBE_TIMEOUT_S, are_policies_enforced, remove_left_probes
from ai.backend.runtime.kubernetes.links import PodLink
from ai.backend.runtime.kubernetes.listener import Hello, RelayListener
from ai.backend.runtime.kubernetes.manifest import TOKEN_AUDIENCE, ClusterFacts, compose_pod
from ai.backend.runtime.kubernetes.networks import SessionNetworks
from ai.backend.runtime.kubernetes.policies import default_policy, default_policy_name
from ai.backend.runtime.kubernetes.records import FINALIZER, INSTANCE_LABEL, RELAY_CONTAINER
from ai.backend.runtime.kubernetes.removed_nodes import RemovedNodes
from ai.backend.runtime.kubernetes.settings import KubernetesRuntimeSettings
from ai.backend.runtime.kubernetes.signals import container_status, has_ended, is_node_gone, is_running
from ai.backend.runtime.kubernetes.streams import PodStream
from ai.backend.runtime.kubernetes.tokens import PodIdentity, TokenVerifier

log = logging.getLogger(__name__)
SYNC_TIMEOUT_S = 30.0
TERMINATION_TIMEOUT_S = 60.0
EVENT_QUEUE_LIMIT = 10_000
ABANDONED_AFTER_S = 120.0
"""A pod whose runner has not begun after so long, and that nobody is creating, is removed."""
SWEEP_INTERVAL_S = 30.0
REMOVED_NODES_INTERVAL_S = 600.0
DIAL_TIMEOUT_S = 10.0
_FORCED_GRACE_S = 1
"""The shortest grace with which the kubelet still ends the pod itself; 0 would only delete the object."""
_PROBE_NODE = "probe.invalid"


class ClusterConnection:
    """Serves the runtimes of the nodes of one cluster.

    Args:
        api: the client, which the caller closes.
        directory: where the listener's certificate is kept if none is configured.
    """

    def __init__(self, settings: KubernetesRuntimeSettings, api: KubeApi, directory: Path) -> None:
        self.settings = settings
        self.api = api
        self._directory = directory
        self.handles = Handles(self._on_exit)
        self.reflector: Reflector[Pod] = Reflector(
            api,
            PODS,
            settings.namespace,
            label_selector=f"{INSTANCE_LABEL}={settings.instance}",
            on_change=self.handles.on_change,
        )
        self._verifier = TokenVerifier(api, TOKEN_AUDIENCE)
        self._listener: RelayListener | None = None
        self._queues: dict[str, asyncio.Queue[WorkloadExited]] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._facts: ClusterFacts | None = None
        self._info: RuntimeInfo | None = None
        self._runtime_classes: tuple[RuntimeClass, ...] = ()
        self._nodes: set[str] = set()
        self.networks = SessionNetworks(api, settings, self.handles)
        self._removed_nodes = RemovedNodes(
            api, settings, self.handles, served_nodes=lambda: self._nodes, release=self._release_ended
        )
        self._lock = asyncio.Lock()

    # ---- lifetime

    async def acquire(self, node: str) -> None:
        """Adds a node to the nodes that this connection serves, and connects to the cluster for the first node.

        Raises Unavailable, InvalidInput.
        """
        async with self._lock:
            if not self._nodes:
                try:
                    await self._connect()
                except BaseException:
                    await self._disconnect()
                    raise
            self._nodes.add(node)

    async def release(self, node: str) -> None:
        """Stops serving a node, and disconnects from the cluster after the last node. Sessions go on."""
        async with self._lock:
            self._nodes.discard(node)
            self._queues.pop(node, None)
            if not self._nodes:
                await self._disconnect()

    async def _connect(self) -> None:
        settings = self.settings
        if settings.relay_certificate is not None and settings.relay_key is not None:
            certificate_paths = settings.relay_certificate, settings.relay_key
        else:
            certificate_paths = await asyncio.to_thread(make_certificate, self._directory)
        context, certificate_pem = await asyncio.to_thread(listener_context, *certificate_paths)
        self._listener = RelayListener(context, self._verifier.verify, self._admit)
        try:
            await self._listener.start(settings.relay_listen)
        except (OSError, ValueError) as error:
            message = f"relays cannot be awaited at {settings.relay_listen}: {error}"
            raise InvalidInput(message, data={"relay-listen": settings.relay_listen}) from None
        self._start(self.reflector.run(), "pods")
        try:
            async with asyncio.timeout(SYNC_TIMEOUT_S):
                await self.reflector.synced.wait()
        except TimeoutError:
            reason = self.reflector.failure or "no answer"
            raise Unavailable(f"the pods of {settings.namespace} cannot be listed: {reason}") from None
        await self._detect_features(certificate_pem)
        self._start(self._sweep_loop(), "sweep")
        self._start(self._removed_nodes_loop(), "removed-nodes")
        if settings.network_policy != "none" and settings.network_probe:
            self._start(self._probe_isolation(), "probe")
        self._start(self._remove_left_probes(), "left-probes")

    async def _disconnect(self) -> None:
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._listener is not None:
            await self._listener.close()
            self._listener = None
        self.handles.clear()

    def _start(self, loop: Coroutine[Any, Any, None], name: str) -> None:
        self._tasks.append(asyncio.create_task(loop, name=f"kubernetes-runtime-{name}"))

    @property
    def facts(self) -> ClusterFacts:
        if self._facts is None:
            raise Unavailable("the Kubernetes runtime is not set up")
        return self._facts

    @property
    def info(self) -> RuntimeInfo:
        if self._info is None:
            raise Unavailable("the Kubernetes runtime is not set up")
        return self._info

    async def _detect_features(self, certificate_pem: str) -> None:
        """Determines which features the cluster has, by requests that change nothing where possible."""
        settings = self.settings
        has_image_volumes = settings.runner_volume == "image"
        facts = ClusterFacts(authority=certificate_pem, has_image_volumes=True, device_classes=settings.device_classes)
        if settings.runner_volume == "auto":
            has_image_volumes = await self._takes_image_volumes(facts)
        runtime_classes: tuple[RuntimeClass, ...] = ()
        with suppress(ApiRefusal):  # no permission, or no such kind: none can be offered
            listed_classes, _ = await self.api.list(RUNTIME_CLASSES)
            runtime_classes = tuple(sorted(listed_classes, key=lambda runtime_class: runtime_class.metadata.name))
        overhead_by_class = {
            class_with_overhead.metadata.name: float(overhead_of(class_with_overhead, "cpu"))
            for class_with_overhead in runtime_classes
        }
        self._facts = replace(facts, has_image_volumes=has_image_volumes, overhead_cores=overhead_by_class)
        if settings.network_policy == "default-deny":
            name, policy = default_policy_name(settings.instance), default_policy(settings, ())
            await self.api.apply(NETWORK_POLICIES, name, policy, settings.namespace, manager="backendai", force=True)
        self._runtime_classes = runtime_classes
        self._update_info(is_isolated=False)

    def _update_info(self, *, is_isolated: bool) -> None:
        has_policies = self.settings.network_policy != "none"
        self._info = describe(
            runtime_classes=tuple(runtime_class.metadata.name for runtime_class in self._runtime_classes),
            class_handlers={
                runtime_class.metadata.name: runtime_class.handler for runtime_class in self._runtime_classes
            },
            class_overheads={
                runtime_class.metadata.name: overhead_bytes
                for runtime_class in self._runtime_classes
                if (overhead_bytes := int(overhead_of(runtime_class, "memory")))
            },
            is_isolated=is_isolated,
            has_policies=has_policies,
            create_timeout_s=longest_creation_s(self.settings),
            keeps_home=self.settings.home_volume == "claim",
        )

    async def _probe_isolation(self) -> None:
        """Tests if the cluster enforces network policies, and updates the runtime's description with the result."""
        self._update_info(is_isolated=await are_policies_enforced(self.api, self.settings) is True)

    async def _remove_left_probes(self) -> None:
        try:
            await remove_left_probes(self.api, self.settings, after_s=PROBE_TIMEOUT_S)
        except BackendError as error:
            log.warning("what an earlier probe may have left cannot be removed before the next start: %s", error)

    async def _takes_image_volumes(self, facts: ClusterFacts) -> bool:
        """Returns True if a dry run of a pod with an image volume keeps that field: an older API server drops it."""
        key = WorkloadKey(kernel_id=KernelId(uuid4()), attempt=0)
        spec = WorkloadSpec(key=key, session_id=SessionId(uuid4()), image="probe")
        manifest = compose_pod(spec, self.settings, facts, _PROBE_NODE)
        body = {"apiVersion": "v1", "kind": "Pod", **manifest}
        path = f"/api/v1/namespaces/{self.settings.namespace}/pods"
        try:
            answer_json = await self.api.request("POST", path, query={"dryRun": "All"}, body=body)
        except ApiRefusal as refusal:
            log.info("the runner is copied into pods, as image volumes are refused: %s", refusal)
            return False
        volumes = (msgspec.json.decode(answer_json).get("spec") or {}).get("volumes") or ()
        return any(volume.get("image") for volume in volumes)

    # ---- ends

    def queue(self, node: str) -> asyncio.Queue[WorkloadExited]:
        """Returns the queue of the ends of workloads on a node."""
        return self._queues.setdefault(node, asyncio.Queue(EVENT_QUEUE_LIMIT))

    def _on_exit(self, node: str, event: WorkloadExited) -> None:
        if node in self._nodes:  # others are served by other agents, which see the same pods
            with suppress(asyncio.QueueFull):
                self.queue(node).put_nowait(event)

    # ---- relays

    async def _admit(self, hello: Hello, identity: PodIdentity) -> asyncio.Protocol:
        """Returns the protocol that serves a new connection from one of our pods, for a relay or for a stream.

        Raises BackendError for every other connection.
        """
        if identity.namespace != self.settings.namespace:
            raise AuthenticationFailed("the pod is not in the namespace of sessions")
        handle = self.handles.of_pod(identity.uid)
        if handle is None:
            raise NotFound("this agent has no such pod")
        if hello.role == "relay":
            return handle.connect_relay(hello)
        stream_future = handle.stream_futures.get(hello.id)
        if hello.role != "stream" or stream_future is None or stream_future.done():
            raise Conflict("nobody awaits this stream")
        pod_stream = PodStream()
        stream_future.set_result(pod_stream)
        return pod_stream

    async def dial(self, handle: Handle, port: int) -> PodStream:
        """Returns a connection to a port inside a pod. Raises Unavailable."""
        stream_id = secrets.token_hex(16)
        stream_future: asyncio.Future[PodStream] = asyncio.get_running_loop().create_future()
        handle.stream_futures[stream_id] = stream_future
        try:
            link = await self.open_link(handle)
            await link.send({"t": "dial", "id": stream_id, "port": port})
            async with asyncio.timeout(DIAL_TIMEOUT_S):
                return await stream_future
        except TimeoutError:
            raise Unavailable(f"the pod does not connect to its port {port} in time") from None
        finally:
            del handle.stream_futures[stream_id]
            if not stream_future.done():
                stream_future.cancel()

    async def open_link(self, handle: Handle) -> PodLink:
        """Returns the open link to a pod's relay, and waits for some time if the relay is not connected.

        Raises Unavailable.

        The relay of an ended session is waited for while it runs: it has what no agent has read yet.
        """
        await handle.wait_until(
            lambda: (handle.link is not None and handle.link.is_open) or not is_relay_expected(handle),
            self.settings.relay_timeout_s,
        )
        if handle.link is None or not handle.link.is_open:
            raise Unavailable("there is no live runner" if handle.exit is not None else "the relay is not connected")
        return handle.link

    # ---- removal

    async def delete(self, handle: Handle) -> None:
        """Deletes the pod of a workload, waits until the workload's processes have ended, and removes the record.

        Raises Unavailable.
        """
        settings, pod_name = self.settings, handle.pod.metadata.name if handle.pod is not None else ""
        if handle.pod is not None:
            with suppress(ObjectConflict):  # another one of this name is not ours to remove
                await self.api.delete(PODS, pod_name, settings.namespace, uid=handle.uid, grace_s=_FORCED_GRACE_S)
            if handle.link is not None and handle.link.is_open:
                with suppress(Unavailable):
                    end_request = {"t": "end", "grace": 0.0, "reason": handle.reason or "removed"}
                    handle.link.post(end_request, *([{"t": "dismiss"}] if handle.exit is not None else []))
            crash_point("remove.deleted")
            if not await handle.wait_until(lambda: _is_over(handle), TERMINATION_TIMEOUT_S):
                raise Unavailable(f"the node does not end the pod {pod_name}")
            if handle.link is not None and handle.link.is_open:
                with suppress(Unavailable):
                    handle.link.post({"t": "dismiss"})
            await self.release_pod(handle)
        crash_point("remove.released")
        self.handles.forget(handle)

    async def release_pod(self, handle: Handle) -> None:
        """Removes our finalizer from a pod, which the API server then forgets."""
        pod = handle.pod
        if pod is None or FINALIZER not in pod.metadata.finalizers:
            return
        kept_finalizers = [finalizer for finalizer in pod.metadata.finalizers if finalizer != FINALIZER]
        body = {"metadata": {"uid": handle.uid, "finalizers": kept_finalizers or None}}
        with suppress(ObjectNotFound, ObjectConflict):
            await self.api.patch(PODS, pod.metadata.name, body, self.settings.namespace)

    async def delete_claim(self, name: str) -> None:
        """Removes a ResourceClaim whose pod was never created."""
        with suppress(BackendError):
            await self.api.delete(RESOURCE_CLAIMS, name, self.settings.namespace)

    async def _sweep_loop(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_INTERVAL_S)
            for handle in self.handles:
                lock = self.handles.lock(handle.key)
                if lock.locked() or not self._is_abandoned(handle):
                    continue
                log.warning("the pod of %s was made and never begun; it is removed", handle.key)
                with suppress(BackendError):
                    async with lock:
                        await self.delete(handle)

    async def _removed_nodes_loop(self) -> None:
        while True:
            await asyncio.sleep(REMOVED_NODES_INTERVAL_S)  # a period: removed nodes may be found late
            try:
                await self._removed_nodes.sweep()
            except BackendError as error:
                log.warning("what removed nodes have left cannot be looked for now: %s", error)
            except Exception:  # the next round starts from what the cluster says
                log.exception("what removed nodes have left could not be looked for")

    async def _release_ended(self, handle: Handle) -> None:
        """Removes an ended workload with its record, when no agent works on the workload any more."""
        lock = self.handles.lock(handle.key)
        if not lock.locked():
            async with lock:
                await self.delete(handle)

    def _is_abandoned(self, handle: Handle) -> bool:
        """Returns True for a pod of our nodes whose runner has not been started within ``ABANDONED_AFTER_S`` seconds.

        The relay of the pod must be reachable, or the container of its session must not run. The caller knows that
        nobody is creating the workload.
        """
        is_idle = handle.has_begun is False or (handle.pod is not None and not is_running(handle.pod))
        is_old = time.monotonic() - handle.first_seen_at > ABANDONED_AFTER_S
        return is_old and is_idle and not handle.has_begun and handle.exit is None and handle.record.node in self._nodes


def overhead_of(runtime_class: RuntimeClass, resource_name: str) -> Decimal:
    """Returns the overhead, in cores or bytes, that a runtime class adds to each pod for one resource.

    Returns 0 if there is none, or if the quantity cannot be read.
    """
    overhead_by_resource = runtime_class.overhead.pod_fixed if runtime_class.overhead is not None else {}
    try:
        return (
            max(Decimal(0), parse_quantity(overhead_by_resource[resource_name]))
            if resource_name in overhead_by_resource
            else Decimal(0)
        )
    except InvalidQuantity:
        return Decimal(0)


def is_relay_expected(handle: Handle) -> bool:
    """Returns True if the relay of a workload may still connect to the agent.

    This is so before the workload's exit, and while the relay's container runs.
    """
    if handle.exit is None:
        return True
    status = container_status(handle.pod, RELAY_CONTAINER) if handle.pod is not None else None
    return status is not None and status.state.running is not None


def _is_over(handle: Handle) -> bool:
    """Returns True once no process of a workload runs, as its node or the cluster reports."""
    if handle.pod is None:
        return True
    if not handle.pod.spec.node_name and handle.pod.metadata.deletion_timestamp:
        return True  # it was never bound
    return handle.exit is not None or has_ended(handle.pod) or is_node_gone(handle.pod)
