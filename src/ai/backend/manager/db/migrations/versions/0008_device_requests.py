"""Keep what sessions and presets ask of their devices as expressions.

Revision ID: 0008
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("sessions", sa.Column("device_requests", sa.Text(), server_default="[]", nullable=False))
    op.add_column("resource_presets", sa.Column("device_requests", sa.Text(), server_default="[]", nullable=False))
