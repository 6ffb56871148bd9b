"""Keep which devices sessions of superadmins see without holding them.

Revision ID: 0037
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0037"
down_revision = "0036"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("sessions", sa.Column("diagnosed_devices", sa.Text(), server_default="{}", nullable=False))
