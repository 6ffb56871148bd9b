"""What a heartbeat says of this node."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Sequence
from dataclasses import replace
from decimal import Decimal
from importlib.metadata import PackageNotFoundError, version

import msgspec

from ai.backend.agent.lifecycle.context import AgentContext
from ai.backend.agent.lifecycle.runtime_classes import reports_of
from ai.backend.agent.lifecycle.supervisor import Supervisor
from ai.backend.common.devices import ComputeDevice, DeviceHealth
from ai.backend.common.slots import format_quantity
from ai.backend.common.states import Enforcement
from ai.backend.common.wire.reports import AgentReport, ImageReport, OverlayReport, PluginReport, SlotReport
from ai.backend.plugin.runtime import RuntimeImage

try:
    VERSION = version("backendai")
except PackageNotFoundError:
    VERSION = "0"
ARCHITECTURE = {"amd64": "x86_64", "arm64": "aarch64"}.get(platform.machine().lower(), platform.machine().lower())


class HeartbeatReporter:
    """Makes reports from what the other services know; ``refresh`` asks the plugins anew."""

    def __init__(self, around: AgentContext, supervisor: Supervisor) -> None:
        self._around = around
        self._supervisor = supervisor
        self._images: Sequence[RuntimeImage] = ()
        self._number = 0
        self.overlay: OverlayReport | None = None
        """How this node takes part in networks over several; told once it is known."""

    async def refresh(self, now: float) -> bool:
        """Returns whether the inventory changed."""
        return await self._around.inventory.refresh(now)

    async def refresh_images(self) -> bool:
        """Returns whether there are other images than before.

        Raises:
            BackendError: they cannot be listed; those that are known stay.
        """
        before, self._images = self._images, await self._around.runtime.list_images()
        return list(before) != list(self._images)

    def report(self) -> AgentReport:
        around, node = self._around, self._around.settings.agent
        self._number += 1
        info = around.runtime.info()
        return AgentReport(
            agent_id=node.id,
            epoch=around.epoch,
            number=self._number,
            version=VERSION,
            architecture=ARCHITECTURE,
            resource_group=node.resource_group,
            region=node.region,
            location=list(node.location),
            kernel_limit=node.max_kernels,
            addr=around.settings.link.manager_addr,
            runtime=info.name,
            tier=info.tier,
            enforcement={**info.enforcement, **self._networks()},
            generation=around.inventory.generation,
            slots=self._slots(),
            devices=[msgspec.to_builtins(device) for device in self._devices()],
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
            runtime_classes=reports_of(around.settings.runtime_classes, info),
            overlay=self.overlay,
        )

    def _networks(self) -> dict[str, Enforcement]:
        """Whether networks over several nodes are there, which the runtime alone cannot tell."""
        told = self.overlay or OverlayReport(why_not="it is not known yet")
        there = {"multi-node-networks": not told.why_not, "encrypted-networks": not (told.why_not or told.why_plain)}
        return {name: Enforcement.ENFORCED if is_there else Enforcement.NONE for name, is_there in there.items()}

    def _devices(self) -> Iterator[ComputeDevice]:
        """All; those of a plugin that does not run now as failed, since they may come back: requests wait for them."""
        for handle in self._around.plugins.handles:
            kind = self._around.inventory.kinds.get(handle.key)
            if kind is not None and handle.started:
                yield from kind.devices
            elif kind is not None and handle.may_return:
                for device in kind.devices:
                    yield replace(device, health=DeviceHealth.UNHEALTHY, health_reason=handle.reason or "")

    def _slots(self) -> list[SlotReport]:
        found = []
        for handle in self._around.plugins.handles:
            kind = self._around.inventory.kinds.get(handle.key)
            if kind is None or not (handle.started or handle.may_return):
                continue
            displays = {d.slot_name: d for d in kind.displays}
            for name, offered in kind.slots.items():
                amount = offered if handle.started else Decimal(0)
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
                    info=dict(kind.info or {}) if kind is not None else {},
                    variant_namespaces=[msgspec.to_builtins(n) for n in kind.namespaces] if kind is not None else [],
                    alloc_map=msgspec.to_builtins(kind.spec) if kind is not None and kind.spec is not None else None,
                )
            )
        return found
