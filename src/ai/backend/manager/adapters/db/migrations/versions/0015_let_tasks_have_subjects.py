"""Say what a background task works on, and whether somebody wants it to end.

Revision ID: 0015
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("background_tasks", sa.Column("subject", sa.String(128), nullable=False, server_default=""))
    op.add_column("background_tasks", sa.Column("is_unwanted", sa.Boolean(), nullable=False, server_default=sa.false()))
