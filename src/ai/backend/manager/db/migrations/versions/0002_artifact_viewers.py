"""Add who may use and import artifacts.

Revision ID: 0002
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    everyone = sa.Column("viewers", sa.Text(), nullable=False, server_default='["everyone"]')
    op.add_column("artifact_registries", everyone)
    op.add_column("artifact_registries", sa.Column("user_import_bytes", sa.BigInteger(), nullable=True))
    op.add_column("artifacts", sa.Column("restricted", sa.Boolean(), nullable=False, server_default=sa.false()))
    op.add_column("artifacts", sa.Column("viewers", sa.Text(), nullable=True))
