"""Publishes the devices that claims may select, as the ResourceSlices of this node's pool."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ai.backend.common.devices import ComputeDevice, DeviceHealth
from ai.backend.infra.loop import PeriodicLoop
from ai.backend.kubeacc.crd.vocabulary import GROUP, NODE_MANAGER
from ai.backend.kubeacc.node_plugin.devices import DeviceKey, DeviceTracker
from ai.backend.kubeacc.node_plugin.places import pci_address, pci_location_of
from ai.backend.kubeacc.node_plugin.settings import NodePluginSettings
from ai.backend.kubeacc.node_plugin.slices import (
    OfferedDevice,
    SliceFeatures,
    kept_features,
    probe_devices,
    slice_specs,
    taint_value,
)
from ai.backend.node.kube_api.client import KubeApi
from ai.backend.node.kube_api.objects import ResourceSlice, ResourceSliceSpec
from ai.backend.node.kube_api.reflector import Reflector
from ai.backend.node.kube_api.resources import NODES, RESOURCE_SLICES

log = logging.getLogger(__name__)
_PROBE_S = 3600.0
"""The seconds between two probes of the cluster's features, which an upgrade of the cluster changes."""
UNHEALTHY_TAINT = f"{GROUP}/unhealthy"
WITHHELD_TAINT = f"{GROUP}/withheld"
_PCI_BUS_ID = "resource.kubernetes.io/pciBusID"


