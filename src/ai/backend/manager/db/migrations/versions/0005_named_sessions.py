"""Index the sessions of a name by owner and age, so that finding the newest reads one row.

Revision ID: 0005
"""

from __future__ import annotations

from alembic import op

from ai.backend.infra.database.online_indexes import create_index

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.drop_index("ix_sessions_name", "sessions")
    create_index("ix_sessions_named", "sessions", ["name", "access_key", "created_at"])
