"""Derives what an agent reports of a node from the objects of the cluster. Pure functions."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal

import msgspec

from ai.backend.agent.config.kubernetes import KubernetesSettings
from ai.backend.agent.shard.devices import complete_pools, compute_devices, numbered_devices
from ai.backend.common.devices import ComputeDevice
from ai.backend.common.errors import InvalidQuantity
from ai.backend.common.images import architecture_name
from ai.backend.node.kube_api.objects import Container, Node, PodSpec, ResourceList, ResourceSlice
from ai.backend.node.kube_api.quantities import parse_quantity

_MAX_AGENT_ID = 64
_MIB = 1024 * 1024
_NOT_IN_ID = re.compile(r"[^A-Za-z0-9.-]|\.{2,}|^[.-]|[.-]$")
_CLOSING_EFFECTS = frozenset({"NoSchedule", "NoExecute"})
_UNREACHABLE_TAINTS = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")


class Requests(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the sum of the resources that the pods of others on a node request."""

    cpu: Decimal = Decimal(0)
    memory: Decimal = Decimal(0)
    pods: int = 0
    counted: Mapping[str, Decimal] = msgspec.field(default_factory=dict)
    """The number of devices by resource name, for resources that device plugins count."""

    def plus(self, other_requests: Requests, sign: int = 1) -> Requests:
        names = {*self.counted, *other_requests.counted}
        summed_amounts = {
            name: self.counted.get(name, 0) + sign * other_requests.counted.get(name, Decimal(0)) for name in names
        }
        return Requests(
            cpu=self.cpu + sign * other_requests.cpu,
            memory=self.memory + sign * other_requests.memory,
            pods=self.pods + sign * other_requests.pods,
            counted={name: amount for name, amount in summed_amounts.items() if amount},
        )


class NodeFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Describes a node of the cluster as the shard reports it to the manager.

    ``uid`` is the cluster's: another node of the same name is another agent's life. ``closed`` says why the node takes
    nothing new, ``lost`` why it does not answer; both are empty for a node in order. ``devices`` are by driver,
    or by the resource of a device plugin.
    """

    name: str
    uid: str
    agent_id: str
    architecture: str
    address: str = ""
    cores: int = 0
    memory_bytes: int = 0
    pods: int = 0
    location: tuple[str, ...] = ()
    resource_group: str = ""
    closed: str = ""
    lost: str = ""
    devices: Mapping[str, tuple[ComputeDevice, ...]] = msgspec.field(default_factory=dict)


def agent_id_of(cluster: str, node: str) -> str:
    """Returns the id of a node's agent, ``CLUSTER.NODE``; of a long name, its beginning and a digest of it."""
    agent_id = f"{cluster}.{node}"
    if len(agent_id) <= _MAX_AGENT_ID and not _NOT_IN_ID.search(node):
        return agent_id
    digest = hashlib.blake2b(node.encode(), digest_size=6).hexdigest()
    return f"{_NOT_IN_ID.sub('', agent_id)[: _MAX_AGENT_ID - len(digest) - 1].rstrip('.-')}-{digest}"


def is_served(node: Node, settings: KubernetesSettings) -> bool:
    """Returns True if a node belongs to the shard's pool, by its taints.

    The nodes of a dedicated pool have the pool's taint, those of a shared pool have not.
    """
    is_dedicated = any(taint.key == settings.taint_key for taint in node.spec.taints)
    return is_dedicated == (settings.pool == "dedicated")


def requests_of(spec: PodSpec) -> Requests:
    """Returns the resources that the Kubernetes scheduler counts for a pod, over all its containers.

    They are the maximum over its start and its run, plus its overhead.
    """
    cpu = _effective(spec, "cpu")
    memory = _effective(spec, "memory")
    containers = (*spec.init_containers, *spec.containers)
    names = {name for container in containers for name in container.resources.requests if "/" in name}
    return Requests(cpu=cpu, memory=memory, pods=1, counted={name: _effective(spec, name) for name in names})


