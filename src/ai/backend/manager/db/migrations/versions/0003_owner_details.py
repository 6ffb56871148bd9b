"""Add when domains and groups were changed, and limits of keypairs.

Revision ID: 0003
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_WHOLE = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    for table in ("domains", "groups"):
        op.add_column(table, sa.Column("modified_at", sa.DateTime(timezone=True), nullable=True))
    op.add_column("keypairs", sa.Column("concurrency_limit", _WHOLE, nullable=False, server_default="0"))
