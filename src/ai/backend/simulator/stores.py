"""The stores in memory behind a simulated database, which may be slow, refuse calls or lose answers."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields, replace
from datetime import timedelta
from typing import Any

from ai.backend.infra.config_store import MemoryConfigStore
from ai.backend.manager.agents.memory import MemoryAgentStore
from ai.backend.manager.composition.stores import Stores
from ai.backend.manager.idempotency.memory import MemoryAnswerStore
from ai.backend.manager.identity.memory import MemoryIdentityStore
from ai.backend.manager.leadership.memory import MemoryLeaseStore
from ai.backend.manager.logs.memory import MemoryAuditStore
from ai.backend.manager.resource_groups.memory import MemoryResourceGroupStore
from ai.backend.manager.resources.memory import MemoryPresetStore
from ai.backend.manager.sessions.memory import Memory, MemorySessionStore
from ai.backend.manager.tasks.memory import MemoryTaskStore
from ai.backend.simulator.world import EPOCH, World


def make_stores(world: World, memory: Memory) -> Stores:
    """Returns the stores without faults, for the invariants and for tests."""
    groups = MemoryResourceGroupStore()
    return Stores(
        sessions=MemorySessionStore(memory),
        agents=MemoryAgentStore(memory.agents),
        presets=MemoryPresetStore(),
        identities=MemoryIdentityStore(groups.remove_links),
        resource_groups=groups,
        tasks=MemoryTaskStore(),
        audit=MemoryAuditStore(),
        config=MemoryConfigStore(),
        answers=MemoryAnswerStore(),
        leases=MemoryLeaseStore(lambda: EPOCH + timedelta(seconds=world.now)),
    )


def with_faults(world: World, stores: Stores, committed: Callable[[], None]) -> Stores:
    """Returns the stores with faults, for a manager. ``committed`` is called after each transaction that may write."""
    wrapped = {
        field.name: FaultyStore(world, store, field.name, committed)
        for field in fields(stores)
        if (store := getattr(stores, field.name)) is not None
    }
    return replace(stores, **wrapped)


_CHANGES = frozenset({"insert", "save", "put_agent", "set_status"})


class FaultyStore:
    """Runs each method of a store as one transaction, see :meth:`World.transaction`."""

    def __init__(self, world: World, store: object, name: str, committed: Callable[[], None]) -> None:
        self._world = world
        self._store = store
        self._name = name
        self._committed = committed

    def __getattr__(self, method: str) -> Any:
        target = getattr(self._store, method)
        if not inspect.iscoroutinefunction(target):
            return target
        world, committed, name = self._world, self._committed, f"{self._name}.{method}"
        changes = method in _CHANGES

        async def call(*args: Any, **kwargs: Any) -> Any:
            async def work() -> Any:
                result = await target(*args, **kwargs)
                if changes:
                    committed()
                return result

            return await world.transaction(name, work)

        self.__dict__[method] = call
        return call
