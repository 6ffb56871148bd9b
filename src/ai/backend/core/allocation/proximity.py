"""Finds the devices that are near a network card, and the devices that share a fabric with devices of other nodes.

Both are features that devices state: ``network::distance`` is the way to the nearest network card
(:class:`~ai.backend.common.devices.LinkKind`), which the agent reads or the plugin tells; ``fabric::domain`` names what
links devices directly across nodes, such as an NVLink domain.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ai.backend.common.devices import DISTANCE, DOMAIN, FABRIC, NETWORK, ComputeDevice, LinkKind
from ai.backend.common.ids import DeviceId

_DISTANCE_BY_KIND = {kind.value: place for place, kind in enumerate(LinkKind)}


def sets_near_network(devices: Sequence[ComputeDevice]) -> tuple[frozenset[DeviceId], ...]:
    """Returns growing sets of devices, first the devices nearest to a network card.

    Returns no set if all devices are equally near.
    """
    distances = {
        device.device_id: min(
            (
                _DISTANCE_BY_KIND.get(stated_property.value, len(_DISTANCE_BY_KIND))
                for stated_property in device.properties
                if (stated_property.namespace, stated_property.feature) == (NETWORK, DISTANCE)
            ),
            default=len(_DISTANCE_BY_KIND),
        )
        for device in devices
    }
    return tuple(
        frozenset(device_id for device_id, device_distance in distances.items() if device_distance <= distance)
        for distance in sorted(set(distances.values()))[:-1]
    )


def fabric_domains(devices: Iterable[ComputeDevice]) -> frozenset[str]:
    """Returns the fabrics that the devices are part of."""
    return frozenset(
        stated_property.value
        for device in devices
        for stated_property in device.properties
        if (stated_property.namespace, stated_property.feature) == (FABRIC, DOMAIN)
    )
