"""Derives the devices of a node from the ResourceSlices that drivers publish (KEP-4381), and from the numbers that
device plugins give."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal

from ai.backend.agent.config.kubernetes import CountedSettings, DriverSettings
from ai.backend.common.devices import ComputeDevice, DeviceHealth, DeviceLink, DeviceSlot, LinkKind
from ai.backend.common.errors import InvalidQuantity
from ai.backend.common.ids import DeviceId, DeviceName, SlotName
from ai.backend.common.states import SlotType
from ai.backend.node.kube_api.objects import Device, ResourceSlice
from ai.backend.node.kube_api.quantities import parse_quantity

PCIE_ROOT = "resource.kubernetes.io/pcieRoot"
"""The standard attribute of devices: their PCIe root complex."""
_MAX_ID = 64
_BLOCKING_EFFECTS = frozenset({"NoSchedule", "NoExecute"})


MAX_COUNTED = 1024
"""The most devices of one device plugin on a node."""


def device_name_of(driver: str, settings: DriverSettings | CountedSettings) -> DeviceName:
    name = settings.device_name or "".join(c if c.isalnum() else "-" for c in driver.lower()).strip("-")
    return DeviceName(name if name[:1].isalpha() else f"d-{name}")


def slot_of(driver: str, settings: DriverSettings | CountedSettings) -> SlotName:
    return SlotName(settings.slot or f"{device_name_of(driver, settings)}.device")


def complete_pools(slices: Iterable[ResourceSlice], driver: str) -> list[Device]:
    """Returns the devices of a driver's complete pools. Slices of an older generation, and pools that lack a slice, are
    left out.
    """
    pools: dict[str, list[ResourceSlice]] = {}
    for resource_slice in slices:
        if resource_slice.spec.driver == driver:
            pools.setdefault(resource_slice.spec.pool.name, []).append(resource_slice)
    devices: list[Device] = []
    for pool_slices in pools.values():
        generation = max(pool_slice.spec.pool.generation for pool_slice in pool_slices)
        newest_slices = [pool_slice for pool_slice in pool_slices if pool_slice.spec.pool.generation == generation]
        if len(newest_slices) >= newest_slices[0].spec.pool.resource_slice_count:
            devices += [device for pool_slice in newest_slices for device in pool_slice.spec.devices]
    return devices


def compute_devices(devices: Sequence[Device], driver: str, settings: DriverSettings) -> tuple[ComputeDevice, ...]:
    """Returns the devices of a node in the platform's form. A device without the attribute of its id is left out, since
    no claim could ask for it.
    """
    by_id: dict[str, Device] = {}
    for device in devices:
        value = _attribute(device, driver, settings.id_attribute)
        if isinstance(value, str) and 0 < len(value) <= _MAX_ID:
            by_id.setdefault(value, device)
    links = _links(by_id, driver, settings)
    name, slot = device_name_of(driver, settings), slot_of(driver, settings)
    result = []
    for device_id, device in sorted(by_id.items()):
        taint = next((taint for taint in device.taints if taint.effect in _BLOCKING_EFFECTS), None)
        numa_node = _attribute(device, driver, settings.numa_attribute)
        model = _attribute(device, driver, settings.model_attribute)
        result.append(
            ComputeDevice(
                device_name=name,
                device_id=DeviceId(device_id),
                hw_location=str(_attribute(device, driver, PCIE_ROOT) or device.name),
                slots=(DeviceSlot(slot_name=slot, slot_type=SlotType.COUNT, amount=Decimal(1)),),
                numa_node=numa_node if isinstance(numa_node, int) and 0 <= numa_node < 1024 else None,
                memory_size=_memory(device, driver, settings),
                processing_units=0,
                model_name=str(model)[:128] if model is not None else None,
                health=DeviceHealth.UNHEALTHY if taint is not None else DeviceHealth.HEALTHY,
                health_reason=f"taint {taint.key}={taint.value}:{taint.effect}"[:500] if taint is not None else "",
                links=links.get(device_id, ()),
            )
        )
    return tuple(result)


def numbered_devices(
    amount: int, resource: str, settings: CountedSettings, model: str | None
) -> tuple[ComputeDevice, ...]:
    """Returns ``amount`` anonymous devices of a device plugin, named ``any-0`` and so on, since the kubelet chooses the
    real ones.

    They have no links and no NUMA node, so that nothing can be planned that the kubelet would not keep.
    """
    name, slot = device_name_of(resource, settings), slot_of(resource, settings)
    return tuple(
        ComputeDevice(
            device_name=name,
            device_id=DeviceId(f"any-{number}"),
            hw_location="chosen by the kubelet",
            slots=(DeviceSlot(slot_name=slot, slot_type=SlotType.COUNT, amount=Decimal(1)),),
            model_name=model[:128] if model else None,
        )
        for number in range(min(amount, MAX_COUNTED))
    )


def _attribute(device: Device, driver: str, name: str) -> str | int | bool | None:
    """Returns the value of a device's attribute by its name, which may omit the driver's domain.

    Returns None if the device has no such attribute.
    """
    names = (name,) if "/" in name else (name, f"{driver}/{name}")
    attribute = next((device.attributes[key] for key in names if key in device.attributes), None)
    value: str | int | bool | None = attribute.value if attribute is not None else None
    return value


def _memory(device: Device, driver: str, settings: DriverSettings) -> int:
    names = (settings.memory_capacity, f"{driver}/{settings.memory_capacity}")
    capacity = next((device.capacity[key] for key in names if key in device.capacity), None)
    try:
        return max(0, int(parse_quantity(capacity.value))) if capacity is not None else 0
    except InvalidQuantity:
        return 0


def _links(devices: Mapping[str, Device], driver: str, settings: DriverSettings) -> dict[str, tuple[DeviceLink, ...]]:
    """Returns the links of each device: direct links within one link group, and PCIe links below one PCIe root."""
    links: dict[str, tuple[DeviceLink, ...]] = {}
    link_group_of_device = {
        device_id: _attribute(device, driver, settings.link_attribute) for device_id, device in devices.items()
    }
    pcie_root_of_device = {device_id: _attribute(device, driver, PCIE_ROOT) for device_id, device in devices.items()}
    for device_id in devices:
        device_links: list[DeviceLink] = []
        for peer in devices:
            if peer == device_id:
                continue
            if (
                link_group_of_device[device_id] is not None
                and link_group_of_device[device_id] == link_group_of_device[peer]
            ):
                device_links.append(DeviceLink(peer=DeviceId(peer), kind=LinkKind.DIRECT))
            elif (
                pcie_root_of_device[device_id] is not None
                and pcie_root_of_device[device_id] == pcie_root_of_device[peer]
            ):
                device_links.append(DeviceLink(peer=DeviceId(peer), kind=LinkKind.PCIE_ROOT))
        links[device_id] = tuple(device_links)
    return links
