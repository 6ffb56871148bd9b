"""The table of resource presets."""

from __future__ import annotations

from sqlalchemy import Column, String, Table

from ai.backend.infra.database import QuantityMap, Whole
from ai.backend.manager.db.metadata import metadata, required

presets = Table(
    "resource_presets",
    metadata,
    Column("name", String(256), primary_key=True),
    required("resource_slots", QuantityMap),
    Column("shared_memory", Whole),
)
