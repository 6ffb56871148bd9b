"""Stores shared configuration that may change while daemons run: keys in scopes, with prefix reads and watches."""

from ai.backend.infra.config_store.caching import CachingConfigStore
from ai.backend.infra.config_store.memory import MemoryConfigStore
from ai.backend.infra.config_store.sqlite import SQLiteConfigStore
from ai.backend.infra.config_store.store import GLOBAL, MANAGERS, ConfigChange, ConfigScope, ConfigStore, ScopeKind

__all__ = [
    "GLOBAL",
    "MANAGERS",
    "CachingConfigStore",
    "ConfigChange",
    "ConfigScope",
    "ConfigStore",
    "MemoryConfigStore",
    "SQLiteConfigStore",
    "ScopeKind",
]
