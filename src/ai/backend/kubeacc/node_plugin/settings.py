"""Settings of the plugin of kube-acc on a node: ``kube-acc-node.toml``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator

from ai.backend.infra.settings.tables import Address, LoggingSettings
from ai.backend.kubeacc.crd.vocabulary import GROUP, AcceleratorType
from ai.backend.kubeacc.drivers.artifact_settings import ArtifactSettings
from ai.backend.plugin.settings import Settings

_DOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_MAX_DRIVER = 63


class OfferSettings(Settings):
    """The table ``[offers.PLUGIN]``: how the devices of one accelerator plugin come to pods."""

    by: Literal["dra", "device-plugin", "none"] = Field(
        "dra",
        description="dra: by resource claims. device-plugin: by the extended resource `resource`. none: kube-acc"
        " reports the devices, and nobody gets them from it. Only one of them, so no device has two ways to a pod.",
    )
    resource: str = Field("", description="Name of the extended resource; default: backend.ai/PLUGIN.")
    shares: bool = Field(
        False,
        description="With dra: several claims share a device that its plugin can divide, each with the capacity that it"
        " asks for; a claim that asks for none gets the whole device.",
    )
    attach: bool = Field(
        False,
        description="With dra: offer also devices that the plugin can attach; the scheduler waits until that is done."
        " Needs binding conditions (on from Kubernetes 1.36) and the controllers of kube-acc.",
    )
    type: AcceleratorType = Field(AcceleratorType.OTHER, description="The type of the Accelerator objects.")

    @field_validator("resource")
    @classmethod
    def _check_resource(cls, name: str) -> str:
        domain, slash, resource_name = name.partition("/")
        if name and (not slash or not _DOMAIN.fullmatch(domain) or not re.fullmatch(r"[\w.-]{1,63}", resource_name)):
            raise ValueError("write domain/name, as backend.ai/gpu")
        return name


class NodePluginSettings(Settings):
    """Everything that the plugin of a node needs besides the cluster's address."""

    node_name: str = Field("", description="The node's name in the cluster; default: the variable NODE_NAME.")
    driver_name: str = Field(GROUP, description="Name of the DRA driver; claims select devices by it.")
    kubelet_directory: Path = Field(Path("/var/lib/kubelet"), description="Where the kubelet's sockets are.")
    cdi_directory: Path = Field(Path("/var/run/cdi"), description="Where the container engine reads CDI files.")
    state_directory: Path = Field(
        Path("/var/lib/kube-acc"), description="What must survive a restart: the devices that workloads hold."
    )
    image_directory: Path = Field(
        Path("/var/lib/kube-acc/images"), description="Images of file:///, by which operations program devices."
    )
    artifacts: ArtifactSettings = Field(
        ArtifactSettings(), description="Images of https and oci, by which operations program devices."
    )
    compute_plugins: tuple[str, ...] = Field(
        (), description="Accelerator plugins as in agent.toml: entry points, package paths or executables."
    )
    in_process_plugins: tuple[str, ...] = Field(
        ("ai.backend.accelerator.mock",),
        description="Plugins that run in this process; each other one has a host process.",
    )
    plugin_environment: tuple[str, ...] = Field(
        ("AMD_*", "CUDA_*", "HABANA_*", "HIP_*", "HSA_*", "NVIDIA_*", "ROCM_*", "ROCR_*", "TPU_*"),
        description="Environment variables that host processes of plugins get.",
    )
    plugin_timeout: float = Field(25.0, gt=0, description="For one call of a plugin; the kubelet waits 45 s for all.")
    discovery_interval: float = Field(10.0, gt=0, description="Between two lists of the devices.")
    failed_device_effect: Literal["NoExecute", "NoSchedule"] = Field(
        "NoExecute", description="NoExecute ends the pods that hold a failed device, NoSchedule lets them be."
    )
    metrics_address: Address | None = Field(
        None, description="Address for /metrics (Prometheus), /livez and /readyz, as 0.0.0.0:9410; default: none."
    )
    offers: dict[str, OfferSettings] = Field(default_factory=dict, description="By the device name of the plugin.")
    plugins: dict[str, dict[str, Any]] = Field(default_factory=dict, description="The plugins' own settings.")
    logging: LoggingSettings = Field(LoggingSettings(), description="Of the daemon itself.")

    @field_validator("offers")
    @classmethod
    def _check_resources(cls, offers: dict[str, OfferSettings]) -> dict[str, OfferSettings]:
        """Refuses a resource that two plugins offer: the kubelet accepts one device plugin for each resource."""
        owners: dict[str, str] = {}
        for key, offer in offers.items():
            name = offer.resource or f"backend.ai/{key}"
            if offer.by == "device-plugin" and owners.setdefault(name, key) != key:
                raise ValueError(f"the plugins {owners[name]} and {key} have the same resource {name}")
        return offers

    @field_validator("driver_name")
    @classmethod
    def _check_driver(cls, name: str) -> str:
        if len(name) > _MAX_DRIVER or not _DOMAIN.fullmatch(name):
            raise ValueError(f"a driver's name is a domain of at most {_MAX_DRIVER} characters")
        return name

    def offer_of(self, plugin_key: str) -> OfferSettings:
        """Returns how the devices of a plugin are offered, which is by claims if the settings do not say."""
        return self.offers.get(plugin_key, OfferSettings())

    def resource_of(self, plugin_key: str) -> str:
        """Returns the extended resource of a plugin's devices."""
        return self.offer_of(plugin_key).resource or f"backend.ai/{plugin_key}"
