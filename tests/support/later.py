"""A version of the product that comes after this one: its sources with one more migration of the manager's database."""

from __future__ import annotations

import shutil
from pathlib import Path

from ai.backend.manager.db import SCHEMA_HEAD

LATER_HEAD = f"{int(SCHEMA_HEAD) + 1:04}"
COLUMN, INDEX = "later_remark", "ix_sessions_later_remark"
_MIGRATION = f'''
import sqlalchemy as sa
from alembic import op

from ai.backend.infra.database.online_indexes import create_index

revision = "{LATER_HEAD}"
down_revision = "{SCHEMA_HEAD}"


def upgrade() -> None:
    op.add_column("sessions", sa.Column("{COLUMN}", sa.String(64), nullable=False, server_default="none"))
    create_index("{INDEX}", "sessions", ["{COLUMN}"])
'''
_SOURCES = Path(__file__).parents[2] / "src"


def copy_later(folder: Path) -> Path:
    """Copies the sources to ``folder``, adds the migration, and returns the folder for ``PYTHONPATH``."""
    sources = folder / "src"
    shutil.copytree(_SOURCES, sources, ignore=shutil.ignore_patterns("__pycache__"))
    database = sources / "ai/backend/manager/db"
    (database / f"migrations/versions/{LATER_HEAD}_add_a_remark.py").write_text(_MIGRATION)
    package = database / "__init__.py"
    text = package.read_text()
    head = f'SCHEMA_HEAD = "{SCHEMA_HEAD}"'
    assert head in text
    package.write_text(text.replace(head, f'SCHEMA_HEAD = "{LATER_HEAD}"'))
    return sources
