"""What the steps of a kernel's life work with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from ai.backend.agent.config.settings import AgentSettings
from ai.backend.agent.ports.records import KernelRecords
from ai.backend.agent.services.inventory import Inventory
from ai.backend.agent.services.kernel import Kernel
from ai.backend.agent.services.observations import Observer
from ai.backend.agent.services.plugins import PluginSet
from ai.backend.plugin.accelerator import LifecycleCause
from ai.backend.plugin.runtime import AbstractRuntime


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """The agent around one kernel."""

    settings: AgentSettings
    epoch: int
    runtime: AbstractRuntime
    plugins: PluginSet
    inventory: Inventory
    records: KernelRecords
    observer: Observer


@dataclass(frozen=True, slots=True, kw_only=True)
class Circumstances:
    """Why steps are taken now."""

    cause: LifecycleCause = LifecycleCause.CREATE

    @property
    def restarting(self) -> bool:
        return self.cause is LifecycleCause.RESTART_IN_PLACE


class Step(Protocol):
    """One thing that a kernel needs.

    ``acquire`` may be repeated after a crash with the same effect once. ``release`` is idempotent, safe without
    ``acquire``, and raises only if it must be tried again.
    """

    name: str

    async def acquire(self, kernel: Kernel, why: Circumstances) -> None: ...
    async def release(self, kernel: Kernel, why: Circumstances) -> None: ...
