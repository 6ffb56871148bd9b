"""Say where agents are, and how many kernels they take.

Revision ID: 0014
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("agents", sa.Column("location", sa.Text(), nullable=False, server_default="[]"))
    op.add_column("agents", sa.Column("kernel_limit", sa.Integer(), nullable=True))
