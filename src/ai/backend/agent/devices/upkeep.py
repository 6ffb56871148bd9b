"""Combines the services that change devices beside kernels: operations, partitions and health rules."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from typing import Self

import msgspec

from ai.backend.agent.config.settings import NodeSettings
from ai.backend.agent.devices.cordons import Cordons
from ai.backend.agent.devices.health_rules import HealthRules
from ai.backend.agent.devices.inventory import Inventory
from ai.backend.agent.devices.metric_rules import MetricRules
from ai.backend.agent.devices.operations import DeviceOperations
from ai.backend.agent.devices.partitions import Partitioner
from ai.backend.agent.devices.plugins import PluginSet
from ai.backend.common.ids import DeviceId
from ai.backend.infra.loop import PeriodicCall, PeriodicLoop

_CORDON_CHECKS = 3
"""The number of checks for expired cordons and idle partitions in the time between two listings of the devices."""


class DeviceUpkeep(msgspec.Struct, frozen=True):
    """Holds the services that change the devices of an inventory: operations, partitions and rules."""

    operations: DeviceOperations
    partitioner: Partitioner
    health_rules: HealthRules
    metric_rules: MetricRules

    @classmethod
    def make(
        cls,
        plugins: PluginSet,
        inventory: Inventory,
        cordons: Cordons,
        node: NodeSettings,
        *,
        clock: Callable[[], float],
        refresh: Callable[[], Awaitable[None]],
        read_kept_ids: Callable[[], Awaitable[Collection[DeviceId]]],
    ) -> Self:
        """Returns the services that change devices, connected with the inventory. ``refresh`` is awaited after each
        operation; ``read_kept_ids`` returns the devices of claims, or raises BackendError.
        """
        operations = DeviceOperations(plugins, inventory, cordons, refresh=refresh)
        health_rules = HealthRules(node.device_cordons, operations, clock=clock)
        inventory.failed = health_rules.on_failure
        partitioner = Partitioner(
            plugins,
            inventory,
            operations,
            names=node.partition_on_demand,
            idle_s=node.partition_idle,
            clock=clock,
            read_kept_ids=read_kept_ids,
        )
        metric_rules = MetricRules(node.device_rules, inventory, operations, clock=clock)
        return cls(operations, partitioner, health_rules, metric_rules)

    def loops(self, interval_s: float) -> tuple[PeriodicLoop, ...]:
        """Returns the periodic work on devices. ``interval_s`` is the time between two listings of the devices."""
        return (
            PeriodicCall("cordons", interval_s / _CORDON_CHECKS, self.operations.expire_cordons),
            PeriodicCall("health-rules", interval_s / _CORDON_CHECKS, self.health_rules.apply),
            PeriodicCall("metric-rules", interval_s / _CORDON_CHECKS, self.metric_rules.apply),
            PeriodicCall("partitions", interval_s / _CORDON_CHECKS, self.partitioner.join_idle),
        )