def _effective(spec: PodSpec, name: str) -> Decimal:
    """Returns the amount of one resource that the Kubernetes scheduler counts for a pod.

    Sidecars count while other containers start, and with the containers (KEP-753).
    """
    sidecar_amount = peak_amount = Decimal(0)
    for container in spec.init_containers:
        amount = _request(container, name)
        if container.restart_policy == "Always":
            sidecar_amount += amount
            peak_amount = max(peak_amount, sidecar_amount)
        else:
            peak_amount = max(peak_amount, sidecar_amount + amount)
    running_amount = sum((_request(container, name) for container in spec.containers), sidecar_amount)
    pod_requests = spec.resources.requests if spec.resources is not None else {}
    amount = _amount(pod_requests, name) if name in pod_requests else max(peak_amount, running_amount)
    return amount + _amount(spec.overhead, name)


def _request(container: Container, name: str) -> Decimal:
    return _amount(container.resources.requests, name)


def _amount(resources: ResourceList, name: str) -> Decimal:
    try:
        return max(Decimal(0), parse_quantity(resources[name])) if name in resources else Decimal(0)
    except InvalidQuantity:
        return Decimal(0)


def facts_of(
    node: Node,
    slices: Iterable[ResourceSlice],
    other_requests: Requests,
    settings: KubernetesSettings,
    resource_group: str,
) -> NodeFacts:
    """Returns the facts of a node.

    Args:
        slices: those of this node.
        other_requests: what pods ask for that are not sessions of this installation.
        resource_group: of nodes without the label.
    """
    labels, status = node.metadata.labels, node.status
    listed_slices = tuple(slices)
    location_values = [labels[label] for label in settings.location_labels if labels.get(label)]
    return NodeFacts(
        name=node.metadata.name,
        uid=node.metadata.uid,
        agent_id=agent_id_of(settings.cluster, node.metadata.name),
        architecture=architecture_name(status.node_info.architecture or "amd64"),
        address=next((address.address for address in status.addresses if address.type == "InternalIP"), ""),
        cores=int(max(Decimal(0), _amount(status.allocatable, "cpu") - other_requests.cpu)),
        memory_bytes=int(max(Decimal(0), _amount(status.allocatable, "memory") - other_requests.memory)) // _MIB * _MIB,
        pods=int(max(Decimal(0), _amount(status.allocatable, "pods") - other_requests.pods)),
        location=tuple(location_value[:64] for location_value in (settings.cluster, *location_values)),
        resource_group=labels.get(settings.resource_group_label) or resource_group,
        closed=_closed(node, settings),
        lost=_lost(node),
        devices=devices_of(listed_slices, settings) | counted_devices(node, other_requests, settings),
    )


def devices_of(slices: Sequence[ResourceSlice], settings: KubernetesSettings) -> dict[str, tuple[ComputeDevice, ...]]:
    """Returns the devices by configured driver, without drivers that have no device on the node."""
    devices = {
        driver: compute_devices(complete_pools(slices, driver), driver, driver_settings)
        for driver, driver_settings in settings.drivers.items()
    }
    return {driver: driver_devices for driver, driver_devices in devices.items() if driver_devices}


def counted_devices(
    node: Node, other_requests: Requests, settings: KubernetesSettings
) -> dict[str, tuple[ComputeDevice, ...]]:
    """Returns by resource the devices that device plugins count on a node, without those that other pods have."""
    devices: dict[str, tuple[ComputeDevice, ...]] = {}
    for resource, counted_settings in settings.counted.items():
        amount = _amount(node.status.allocatable, resource) - other_requests.counted.get(resource, Decimal(0))
        model = node.metadata.labels.get(counted_settings.model_label or f"{resource}.product")
        if devices_of_resource := numbered_devices(int(max(Decimal(0), amount)), resource, counted_settings, model):
            devices[resource] = devices_of_resource
    return devices


def _closed(node: Node, settings: KubernetesSettings) -> str:
    if node.metadata.deletion_timestamp:
        return "the node is being removed"
    if node.spec.unschedulable:
        return "the node is cordoned"
    for taint in node.spec.taints:
        if taint.effect in _CLOSING_EFFECTS and taint.key not in (settings.taint_key, *_UNREACHABLE_TAINTS):
            return f"the node has the taint {taint.key}={taint.value}:{taint.effect}"
    return ""


def _lost(node: Node) -> str:
    ready_condition = next((condition for condition in node.status.conditions if condition.type == "Ready"), None)
    if ready_condition is None:
        return "its kubelet has not reported yet"
    return (
        ""
        if ready_condition.status == "True"
        else f"the node is not ready: {ready_condition.reason or ready_condition.status}"
    )
