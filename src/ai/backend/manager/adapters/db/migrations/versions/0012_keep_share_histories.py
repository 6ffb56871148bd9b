"""Keep what the scopes of a resource group used lately.

Revision ID: 0012
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "share_histories",
        sa.Column("resource_group", sa.String(length=64), nullable=False),
        sa.Column("used", sa.Text(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("resource_group", name=op.f("pk_share_histories")),
    )
