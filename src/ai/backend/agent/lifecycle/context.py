"""Defines the values that the steps of a kernel work with."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import msgspec

from ai.backend.agent.config.settings import AgentSettings
from ai.backend.agent.devices.cdi import CdiSpecifications
from ai.backend.agent.devices.inventory import Inventory
from ai.backend.agent.devices.partitions import Partitioner
from ai.backend.agent.devices.plugins import PluginSet
from ai.backend.agent.gateway.server import ServiceGateway
from ai.backend.agent.kernels.kernel import Kernel
from ai.backend.agent.kernels.model import KernelRecord
from ai.backend.agent.kernels.observer import ObservationQueue
from ai.backend.agent.kernels.store import KernelRecords, Leftovers
from ai.backend.agent.networks.networks import Networks
from ai.backend.agent.service_ports.services import ServiceManager
from ai.backend.core.lifecycle.kernel_phase import Phase
from ai.backend.plugin.accelerator import LifecycleCause
from ai.backend.plugin.runtime import AbstractRuntime


class AgentContext(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the services and settings of the agent. Only keys that are derived from ``secret`` leave the agent."""

    settings: AgentSettings
    epoch: int
    secret: bytes
    runtime: AbstractRuntime
    networks: Networks
    services: ServiceManager
    gateway: ServiceGateway
    plugins: PluginSet
    inventory: Inventory
    partitioner: Partitioner
    cdi: CdiSpecifications
    records: KernelRecords
    leftovers: Leftovers
    observer: ObservationQueue
    wall_clock: Callable[[], float] = time.time


class StepContext(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the reason why a kernel's steps are run or undone: a creation, a restart in place, or a relocation."""

    cause: LifecycleCause = LifecycleCause.CREATE

    @property
    def restarting(self) -> bool:
        return self.cause is LifecycleCause.RESTART_IN_PLACE


def step_context_of(record: KernelRecord) -> StepContext:
    """Returns the context for hook calls of a kernel's present workload, with the cause by which it was made."""
    is_ending = record.phase in (Phase.TERMINATING, Phase.ENDED)
    if record.restarted_from is not None or (record.restarted and not is_ending):
        return StepContext(cause=LifecycleCause.RESTART_IN_PLACE)
    if record.spec.relocated_from is not None:
        return StepContext(cause=LifecycleCause.RELOCATE)
    return StepContext()


@dataclass
class Step:
    """Acquires and releases one resource of a kernel. Both methods are idempotent.

    ``release`` is safe without ``acquire``, and raises only if it must be repeated.
    """

    name: ClassVar[str]
    context: AgentContext

    async def acquire(self, kernel: Kernel, step: StepContext) -> None:
        raise NotImplementedError

    async def release(self, kernel: Kernel, step: StepContext) -> None:
        """Does nothing, for a step that holds no resource."""
