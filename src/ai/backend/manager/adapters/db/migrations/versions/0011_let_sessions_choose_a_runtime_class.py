"""Let sessions choose a runtime class, and agents offer some.

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
    op.add_column("sessions", sa.Column("runtime_class", sa.String(64), nullable=False, server_default=""))
    op.add_column("agents", sa.Column("runtime_classes", sa.Text(), nullable=False, server_default="[]"))
