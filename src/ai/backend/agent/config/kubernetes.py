"""The table ``[kubernetes]`` of agent.toml: an agent process that speaks for the nodes of a cluster (a shard)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, field_validator

from ai.backend.infra.settings import Settings

_LABEL = r"^([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$"
_EXTENDED = r"^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$"
_NAME = r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"
_ATTRIBUTE = r"^[A-Za-z_][A-Za-z0-9_]{0,31}$"
CountedResource = Annotated[str, Field(pattern=_EXTENDED)]
Label = Annotated[str, Field(pattern=_LABEL)]
Attribute = Annotated[str, Field(pattern=_ATTRIBUTE)]
_DEVICE_NAME = re.compile(r"[a-z][a-z0-9_-]*")


class DriverSettings(Settings):
    """The names of the devices of a driver of the cluster, `[kubernetes.drivers."gpu.example.com"]`."""

    device_name: str = Field("", max_length=32, description="Name of the device; default: the driver's, with hyphens.")
    slot: str = Field("", max_length=64, description="Slot of one device; default: `DEVICE-NAME.device`.")
    id_attribute: Attribute = Field("uuid", description="Attribute that names one device for ever.")
    model_attribute: Attribute = Field("productName", description="Attribute with the model.")
    numa_attribute: Attribute = Field("numaNode", description="Attribute with the NUMA node.")
    link_attribute: Attribute = Field(
        "linkGroup", description="Attribute of which devices with the same value have a vendor's own link."
    )
    memory_capacity: Attribute = Field("memory", description="Capacity that is the device's memory.")

    @field_validator("device_name")
    @classmethod
    def _check_device_name(cls, name: str) -> str:
        return _checked_device_name(name)


def _checked_device_name(name: str) -> str:
    if name and _DEVICE_NAME.fullmatch(name) is None:
        raise ValueError("lower-case letters, digits, hyphens and underscores, with a letter first")
    return name


class CountedSettings(Settings):
    """The names of what a device plugin offers by number, `[kubernetes.counted."nvidia.com/gpu"]`."""

    device_name: str = Field(
        "", max_length=32, description="Name of the device; default: the resource's, with hyphens."
    )
    slot: str = Field("", max_length=64, description="Slot of one device; default: `DEVICE-NAME.device`.")
    model_label: str = Field(
        "",
        pattern=r"^$|" + _LABEL,
        description="Label of nodes with the model; default: the resource's name with `.product`.",
    )

    @field_validator("device_name")
    @classmethod
    def _check_device_name(cls, name: str) -> str:
        return _checked_device_name(name)


class KubernetesSettings(Settings):
    """The table ``[kubernetes]``: which cluster, which of its nodes, and what of them sessions get."""

    cluster: str = Field(
        "kubernetes",
        pattern=_NAME,
        max_length=24,
        description="Name of the cluster: its nodes are the agents `CLUSTER.NODE`. The managers must allow this agent's"
        " key for `CLUSTER.*`, or `CLUSTER.*@NAME` where several shards serve one cluster.",
    )
    kubeconfig: Path | None = Field(None, description="How to reach the cluster; unset: as the pod that this runs in.")
    context: str = Field("", description="Context of the kubeconfig; default: its current one.")
    shard: str = Field("", pattern=r"^$|" + _NAME, description="Name of this shard, where there are several.")
    namespace: str = Field("backendai", pattern=_NAME, description="Namespace of the Lease.")
    identity: str = Field("", description="Name of this process in the Lease; default: that of the host or pod.")
    node_selector: str = Field(
        "", description="Label selector of the nodes of this shard, as `backend.ai/shard=a`; default: all."
    )
    pool: Literal["dedicated", "shared"] = Field(
        "dedicated",
        description="`dedicated`: nodes with the taint alone, sessions get what daemons of the cluster leave. `shared`:"
        " nodes without such a taint, sessions get what all other pods leave.",
    )
    taint_key: Label = Field("backend.ai/dedicated", description="Taint of dedicated nodes.")
    location_labels: tuple[Label, ...] = Field(
        ("topology.kubernetes.io/zone", "topology.kubernetes.io/rack"),
        max_length=8,
        description="Labels of a node that name the places that it is in, the widest first.",
    )
    resource_group_label: Label = Field(
        "backend.ai/resource-group", description="Label with a node's resource group; default: `agent.resource-group`."
    )
    drivers: dict[str, DriverSettings] = Field(
        default_factory=dict,
        description="Drivers whose devices (ResourceSlices) sessions get; of others, none.",
    )
    counted: dict[CountedResource, CountedSettings] = Field(
        default_factory=dict,
        description="Resources of device plugins that sessions get by number, as `nvidia.com/gpu`: the kubelet chooses"
        " the devices, so that requests for linked devices or for those of one NUMA node are refused there.",
    )

    @property
    def speaker(self) -> str:
        """The name of this process at the managers, to which its key must be bound."""
        return f"{self.cluster}.*@{self.shard}" if self.shard else f"{self.cluster}.*"

    @property
    def lease(self) -> str:
        return f"backendai-shard-{self.shard}" if self.shard else "backendai-shard"
