"""Keeps copies of the cluster's objects for the controllers. A copy is never older than the controllers' own writes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Generic

from ai.backend.kubeacc.crd.objects import (
    ACCELERATORS,
    CLASSES,
    OPERATIONS,
    POLICIES,
    Accelerator,
    AcceleratorClass,
    AcceleratorOperation,
    AcceleratorPolicy,
)
from ai.backend.node.kube_api.client import KubeApi
from ai.backend.node.kube_api.objects import KubeObject, Node, ResourceClaim
from ai.backend.node.kube_api.reflector import Reflector
from ai.backend.node.kube_api.resources import NAMESPACES, NODES, RESOURCE_CLAIMS, ObjectT, Resource

Listener = Callable[[Any, Any], None]
"""Called with an object before and after a change."""


class Mirror(Generic[ObjectT]):
    """Keeps copies of all objects of one resource, from a watch and from the controllers' own writes.

    A step thus never acts on the state before its last write.
    Versions of one object are compared as numbers (KEP-5504).
    """

    def __init__(self, api: KubeApi, resource: Resource[ObjectT], *, keeps_last: bool = True) -> None:
        self._written: dict[tuple[str, str], ObjectT] = {}
        self._listeners: list[Listener] = []
        self.reflector = Reflector(api, resource, on_change=self._on_change, keeps_last=keeps_last)

    def subscribe(self, listener: Listener) -> None:
        self._listeners.append(listener)

    def _on_change(self, before: ObjectT | None, after: ObjectT | None) -> None:
        key = (after or before).key  # type: ignore[union-attr]  # one of the two is there
        written_object = self._written.get(key)
        if written_object is not None and (after is None or _version(after) >= _version(written_object)):
            del self._written[key]
        for listener in self._listeners:
            listener(before, after)

    def record(self, written_object: ObjectT) -> None:
        """Remembers the object that a write returned, until the watch has delivered the same version."""
        mirrored_object = self.reflector.get(*reversed(written_object.key))
        if mirrored_object is not None and _version(mirrored_object) < _version(written_object):
            self._written[written_object.key] = written_object

    def get(self, name: str, namespace: str = "") -> ObjectT | None:
        return self._written.get((namespace, name)) or self.reflector.get(name, namespace)

    def all(self) -> list[ObjectT]:
        return [self._written.get(key, obj) for key, obj in self.reflector.objects.items()]


def _version(obj: KubeObject) -> int:
    return int(obj.metadata.resource_version or 0)


class ClusterView:
    """Holds copies of all objects that the controllers read.

    An object that cannot be decoded (see Reflector) gives no permission and frees nothing: a class or a policy is
    absent, so nothing is allowed by it, while devices keep the class that they have; devices, operations, claims, nodes
    and namespaces stay as they were. A lock is only removed once the API server has answered that its operation is
    gone, and operations that cannot be decoded count for the quotas of their namespace."""

    def __init__(self, api: KubeApi) -> None:
        self.accelerators: Mirror[Accelerator] = Mirror(api, ACCELERATORS)
        self.classes: Mirror[AcceleratorClass] = Mirror(api, CLASSES, keeps_last=False)
        self.policies: Mirror[AcceleratorPolicy] = Mirror(api, POLICIES, keeps_last=False)
        self.operations: Mirror[AcceleratorOperation] = Mirror(api, OPERATIONS)
        self.namespaces: Mirror[KubeObject] = Mirror(api, NAMESPACES)
        self.nodes: Mirror[Node] = Mirror(api, NODES)
        self.claims: Mirror[ResourceClaim] = Mirror(api, RESOURCE_CLAIMS)

    @property
    def mirrors(self) -> tuple[Mirror[Any], ...]:
        rule_mirrors = (self.classes, self.policies)
        return (*rule_mirrors, self.accelerators, self.operations, self.namespaces, self.nodes, self.claims)

    async def run(self) -> None:
        """Keeps all copies current until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for mirror in self.mirrors:
                tasks.create_task(mirror.reflector.run())

    async def wait_until_synced(self) -> None:
        for mirror in self.mirrors:
            await mirror.reflector.synced.wait()
