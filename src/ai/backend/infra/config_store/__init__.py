"""Shared configuration that may change while daemons run: keys in scopes, with prefix reads and watches."""

from ai.backend.infra.config_store.memory import MemoryConfigStore
from ai.backend.infra.config_store.port import GLOBAL, MANAGERS, ConfigChange, ConfigScope, ConfigStore, ScopeKind
from ai.backend.infra.config_store.remembering import RememberingConfigStore
from ai.backend.infra.config_store.sqlite import SQLiteConfigStore

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
