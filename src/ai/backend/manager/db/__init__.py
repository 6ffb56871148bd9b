"""Holds the migrations of the manager's database, and the metadata of its tables."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import MetaData

from ai.backend.infra.database.columns import naming_convention

MIGRATIONS = Path(__file__).parent / "migrations"
SCHEMA_HEAD = "0038"
"""The newest revision in ``migrations``, written here so that a start need not load alembic."""
metadata = MetaData(naming_convention=naming_convention)
"""The metadata with the tables of all features (peer facts 4.4). Columns are named as the fields of the model."""
