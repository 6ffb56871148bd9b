"""Follows the nodes, the device slices and the pods of others, and reports which nodes have changed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import msgspec

from ai.backend.agent.config.kubernetes import KubernetesSettings
from ai.backend.agent.shard.nodes import NodeFacts, Requests, facts_of, is_served, requests_of
from ai.backend.common.errors import Unavailable
from ai.backend.node.kube_api.client import KubeApi
from ai.backend.node.kube_api.objects import KubeObject, Node, PodSpec, ResourceSlice
from ai.backend.node.kube_api.reflector import Reflector
from ai.backend.node.kube_api.resources import NODES, RESOURCE_SLICES, Resource

SYNC_TIMEOUT_S = 60.0
INSTANCE_LABEL = "backend.ai/instance"
"""The label of sessions' pods of every installation. The manager of an installation accounts for what its pods hold."""


class BoundPod(KubeObject, frozen=True, kw_only=True):
    """Describes a pod on a node that does not belong to a session, by the resources that it requests."""

    spec: PodSpec = PodSpec()


_OTHERS = Resource("", "v1", "pods", "Pod", BoundPod)


class _PodRequests(msgspec.Struct, frozen=True):
    node: str
    requests: Requests


class NodeInventory:
    """Holds the facts of each node of the shard, and calls ``on_change`` with the name of a node that has changed.

    The copies stay as they are while the API server is away.
    """

    def __init__(
        self,
        api: KubeApi,
        settings: KubernetesSettings,
        resource_group: str,
        on_change: Callable[[str], None],
    ) -> None:
        self._api = api
        self._settings = settings
        self._resource_group = resource_group
        self._on_change = on_change
        self._held: dict[tuple[str, str], _PodRequests] = {}
        self._others: dict[str, Requests] = {}
        self._slices: dict[str, dict[str, ResourceSlice]] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._watched: list[Reflector[Any]] = []
        self.nodes: Reflector[Node] = Reflector(
            api, NODES, label_selector=settings.node_selector, on_change=self._on_node
        )
        self.pods: Reflector[BoundPod] = Reflector(
            api,
            _OTHERS,
            label_selector=f"!{INSTANCE_LABEL}",
            field_selector="spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed",
            on_change=self._on_pod,
        )
        self.slices: Reflector[ResourceSlice] = Reflector(api, RESOURCE_SLICES, on_change=self._on_slice)

    async def start(self) -> None:
        """Begins to watch; returns once every copy is complete. Raises Unavailable."""
        reflectors: list[Reflector[Any]] = [self.nodes, self.pods]
        if self._settings.drivers:
            await self._check_slices()
            reflectors.append(self.slices)
        await self._watch(*reflectors)

    async def reconfigure(self, settings: KubernetesSettings) -> None:
        """Replaces the drivers and the counted resources of the settings, and reports all nodes as changed.

        Raises Unavailable, and changes nothing then.
        """
        if settings.drivers:
            if self.slices not in self._watched:
                await self._check_slices()
            await self._watch(self.slices)
        self._settings = self._settings.model_copy(update={"drivers": settings.drivers, "counted": settings.counted})
        for name in self.names():
            self._on_change(name)

    async def _check_slices(self) -> None:
        if not await self._api.is_served(RESOURCE_SLICES):
            raise Unavailable("kubernetes.drivers are set, and this cluster has no resource.k8s.io/v1")

    async def _watch(self, *reflectors: Reflector[Any]) -> None:
        for reflector in reflectors:
            if reflector not in self._watched:
                self._watched.append(reflector)
                self._start(reflector.run())
        try:
            async with asyncio.timeout(SYNC_TIMEOUT_S):
                for reflector in reflectors:
                    await reflector.synced.wait()
        except TimeoutError:
            failure_text = "; ".join(filter(None, (reflector.failure for reflector in reflectors)))
            raise Unavailable(f"the nodes of the cluster cannot be listed: {failure_text or 'no answer'}") from None

    def _start(self, loop: Coroutine[Any, Any, None]) -> None:
        self._tasks.append(asyncio.create_task(loop, name="shard-watch"))

    async def close(self) -> None:
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def settings(self) -> KubernetesSettings:
        """The settings that say which nodes belong to the shard, and which of their devices are offered."""
        return self._settings

    def names(self) -> Iterator[str]:
        """Yields the nodes of the pool."""
        for (_, name), node in self.nodes.objects.items():
            if is_served(node, self._settings):
                yield name

    def facts(self, name: str) -> NodeFacts | None:
        """Returns the facts about a node of the pool, None if there is none of this name."""
        node = self.nodes.get(name)
        if node is None or not is_served(node, self._settings):
            return None
        slices = self._slices.get(name, {}).values()
        return facts_of(node, slices, self._others.get(name, Requests()), self._settings, self._resource_group)

    def _on_node(self, old_node: Node | None, new_node: Node | None) -> None:
        node = new_node or old_node
        if node is not None:
            self._on_change(node.metadata.name)

    def _on_pod(self, old_pod: BoundPod | None, new_pod: BoundPod | None) -> None:
        pod = new_pod or old_pod
        if pod is None:
            return
        old_requests = self._held.pop(pod.key, None)
        new_requests = _PodRequests(new_pod.spec.node_name, requests_of(new_pod.spec)) if new_pod is not None else None
        if new_requests is not None and new_requests.node:
            self._held[pod.key] = new_requests
        if old_requests == new_requests:
            return
        for pod_requests, sign in ((old_requests, -1), (new_requests, 1)):
            if pod_requests is not None:
                self._others[pod_requests.node] = self._others.get(pod_requests.node, Requests()).plus(
                    pod_requests.requests, sign
                )
                self._on_change(pod_requests.node)

    def _on_slice(self, old_slice: ResourceSlice | None, new_slice: ResourceSlice | None) -> None:
        for removed_slice in filter(None, (old_slice,)):
            self._slices.get(removed_slice.spec.node_name, {}).pop(removed_slice.metadata.name, None)
            self._on_change(removed_slice.spec.node_name)
        if new_slice is not None:
            self._slices.setdefault(new_slice.spec.node_name, {})[new_slice.metadata.name] = new_slice
            self._on_change(new_slice.spec.node_name)
