"""Removes what sessions have left on nodes that were removed from the cluster and do not return.

The agent of such a node has ended with it, and the manager has given its sessions up. Their pods keep our finalizer,
and their homes are claims of a node to which no pod can be bound any more.
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
from ai.backend.node.kube_api.resources import NODES, VOLUME_CLAIMS
from ai.backend.runtime.kubernetes.handles import Handle, Handles
from ai.backend.runtime.kubernetes.homes import NODE_ANNOTATION
from ai.backend.runtime.kubernetes.records import INSTANCE_LABEL
from ai.backend.runtime.kubernetes.settings import KubernetesRuntimeSettings

log = logging.getLogger(__name__)


class RemovedNodes:
    """Finds the nodes that are gone, and removes pods and homes once ``removed_node_s`` have passed since.

    A node counts from the first round in which this process misses it, so an agent that starts anew waits anew.

    Args:
        served: returns the nodes whose agents run here, which look after their sessions themselves.
        release: removes the record of a workload that has ended.
        clock: seconds that never go back.
    """

    def __init__(
        self,
        api: KubeApi,
        settings: KubernetesRuntimeSettings,
        handles: Handles,
        *,
        served: Callable[[], Collection[str]],
        release: Callable[[Handle], Awaitable[None]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api = api
        self._settings = settings
        self._handles = handles
        self._served = served
        self._release = release
        self._clock = clock
        self._missing_since: dict[str, float] = {}

    async def sweep(self) -> None:
        """Does one round. Raises BackendError if the cluster cannot be asked; the next round goes on."""
        pods: dict[str, list[Handle]] = {}
        homes: dict[str, list[KubeObject]] = {}
        for handle in self._handles:
            pods.setdefault(handle.record.node, []).append(handle)
        if self._settings.home_volume == "claim":
            for claim in await self._list_homes():
                homes.setdefault(claim.metadata.annotations.get(NODE_ANNOTATION, ""), []).append(claim)
        nodes = {node for node in {*pods, *homes} if node} - set(self._served())
        self._missing_since = {node: since for node, since in self._missing_since.items() if node in nodes}
        for node in sorted(nodes):
            if await self._is_over(node):
                await self._remove(node, pods.get(node, ()), homes.get(node, ()))

    async def _list_homes(self) -> list[KubeObject]:
        selector = f"{INSTANCE_LABEL}={self._settings.instance}"
        claims, _ = await self._api.list(VOLUME_CLAIMS, self._settings.namespace, label_selector=selector)
        return list(claims)

    async def _is_over(self, node: str) -> bool:
        """Returns True if a node has been missing for long enough."""
        if await self._api.find(NODES, node) is not None:
            self._missing_since.pop(node, None)
            return False
        now = self._clock()
        return now - self._missing_since.setdefault(node, now) >= self._settings.removed_node_s

    async def _remove(self, node: str, handles: Collection[Handle], homes: Collection[KubeObject]) -> None:
        for handle in handles:
            if handle.exit is None:  # the cluster has not given its pod up yet
                continue
            log.warning("the node %s was removed from the cluster; the pod of %s is removed too", node, handle.key)
            with suppress(BackendError):
                await self._release(handle)
        for claim in homes:
            name = claim.metadata.name
            if claim.metadata.deletion_timestamp:
                continue
            log.warning("the node %s was removed from the cluster; the home %s is removed too", node, name)
            with suppress(ObjectConflict):  # it is another one by now
                await self._api.delete(VOLUME_CLAIMS, name, self._settings.namespace, uid=claim.metadata.uid)
