"""Asks the manager which devices of this node claims keep while no kernel has them."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

import msgspec

from ai.backend.agent.kernels.observer import ObservationQueue
from ai.backend.common.errors import DeadlineExceeded
from ai.backend.common.ids import DeviceId
from ai.backend.common.wire.link import ManagerReports
from ai.backend.common.wire.reports import KeptDevicesOf

_PATIENCE_S = 5.0


class KeptDevices(msgspec.Struct, frozen=True):
    """Asks the manager for the devices that claims keep, anew at each call, since nothing is stored here (decision
    0660).
    """

    manager: ManagerReports
    observer: ObservationQueue
    agent_id: str

    async def ids(self) -> Collection[DeviceId]:
        """Returns the devices and partitions that claims keep now, as the manager answers.

        The manager binds a claim by what it hears of the claim's first kernel, so it is asked when it has heard
        everything. Raises BackendError if it does not answer.
        """
        try:
            async with asyncio.timeout(_PATIENCE_S):
                await self.observer.wait_acknowledged()
        except TimeoutError:
            raise DeadlineExceeded("the manager has not acknowledged what was observed of kernels") from None
        reply = await self.manager.kept_devices(KeptDevicesOf(agent_id=self.agent_id))
        return {
            DeviceId(device_id)
            for devices_of_slot in reply.devices.values()
            for devices in devices_of_slot.values()
            for device_id in devices
        }