class SlicePublication(PeriodicLoop):
    """Writes the slices when devices or taints change, and when somebody has removed or changed a slice. The kubelet
    does so when it starts. A slice that is as it should be is not written.

    ``withheld_reason`` returns why nobody may have a device now, empty if anybody may; ``foreign_offer`` the resource
    by which somebody else offers it, so that we do not; ``detached_devices`` the devices that a plugin can attach.
    """

    period_s = 300.0

    def __init__(
        self,
        api: KubeApi,
        tracker: DeviceTracker,
        settings: NodePluginSettings,
        node: str,
        *,
        withheld_reason: Callable[[DeviceKey], str] = lambda key: "",
        foreign_offer: Callable[[DeviceKey], str] = lambda key: "",
        detached_devices: Callable[[str], Sequence[ComputeDevice]] = lambda key: (),
    ) -> None:
        self._api, self._tracker, self._settings, self._node = api, tracker, settings, node
        self._withheld, self._foreign, self._detached = withheld_reason, foreign_offer, detached_devices
        self._features = SliceFeatures()
        self._probed_at = float("-inf")
        self._generation = 0
        self._written = ""
        self._versions: dict[str, str] = {}
        self._owner: list[dict[str, Any]] | None = None
        self._others: dict[str, str] = {}
        self.changed: Callable[[], None] = lambda: None
        """Called when another DRA driver offers other devices."""
        self.reflector = Reflector(
            api,
            RESOURCE_SLICES,
            field_selector=f"spec.nodeName={node}",
            on_change=self._on_change,
        )
        tracker.subscribe(self.wake)

    def _on_change(self, before: ResourceSlice | None, after: ResourceSlice | None) -> None:
        for slice_version in (before, after):
            if slice_version is not None and slice_version.spec.driver != self._settings.driver_name:
                self._record_other_drivers()
                return
        name = (after or before).metadata.name  # type: ignore[union-attr]  # one of the two is there
        if after is None and name in self._versions:
            log.info("somebody has removed the slice %s: it is written anew", name)
            self._written = ""
            self.wake()

    def _record_other_drivers(self) -> None:
        """Records which devices other DRA drivers offer on this node."""
        slices = list(self.reflector.objects.values())
        other_drivers = devices_of_drivers(
            device_slice.spec for device_slice in slices if device_slice.spec.driver != self._settings.driver_name
        )
        if other_drivers != self._others:
            self._others = other_drivers
            self.wake()
            self.changed()

    def other_driver(self, key: DeviceKey) -> str:
        """Returns the foreign DRA driver that also offers a kube-acc device. Empty if there is none."""
        plugin_key, device_id = key
        if not self._others:
            return ""
        location = next(
            (device.hw_location for device in self._tracker.devices(plugin_key) if device.device_id == device_id), ""
        )
        return self._others.get(device_id) or self._others.get(pci_address(location), "")

    async def watch(self) -> None:
        """Watches the slices of this node until cancelled."""
        await self.reflector.run()

    def offered_devices(self) -> list[OfferedDevice]:
        """Returns the devices that claims may select, with their taints."""
        attached_devices = [
            OfferedDevice(
                plugin=key,
                type=self._settings.offer_of(key).type.value,
                device=device,
                taints=self._taints((key, device.device_id), device.health, device.health_reason),
                is_shared=self._settings.offer_of(key).shares,
                pcie_root=pci_location_of(device.hw_location).root,
            )
            for key in self._tracker.plugin_keys()
            if self._settings.offer_of(key).by == "dra"
            for device in self._tracker.devices(key)
            if not self._foreign((key, device.device_id)) and not self.other_driver((key, device.device_id))
        ]
        return attached_devices + [
            OfferedDevice(
                plugin=key,
                type=self._settings.offer_of(key).type.value,
                device=device,
                taints=self._taints((key, device.device_id), device.health, device.health_reason),
                is_detached=True,
            )
            for key in self._keys_to_attach()
            for device in self._detached(key)
        ]

    def _keys_to_attach(self) -> list[str]:
        offer_of_plugin = {key: self._settings.offer_of(key) for key in self._tracker.plugin_keys()}
        return [key for key, offer in offer_of_plugin.items() if offer.by == "dra" and offer.attach]

    async def _probe_features(self) -> None:
        """Detects the parts of a ResourceSlice that the cluster keeps, by means of a slice of probe devices.

        If the cluster drops a part that withholds a device, a pod would get a device that has failed or is not there.
        """
        now = asyncio.get_running_loop().time()
        if now - self._probed_at < _PROBE_S:
            return
        name = f"{self._node}-probe"[-253:]
        pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
        spec = {
            "driver": self._settings.driver_name,
            "nodeName": self._node,
            "pool": pool,
            "devices": probe_devices(),
        }
        kept_slice = await self._api.create(RESOURCE_SLICES, {"metadata": {"name": name}, "spec": spec}, dry_run=True)
        features = kept_features(kept_slice.spec.devices)
        if features != self._features:
            log.warning("the cluster does not keep all of a slice; what it keeps: %s", features)
        self._features, self._probed_at = features, now

    def _taints(self, key: DeviceKey, health: DeviceHealth, reason: str) -> tuple[tuple[str, str, str], ...]:
        taints = []
        if health is not DeviceHealth.HEALTHY:
            taints.append((UNHEALTHY_TAINT, self._settings.failed_device_effect, taint_value(reason)))
        if withheld_reason := self._withheld(key):
            taints.append((WITHHELD_TAINT, "NoSchedule", taint_value(withheld_reason)))
        return tuple(taints)

    async def once(self) -> None:
        if not self._tracker.is_complete.is_set():
            return
        await self.reflector.synced.wait()
        await self._probe_features()
        offered_devices = self.offered_devices()
        driver = self._settings.driver_name
        spec_options: dict[str, Any] = {"driver": driver, "node": self._node, "features": self._features}
        encoded_specs = json.dumps(slice_specs(offered_devices, generation=0, **spec_options), sort_keys=True)
        if encoded_specs == self._written:
            return
        slices = self.reflector.objects.values()
        present_slices = {slice_.metadata.name: slice_ for slice_ in slices if slice_.spec.driver == driver}
        newest_generation = max((slice_.spec.pool.generation for slice_ in present_slices.values()), default=0)
        self._generation = max(self._generation, newest_generation) + 1
        specs = slice_specs(offered_devices, generation=self._generation, **spec_options)
        await self._write_slices(specs, {*present_slices, *self._versions})
        self._written = encoded_specs

    async def _write_slices(self, specs: Sequence[dict[str, Any]], present_names: set[str]) -> None:
        if self._owner is None:
            node = await self._api.get(NODES, self._node)
            reference = {"apiVersion": "v1", "kind": "Node", "name": self._node, "uid": node.metadata.uid}
            self._owner = [{**reference, "controller": True}]
        names = [f"{self._node}-{self._settings.driver_name}-{number}"[-253:] for number in range(len(specs))]

        async def write_slice(name: str, spec: dict[str, Any]) -> None:
            body = {"metadata": {"ownerReferences": self._owner}, "spec": spec}
            written_slice = await self._api.apply(RESOURCE_SLICES, name, body, manager=NODE_MANAGER, force=True)
            self._versions[name] = written_slice.metadata.resource_version

        await asyncio.gather(*(write_slice(name, spec) for name, spec in zip(names, specs, strict=True)))
        for name in present_names - set(names):
            self._versions.pop(name, None)
            await self._api.delete(RESOURCE_SLICES, name)


def devices_of_drivers(specs: Iterable[ResourceSliceSpec]) -> dict[str, str]:
    """Returns the DRA driver for each PCI address and each ``uuid`` of a device in the slices of any driver."""
    driver_of_device: dict[str, str] = {}
    for spec in specs:
        for device in spec.devices:
            location, uuid = device.attributes.get(_PCI_BUS_ID), device.attributes.get("uuid")
            if location is not None and location.string and (address := pci_address(location.string)):
                driver_of_device[address] = spec.driver
            if uuid is not None and uuid.string:
                driver_of_device[uuid.string] = spec.driver
    return driver_of_device
