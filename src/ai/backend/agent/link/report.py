"""Builds and sends heartbeats and statistics."""

from __future__ import annotations

import logging
import platform
from collections.abc import Iterator, Sequence
from decimal import Decimal
from importlib.metadata import PackageNotFoundError
from operator import is_
from typing import Any

import msgspec

from ai.backend.agent.gateway.metrics import gateway_families
from ai.backend.agent.kernels.model import Termination
from ai.backend.agent.lifecycle.context import AgentContext
from ai.backend.agent.lifecycle.supervisor import Supervisor
from ai.backend.agent.lifecycle.workload_config import reports_of
from ai.backend.agent.metrics.statistics import Statistics
from ai.backend.common.devices import ComputeDevice, DeviceHealth
from ai.backend.common.errors import Unavailable
from ai.backend.common.release import release_version
from ai.backend.common.slots import format_quantity
from ai.backend.common.states import Enforcement, KernelEventReason
from ai.backend.common.structs import replace
from ai.backend.common.wire.link import ManagerReports
from ai.backend.common.wire.reports import (
    AgentReport,
    ImageReport,
    OverlayReport,
    PluginReport,
    RuntimeClassReport,
    SlotReport,
    StatReport,
)
from ai.backend.core.lifecycle.kernel_phase import Phase
from ai.backend.infra.loop import PeriodicLoop
from ai.backend.plugin.runtime import RuntimeImage, RuntimeInfo

log = logging.getLogger(__name__)
_RETRY_S = 0.25
"""The delay after a failed heartbeat; the next call waits for the connection by itself."""
try:
    VERSION = release_version()
except PackageNotFoundError:
    VERSION = "0"
ARCHITECTURE = {"amd64": "x86_64", "arm64": "aarch64"}.get(platform.machine().lower(), platform.machine().lower())


class _ReportedInventory(msgspec.Struct, frozen=True):
    """Holds slots, devices and plugins in wire form, and the objects from which the wire form was made."""

    sources: tuple[object, ...]
    slots: list[SlotReport]
    devices: list[dict[str, Any]]
    plugins: list[PluginReport]


class _ReportedRuntime(msgspec.Struct, frozen=True):
    """Holds limits and runtime classes in wire form, and the objects from which the wire form was made."""

    sources: tuple[object, ...]
    enforcement: dict[str, Enforcement]
    classes: list[RuntimeClassReport]


def _are_same(first: tuple[object, ...], second: tuple[object, ...]) -> bool:
    """Returns True if both tuples contain the same objects in the same order, compared by identity.

    Objects are replaced when they change, and never altered.
    """
    return len(first) == len(second) and all(map(is_, first, second))


