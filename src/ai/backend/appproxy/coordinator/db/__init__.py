"""Holds the migrations of the coordinator's database, and the metadata of its tables."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import MetaData

from ai.backend.infra.database.columns import naming_convention

MIGRATIONS = Path(__file__).parent / "migrations"
SCHEMA_HEAD = "0004"
"""The newest revision in ``migrations``; known here so that a start need not load alembic."""
metadata = MetaData(naming_convention=naming_convention)
