"""Provides SQLAlchemy for every daemon: engine, transactions, column types, migrations."""

from ai.backend.infra.database.columns import GUID, JSONText, QuantityMap, UTCDateTime, Whole, naming_convention
from ai.backend.infra.database.engine import Database, Pool
from ai.backend.infra.database.migrate import current_revision, upgrade

__all__ = [
    "GUID",
    "Database",
    "JSONText",
    "Pool",
    "QuantityMap",
    "UTCDateTime",
    "Whole",
    "current_revision",
    "naming_convention",
    "upgrade",
]
