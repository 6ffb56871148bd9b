"""Provides in-memory stores behind a simulated database, which may be slow, refuse calls or lose answers."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine
from datetime import datetime
from functools import partial
from typing import Any

from ai.backend.common.structs import replace
from ai.backend.infra.config_store import MemoryConfigStore
from ai.backend.manager.agents.memory import MemoryAgentStore
from ai.backend.manager.composition.stores import Stores
from ai.backend.manager.dotfiles.sql import SqlDotfileStore
from ai.backend.manager.idempotency.sql import SqlAnswerStore
from ai.backend.manager.identity.sql import SqlIdentityStore
from ai.backend.manager.identity.sql_accounts import SqlAccountStore
from ai.backend.manager.leadership.memory import MemoryLeaseStore
from ai.backend.manager.logs.sql import SqlAuditStore, SqlErrorLogStore
from ai.backend.manager.resource_groups.sql import SqlResourceGroupStore, remove_links
from ai.backend.manager.resources.sql import SqlPresetStore
from ai.backend.manager.scheduling.sql import SqlShareStore
from ai.backend.manager.sessions.memory import Memory, MemorySessionStore
from ai.backend.manager.tasks.sql import SqlTaskStore
from ai.backend.manager.templates.sql import SqlTemplateStore
from ai.backend.simulator.database import InlineDatabase
from ai.backend.simulator.world import World

_TABLE_NAMES = frozenset(
    {"domains", "groups", "users", "memberships", "keypairs", "keypair_resource_policies", "storage_policies"}
    | {"totp_devices", "recovery_codes", "old_passwords", "sign_ins"}
    | {"dotfiles", "bootstrap_scripts", "session_templates", "error_logs", "audit_logs", "background_tasks"}
    | {"scaling_groups", "scaling_group_links", "resource_presets", "share_histories", "kept_answers"}
)


def make_stores(memory: Memory, now: Callable[[], datetime]) -> Stores:
    """Returns in-memory stores that never fail, for the invariants and for tests.

    ``now`` is the time of the leases.
    """
    database = InlineDatabase(_TABLE_NAMES)
    return Stores(
        sessions=MemorySessionStore(memory),
        agents=MemoryAgentStore(memory.agents),
        presets=SqlPresetStore(database),
        identities=SqlIdentityStore(database, on_removal=remove_links),
        accounts=SqlAccountStore(database),
        resource_groups=SqlResourceGroupStore(database),
        tasks=SqlTaskStore(database),
        shares=SqlShareStore(database),
        audit=SqlAuditStore(database),
        templates=SqlTemplateStore(database),
        dotfiles=SqlDotfileStore(database),
        errors=SqlErrorLogStore(database),
        config=MemoryConfigStore(),
        answers=SqlAnswerStore(database),
        leases=MemoryLeaseStore(now),
    )


def with_faults(world: World, stores: Stores, on_commit: Callable[[], None]) -> Stores:
    """Returns stores that fail or are slow at random, in front of the given stores, for a simulated manager.

    ``on_commit`` is called after each transaction that may write.
    """
    faulty_stores = {
        name: FaultyStore(world, store, name, on_commit)
        for name in stores.__struct_fields__
        if (store := getattr(stores, name)) is not None
    }
    return replace(stores, **faulty_stores)


_WRITING_METHODS = frozenset({"insert", "save", "put_agent", "set_status"})


class FaultyStore:
    """Runs each method of a store as one transaction, see :meth:`World.transaction`."""

    def __init__(self, world: World, store: object, name: str, on_commit: Callable[[], None]) -> None:
        self._world = world
        self._store = store
        self._name = name
        self._on_commit = on_commit

    def __getattr__(self, method: str) -> Any:
        store_method = getattr(self._store, method)
        if not inspect.iscoroutinefunction(store_method):
            return store_method
        world, on_commit, name = self._world, self._on_commit, f"{self._name}.{method}"

        async def write(*args: Any, **kwargs: Any) -> Any:
            result = await store_method(*args, **kwargs)
            on_commit()
            return result

        transact = write if method in _WRITING_METHODS else store_method

        def call_in_transaction(*args: Any, **kwargs: Any) -> Coroutine[Any, Any, Any]:
            return world.transaction(name, partial(transact, *args, **kwargs))

        self.__dict__[method] = call_in_transaction
        return call_in_transaction