class HeartbeatReporter:
    """Builds heartbeat reports from the state of the agent's services; ``refresh`` queries the plugins."""

    def __init__(self, context: AgentContext, supervisor: Supervisor) -> None:
        self._context = context
        self._supervisor = supervisor
        self._images: Sequence[RuntimeImage] = ()
        self._image_reports: list[ImageReport] = []
        self._inventory: _ReportedInventory | None = None
        self._runtime: _ReportedRuntime | None = None
        self._number = 0
        self.overlay: OverlayReport | None = None
        """This node's parameters for multi-node networks; None until they are determined."""

    async def refresh(self, now: float) -> None:
        """Asks the plugins for their devices again."""
        await self._context.inventory.refresh(now)

    async def refresh_images(self) -> bool:
        """Lists the images of the node again. Returns True if the list has changed.

        After a BackendError the last list stays.
        """
        previous_images, self._images = self._images, await self._context.runtime.list_images()
        is_changed = list(previous_images) != list(self._images)
        if is_changed:
            self._image_reports = [msgspec.convert(image, ImageReport, from_attributes=True) for image in self._images]
        return is_changed

    def report(self) -> AgentReport:
        context, node = self._context, self._context.settings.agent
        self._number += 1
        runtime_info = context.runtime.info()
        inventory, runtime = self._reported_inventory(), self._reported_runtime(runtime_info)
        return AgentReport(
            agent_id=node.id,
            epoch=context.epoch,
            number=self._number,
            version=VERSION,
            architecture=ARCHITECTURE,
            resource_group=node.resource_group,
            region=node.region,
            location=list(node.location),
            kernel_limit=node.max_kernels,
            addr=context.settings.link.manager_addr,
            runtime=runtime_info.name,
            tier=runtime_info.tier,
            enforcement=runtime.enforcement,
            generation=context.inventory.generation,
            slots=inventory.slots,
            devices=inventory.devices,
            plugins=inventory.plugins,
            images=self._image_reports,
            kernels=self._supervisor.kernel_presence(),
            observed=context.observer.last_seq,
            runtime_classes=runtime.classes,
            overlay=self.overlay,
        )

    def _reported_inventory(self) -> _ReportedInventory:
        """Returns slots, devices and plugins in wire form, which are made anew when one of them has changed."""
        context = self._context
        source_objects: list[object] = []
        for handle in context.plugins.handles:
            source_objects += handle.standing
        for kind in context.inventory.kinds.values():
            source_objects += (kind.devices, kind.slots, kind.displays, kind.alloc_map_spec, kind.info, kind.namespaces)
        sources, cached_inventory = tuple(source_objects), self._inventory
        if cached_inventory is None or not _are_same(cached_inventory.sources, sources):
            cached_inventory = self._inventory = _ReportedInventory(
                sources=sources,
                slots=self._slots(),
                devices=[msgspec.to_builtins(device) for device in self._devices()],
                plugins=self._plugins(),
            )
        return cached_inventory

    def _reported_runtime(self, info: RuntimeInfo) -> _ReportedRuntime:
        sources, cached_runtime = (info, self.overlay), self._runtime
        if cached_runtime is None or not _are_same(cached_runtime.sources, sources):
            cached_runtime = self._runtime = _ReportedRuntime(
                sources=sources,
                enforcement={**info.enforcement, **self._networks()},
                classes=reports_of(self._context.settings.runtime_classes, info),
            )
        return cached_runtime

    def _networks(self) -> dict[str, Enforcement]:
        overlay = self.overlay or OverlayReport(why_not="it is not known yet")
        is_supported = {
            "multi-node-networks": not overlay.why_not,
            "encrypted-networks": not (overlay.why_not or overlay.why_plain),
        }
        return {name: Enforcement.ENFORCED if value else Enforcement.NONE for name, value in is_supported.items()}

    def _devices(self) -> Iterator[ComputeDevice]:
        """Yields all devices. Those of a plugin that may be restarted count as failed."""
        for handle in self._context.plugins.handles:
            kind = self._context.inventory.kinds.get(handle.key)
            if kind is not None and handle.started:
                yield from kind.devices
            elif kind is not None and handle.may_return:
                for device in kind.devices:
                    yield replace(device, health=DeviceHealth.UNHEALTHY, health_reason=handle.reason or "")

    def _slots(self) -> list[SlotReport]:
        """Returns the slots of all plugins and their amounts: 0 for slots that only other settings would offer.

        The amounts are also 0 for a plugin that has failed and may return.
        """
        reports = []
        for handle in self._context.plugins.handles:
            kind = self._context.inventory.kinds.get(handle.key)
            if kind is None or not (handle.started or handle.may_return):
                continue
            display_of_slot = {display.slot_name: display for display in kind.displays}
            configurable_amounts = dict.fromkeys(display_of_slot, Decimal(0))
            for slot_name, offered_amount in {**configurable_amounts, **kind.slots}.items():
                amount = offered_amount if handle.started else Decimal(0)
                display = display_of_slot.get(slot_name)
                reports.append(
                    SlotReport(
                        slot_name=slot_name,
                        slot_type=display.slot_type.value if display is not None else "count",
                        amount=format_quantity(amount),
                        display=msgspec.to_builtins(display) if display is not None else {},
                    )
                )
        return reports

    def _plugins(self) -> list[PluginReport]:
        reports = []
        for handle in self._context.plugins.handles:
            kind = self._context.inventory.kinds.get(handle.key) if handle.started else None
            reports.append(
                PluginReport(
                    name=handle.key,
                    version=handle.version,
                    healthy=handle.healthy,
                    reason=handle.reason,
                    info=dict(kind.info or {}) if kind is not None else {},
                    variant_namespaces=[msgspec.to_builtins(namespace) for namespace in kind.namespaces]
                    if kind is not None
                    else [],
                    options_schema=None if handle.options_schema is None else dict(handle.options_schema),
                    diagnosable=handle.plugin.capabilities.diagnosable if handle.started else None,
                    alloc_map=msgspec.to_builtins(kind.alloc_map_spec)
                    if kind is not None and kind.alloc_map_spec is not None
                    else None,
                )
            )
        return reports


async def report_statistics(
    context: AgentContext, supervisor: Supervisor, statistics: Statistics, manager: ManagerReports
) -> None:
    """Measures once and sends the manager the statistics. A lost report is replaced by the next, not repeated."""
    await statistics.gather([kernel for kernel in supervisor.live_kernels() if kernel.phase is Phase.RUNNING])
    report = StatReport(
        agent_id=context.settings.agent.id,
        at=context.wall_clock(),
        node=statistics.node,
        devices=statistics.devices,
        kernels=statistics.kernels,
        families=[*statistics.families, *gateway_families(context.gateway)],
    )
    await manager.report_stats(report)


class Heartbeat(PeriodicLoop):
    """Sends the agent's heartbeat to the manager in each interval. The manager's reply sets the next interval."""

    def __init__(
        self, reporting: HeartbeatReporter, supervisor: Supervisor, manager: ManagerReports, *, interval_s: float
    ) -> None:
        super().__init__()
        self.period_s = interval_s
        self._reporting = reporting
        self._supervisor = supervisor
        self._manager = manager
        self._is_cut_off = False

    @property
    def name(self) -> str:
        return "heartbeat"

    async def once(self) -> None:
        try:
            reply = await self._manager.heartbeat(self._reporting.report())
        except Unavailable as e:
            if not self._is_cut_off:
                log.warning("the manager cannot be reached: %s", e)
            self._is_cut_off = True
            self.period_s = min(_RETRY_S, self.period_s)
            return
        self._is_cut_off = False
        self.period_s = min(60.0, max(0.05, reply.interval_s))
        for unknown_kernel in reply.unknown_kernels:
            kernel = self._supervisor.kernels.get(unknown_kernel.kernel_id)
            if kernel is None or kernel.attempt != unknown_kernel.attempt:
                continue
            log.warning("the manager does not know kernel %s; it is ended", unknown_kernel.kernel_id)
            termination = Termination(reason=KernelEventReason.NOT_FOUND_IN_MANAGER, forced=True)
            self._supervisor.end(kernel, termination)
        for presence in reply.unobserved_kernels:
            self._supervisor.report_again(presence.kernel_id, presence.attempt)
