"""The migrations of the manager's database, and the tables' metadata."""

from __future__ import annotations

from pathlib import Path

MIGRATIONS = Path(__file__).parent / "migrations"
SCHEMA_HEAD = "0037"
"""The newest revision in ``migrations``; known here so that a start need not load alembic."""
