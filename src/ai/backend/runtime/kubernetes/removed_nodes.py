"""Removes the pods, homes and networks that sessions have left on nodes that were removed from the cluster for good.

The agent of such a node has ended with it, and the manager has given its sessions up. Their pods keep our finalizer,
and their homes are claims of a node to which no pod can be bound any more. Nobody else removes their networks.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress

from ai.backend.common.errors import BackendError
from ai.backend.node.kube_api.client import KubeApi
from ai.backend.node.kube_api.errors import ObjectConflict
from ai.backend.node.kube_api.objects import KubeObject
from ai.backend.node.kube_api.resources import NETWORK_POLICIES, NODES, VOLUME_CLAIMS, Resource
from ai.backend.runtime.kubernetes.handles import Handle, Handles
from ai.backend.runtime.kubernetes.records import INSTANCE_LABEL, NODE_ANNOTATION, SESSION_LABEL
from ai.backend.runtime.kubernetes.settings import KubernetesRuntimeSettings

log = logging.getLogger(__name__)
_LeftObject = tuple[Resource[KubeObject], KubeObject]


class RemovedNodes:
    """Removes pods, homes and networks of each node that has been missing from the cluster for ``removed_node_s``.

    A node counts from the first round in which this process misses it, so an agent that starts anew waits anew.

    Args:
        served_nodes: returns the nodes whose agents run here, which look after their sessions themselves.
        release: removes the record of a workload that has ended.
        clock: seconds that never go back.
    """

    def __init__(
        self,
        api: KubeApi,
        settings: KubernetesRuntimeSettings,
        handles: Handles,
        *,
        served_nodes: Callable[[], Collection[str]],
        release: Callable[[Handle], Awaitable[None]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api = api
        self._settings = settings
        self._handles = handles
        self._served_nodes = served_nodes
        self._release = release
        self._clock = clock
        self._missing_since: dict[str, float] = {}

    async def sweep(self) -> None:
        """Runs one round: finds missing nodes, and removes the objects of nodes that are missing for long enough.
        Raises BackendError if the cluster cannot be asked; the next round goes on.
        """
        handles_by_node: dict[str, list[Handle]] = {}
        objects_by_node: dict[str, list[_LeftObject]] = {}
        for workload in self._handles:
            handles_by_node.setdefault(workload.record.node, []).append(workload)
        for kind, label_condition in ((VOLUME_CLAIMS, ""), (NETWORK_POLICIES, f",{SESSION_LABEL}")):
            if kind is not VOLUME_CLAIMS or self._settings.home_volume == "claim":
                for kube_object in await self._list(kind, label_condition):
                    objects_by_node.setdefault(kube_object.metadata.annotations.get(NODE_ANNOTATION, ""), []).append(
                        (kind, kube_object)
                    )
        unserved_nodes = {node for node in {*handles_by_node, *objects_by_node} if node} - set(self._served_nodes())
        self._missing_since = {
            node: missing_since for node, missing_since in self._missing_since.items() if node in unserved_nodes
        }
        for node in sorted(unserved_nodes):
            if await self._is_over(node):
                await self._remove(node, handles_by_node.get(node, ()), objects_by_node.get(node, ()))

    async def _list(self, kind: Resource[KubeObject], label_condition: str) -> list[KubeObject]:
        selector = f"{INSTANCE_LABEL}={self._settings.instance}{label_condition}"
        objects, _ = await self._api.list(kind, self._settings.namespace, label_selector=selector)
        return list(objects)

    async def _is_over(self, node: str) -> bool:
        """Returns True if a node has been missing from the cluster for at least ``removed_node_s`` seconds.

        Starts counting at the first call that does not find the node.
        """
        if await self._api.find(NODES, node) is not None:
            self._missing_since.pop(node, None)
            return False
        now = self._clock()
        return now - self._missing_since.setdefault(node, now) >= self._settings.removed_node_s

    async def _remove(self, node: str, handles: Collection[Handle], objects: Collection[_LeftObject]) -> None:
        for workload in handles:
            if workload.exit is None:  # the cluster has not given its pod up yet
                continue
            log.warning("the node %s was removed from the cluster; the pod of %s is removed too", node, workload.key)
            with suppress(BackendError):
                await self._release(workload)
        for kind, kube_object in objects:
            name = kube_object.metadata.name
            if kube_object.metadata.deletion_timestamp:
                continue
            log.warning("the node %s was removed from the cluster; the %s %s is removed too", node, kind.kind, name)
            with suppress(ObjectConflict):  # it is another one by now
                await self._api.delete(kind, name, self._settings.namespace, uid=kube_object.metadata.uid)
