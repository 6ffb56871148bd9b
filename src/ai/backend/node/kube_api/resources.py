"""Names the kinds of objects that the platform uses: their place in the API, and their projection."""

from __future__ import annotations

from typing import Generic, TypeVar

import msgspec

from ai.backend.node.kube_api.objects import (
    KubeObject,
    Lease,
    Node,
    Pod,
    ResourceClaim,
    ResourceSlice,
    RuntimeClass,
)

ObjectT = TypeVar("ObjectT", bound=KubeObject)


class Resource(msgspec.Struct, Generic[ObjectT], frozen=True):
    """Describes a kind of Kubernetes objects: its place in the API, and the type to which objects are decoded.

    ``group`` is empty for the core; ``plural`` is its name in paths; ``type`` what is decoded.
    """

    group: str
    version: str
    plural: str
    kind: str
    type: type[ObjectT]
    is_namespaced: bool = True

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def root(self) -> str:
        return f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"

    def __str__(self) -> str:
        return f"{self.plural}.{self.group}" if self.group else self.plural


PODS = Resource("", "v1", "pods", "Pod", Pod)
NODES = Resource("", "v1", "nodes", "Node", Node, is_namespaced=False)
NAMESPACES = Resource("", "v1", "namespaces", "Namespace", KubeObject, is_namespaced=False)
SECRETS = Resource("", "v1", "secrets", "Secret", KubeObject)
VOLUME_CLAIMS = Resource("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim", KubeObject)
LEASES = Resource("coordination.k8s.io", "v1", "leases", "Lease", Lease)
RESOURCE_SLICES = Resource("resource.k8s.io", "v1", "resourceslices", "ResourceSlice", ResourceSlice, False)
RESOURCE_CLAIMS = Resource("resource.k8s.io", "v1", "resourceclaims", "ResourceClaim", ResourceClaim)
NETWORK_POLICIES = Resource("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy", KubeObject)
RUNTIME_CLASSES = Resource("node.k8s.io", "v1", "runtimeclasses", "RuntimeClass", RuntimeClass, False)
