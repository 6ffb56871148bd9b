"""Keep the trace that each session belongs to, for its steps and its callbacks.

Revision ID: 0011
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("sessions", sa.Column("trace", sa.String(55), nullable=True))
    op.add_column("session_callbacks", sa.Column("trace", sa.String(55), nullable=True))
