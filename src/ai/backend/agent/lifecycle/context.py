"""What the steps of a kernel's life work with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from ai.backend.agent.config.settings import AgentSettings
from ai.backend.agent.devices.inventory import Inventory
from ai.backend.agent.devices.plugins import PluginSet
from ai.backend.agent.kernels.kernel import Kernel
from ai.backend.agent.kernels.model import KernelRecord
from ai.backend.agent.kernels.observer import Observer
from ai.backend.agent.kernels.store import KernelRecords, Leftovers
from ai.backend.agent.networks.networks import Networks
from ai.backend.agent.service_ports.services import ServiceDesk
from ai.backend.core.lifecycle.kernel_phase import Phase
from ai.backend.plugin.accelerator import LifecycleCause
from ai.backend.plugin.runtime import AbstractRuntime


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """The agent around one kernel. ``secret`` never leaves it, only what is derived from it."""

    settings: AgentSettings
    epoch: int
    secret: bytes
    runtime: AbstractRuntime
    networks: Networks
    desk: ServiceDesk
    plugins: PluginSet
    inventory: Inventory
    records: KernelRecords
    leftovers: Leftovers
    observer: Observer


@dataclass(frozen=True, slots=True, kw_only=True)
class Circumstances:
    """Why steps are taken now."""

    cause: LifecycleCause = LifecycleCause.CREATE

    @property
    def restarting(self) -> bool:
        return self.cause is LifecycleCause.RESTART_IN_PLACE


def circumstances_of(record: KernelRecord) -> Circumstances:
    """Of the calls that come now, or are still owed, for the standing workload."""
    is_ending = record.phase in (Phase.TERMINATING, Phase.ENDED)
    if record.restarted_from is not None or (record.restarted and not is_ending):
        return Circumstances(cause=LifecycleCause.RESTART_IN_PLACE)
    if record.spec.relocated_from is not None:
        return Circumstances(cause=LifecycleCause.RELOCATE)
    return Circumstances()


class Step(Protocol):
    """One thing that a kernel needs.

    ``acquire`` may be repeated after a crash with the same effect once. ``release`` is idempotent, safe without
    ``acquire``, and raises only if it must be tried again.
    """

    name: str

    async def acquire(self, kernel: Kernel, why: Circumstances) -> None: ...
    async def release(self, kernel: Kernel, why: Circumstances) -> None: ...
