"""Shows operators the app proxies of resource groups, with workers and circuits."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from ai.backend.common.errors import BackendError, NotFound
from ai.backend.manager.access.caller import Caller
from ai.backend.manager.access.checks import require
from ai.backend.manager.access.permissions import Operation
from ai.backend.manager.resource_groups.store import ResourceGroupStore
from ai.backend.manager.service_ports.app_proxies import coordinator_of
from ai.backend.manager.service_ports.app_proxy_gateway import CoordinatorAddress, CoordinatorGateway


class AppProxyState(msgspec.Struct, frozen=True, kw_only=True):
    """A coordinator with the resource groups that use it; ``problem`` says why its workers are unknown."""

    url: str
    resource_groups: Sequence[str]
    workers: Sequence[Mapping[str, Any]]
    problem: str


class AppProxyOverview(msgspec.Struct, frozen=True):
    """Reads the workers and circuits of app proxies from their coordinators, and removes circuits.

    Reading takes the right to see agents; removing circuits takes the right to change resource groups.
    """

    _resource_groups: ResourceGroupStore
    _coordinators: CoordinatorGateway

    async def all(self, caller: Caller) -> list[AppProxyState]:
        """Returns every coordinator that a resource group names, ordered by URL. Raises Forbidden."""
        require(caller, Operation.SEE_AGENTS)
        groups: dict[CoordinatorAddress, list[str]] = {}
        for group in await self._resource_groups.resource_groups():
            if (coordinator := coordinator_of(group)) is not None:
                groups.setdefault(coordinator, []).append(group.name)
        states = await asyncio.gather(
            *(self._state(coordinator, group_names) for coordinator, group_names in groups.items())
        )
        return sorted(states, key=lambda state: (state.url, *state.resource_groups))

    async def circuits(self, caller: Caller, group: str, worker_id: str) -> Sequence[Mapping[str, Any]]:
        """Returns the circuits of a worker of a resource group's app proxy. Raises Forbidden, NotFound, Unavailable."""
        require(caller, Operation.SEE_AGENTS)
        return await self._coordinators.circuits(await self._coordinator(group), worker_id)

    async def remove_circuit(self, caller: Caller, group: str, circuit_id: str) -> None:
        """Removes a circuit, which disconnects its users. Raises Forbidden, NotFound, Unavailable."""
        require(caller, Operation.CHANGE_RESOURCE_GROUPS)
        await self._coordinators.remove_circuit(await self._coordinator(group), circuit_id)

    async def _coordinator(self, group: str) -> CoordinatorAddress:
        coordinator = coordinator_of(await self._resource_groups.resource_group(group))
        if coordinator is None:
            raise NotFound(f"The resource group {group[:64]!r} has no app proxy.")
        return coordinator

    async def _state(self, coordinator: CoordinatorAddress, groups: Sequence[str]) -> AppProxyState:
        workers: Sequence[Mapping[str, Any]] = ()
        problem = ""
        try:
            workers = await self._coordinators.workers(coordinator)
        except BackendError as e:
            problem = e.message
        return AppProxyState(url=coordinator.url, resource_groups=sorted(groups), workers=workers, problem=problem)
