"""Builds the ResourceClaim of a workload's pod, so that the cluster gives the pod exactly the planned devices.

See KEP-4381 (DRA).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ai.backend.common.errors import CreationDenied
from ai.backend.plugin.accelerator import DeviceMapping

API_VERSION = "resource.k8s.io/v1"
_DRIVER_PATTERN = re.compile(r"^[a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?$")
_ATTRIBUTE_PATTERN = re.compile(r"^[A-Za-z_][A-Za-z0-9_]{0,31}$")
_COUNTED_PREFIX = "COUNTED."
MAX_DEVICES = 32
"""The most devices of one claim (API reference, ``DeviceRequestAllocationResult``)."""


def parse_device(device: DeviceMapping) -> tuple[str, str, str]:
    """Returns driver, attribute and value of a device's name ``DRIVER/ATTRIBUTE=VALUE``, as ``gpu.example/uuid=G1``.

    Raises CreationDenied for a device that has no such name: pods get no device nodes by path.
    """
    name = device.cdi_name or ""
    qualified_attribute, _, value = name.partition("=")
    driver, _, attribute = qualified_attribute.rpartition("/")
    if not (_DRIVER_PATTERN.match(driver) and _ATTRIBUTE_PATTERN.match(attribute) and 0 < len(value) <= 64):
        shown_name = name or device.source
        message = f"{shown_name!r} names no device that a driver of the cluster publishes (DRIVER/ATTRIBUTE=VALUE)"
        raise CreationDenied(message, data={"field": "devices", "key": device.cdi_name or device.target or shown_name})
    return driver, attribute, value


def counted_resources(devices: Sequence[DeviceMapping]) -> dict[str, str]:
    """Returns how many devices a pod requests of each resource of a device plugin.

    The resources come from device names ``COUNTED.RESOURCE=ID``.
    """
    count_by_resource: dict[str, int] = {}
    for device in devices:
        if is_counted(device):
            resource = (device.cdi_name or "").removeprefix(_COUNTED_PREFIX).partition("=")[0]
            count_by_resource[resource] = count_by_resource.get(resource, 0) + 1
    return {resource: str(count) for resource, count in count_by_resource.items()}


def is_counted(device: DeviceMapping) -> bool:
    """Returns True for a device that a pod requests by number only, so that the kubelet chooses the device itself.

    The name of such a device begins with capital letters. Names of drivers are of small letters.
    """
    return (device.cdi_name or "").startswith(_COUNTED_PREFIX)


def devices_for_claim(devices: Sequence[DeviceMapping]) -> list[DeviceMapping]:
    """Returns the devices that a ResourceClaim names."""
    return [device for device in devices if not is_counted(device)]


def compose_claim(
    name: str, labels: Mapping[str, str], devices: Sequence[DeviceMapping], device_classes: Mapping[str, str]
) -> dict[str, Any] | None:
    """Returns the ResourceClaim for exactly the given devices.

    Devices of device plugins, which are only counted, are left out. Returns None if there are no other devices.

    Args:
        device_classes: the DeviceClass of each driver; a driver that is missing has one of its own name.
    """
    devices = devices_for_claim(devices)
    if not devices:
        return None
    if len(devices) > MAX_DEVICES:
        raise CreationDenied(f"a session has at most {MAX_DEVICES} devices here", data={"field": "devices"})
    requests = []
    for number, device in enumerate(devices):
        driver, attribute, value = parse_device(device)
        # JSON's strings are CEL's: no value can end the literal.
        expression = (
            f"device.driver == {json.dumps(driver)} && "
            f"device.attributes[{json.dumps(driver)}].{attribute} == {json.dumps(value)}"
        )
        exact_request = {
            "deviceClassName": device_classes.get(driver, driver),
            "allocationMode": "ExactCount",
            "count": 1,
            "selectors": [{"cel": {"expression": expression}}],
        }
        requests.append({"name": f"d{number}", "exactly": exact_request})
    return {"metadata": {"name": name, "labels": dict(labels)}, "spec": {"devices": {"requests": requests}}}
