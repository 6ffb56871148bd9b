"""Add the array of a session.

Revision ID: 0004
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from ai.backend.infra.database.online_indexes import create_index

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

_WHOLE = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.add_column("sessions", sa.Column("array_id", sa.String(36), nullable=True))
    op.add_column("sessions", sa.Column("array_name", sa.String(64), nullable=True))
    op.add_column("sessions", sa.Column("array_index", _WHOLE, nullable=True))
    op.add_column("sessions", sa.Column("array_parallel", _WHOLE, nullable=True))
    create_index("ix_sessions_array", "sessions", ["array_id", "array_index"])
