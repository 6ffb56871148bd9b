"""Shared configuration that may change while daemons run: keys in scopes, with prefix reads and watches."""

from ai.backend.infra.config_store.caching import RememberingConfigStore
from ai.backend.infra.config_store.memory import MemoryConfigStore
from ai.backend.infra.config_store.sqlite import SQLiteConfigStore
from ai.backend.infra.config_store.store import GLOBAL, MANAGERS, ConfigChange, ConfigScope, ConfigStore, ScopeKind

__all__ = [
    "GLOBAL",
    "MANAGERS",
    "ConfigChange",
    "ConfigScope",
    "ConfigStore",
    "MemoryConfigStore",
    "RememberingConfigStore",
    "SQLiteConfigStore",
    "ScopeKind",
]
