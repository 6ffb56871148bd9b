"""What a heartbeat says of this node."""

from __future__ import annotations

import logging
import platform
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version

import msgspec

from ai.backend.agent.services.kernel_lifecycle.context import Surroundings
from ai.backend.agent.services.kernel_lifecycle.supervisor import Supervisor
from ai.backend.agent.services.statistics import Statistics
from ai.backend.common.errors import BackendError
from ai.backend.common.slots import format_quantity
from ai.backend.common.wire.agent import AgentReport, ImageReport, PluginReport, SlotReport
from ai.backend.plugin.runtime import RuntimeImage

log = logging.getLogger(__name__)
try:
    VERSION = version("backendai")
except PackageNotFoundError:
    VERSION = "0"
ARCHITECTURE = {"amd64": "x86_64", "arm64": "aarch64"}.get(platform.machine().lower(), platform.machine().lower())


class Reporting:
    """Makes reports from what the other services know; ``refresh`` asks plugins and runtime anew."""

    def __init__(self, around: Surroundings, supervisor: Supervisor, statistics: Statistics) -> None:
        self._around = around
        self._supervisor = supervisor
        self._statistics = statistics
        self._images: Sequence[RuntimeImage] = ()

    async def refresh(self, now: float) -> bool:
        """Returns whether the inventory changed."""
        changed = await self._around.inventory.refresh(now)
        try:
            images = await self._around.runtime.list_images()
        except BackendError as e:
            log.warning("the images cannot be listed: %s", e)
            return changed
        changed |= list(images) != list(self._images)
        self._images = images
        return changed

    def report(self) -> AgentReport:
        around, node = self._around, self._around.settings.agent
        info = around.runtime.info()
        return AgentReport(
            agent_id=node.id,
            epoch=around.epoch,
            version=VERSION,
            architecture=ARCHITECTURE,
            resource_group=node.resource_group,
            region=node.region,
            addr=around.settings.link.manager_addr,
            runtime=info.name,
            tier=info.tier,
            enforcement=dict(info.enforcement),
            generation=around.inventory.generation,
            slots=self._slots(),
            devices=[
                msgspec.to_builtins(device) for kind in around.inventory.kinds.values() for device in kind.devices
            ],
            plugins=self._plugins(),
            images=[
                ImageReport(
                    name=image.name,
                    architecture=image.architecture,
                    digest=image.digest,
                    size_bytes=image.size_bytes,
                    labels=dict(image.labels),
                    aliases=list(image.aliases),
                )
                for image in self._images
            ],
            kernels=self._supervisor.presence(),
            live_stat={"node": self._statistics.node, "devices": self._statistics.devices},
        )

    def _slots(self) -> list[SlotReport]:
        found = []
        for handle in self._around.plugins.started():
            kind = self._around.inventory.kinds.get(handle.key)
            displays = {d.slot_name: d for d in kind.displays} if kind is not None else {}
            for name, amount in kind.slots.items() if kind is not None else ():
                display = displays.get(name)
                found.append(
                    SlotReport(
                        slot_name=name,
                        slot_type=display.slot_type.value if display is not None else "count",
                        amount=format_quantity(amount),
                        display=msgspec.to_builtins(display) if display is not None else {},
                    )
                )
        return found

    def _plugins(self) -> list[PluginReport]:
        found = []
        for handle in self._around.plugins.handles:
            kind = self._around.inventory.kinds.get(handle.key) if handle.started else None
            found.append(
                PluginReport(
                    name=handle.key,
                    version=handle.version,
                    healthy=handle.healthy,
                    reason=handle.reason,
                    info=dict(kind.info) if kind is not None else {},
                    alloc_map=msgspec.to_builtins(kind.spec) if kind is not None and kind.spec is not None else None,
                )
            )
        return found
