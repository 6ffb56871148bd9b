"""Add the load and the use of endpoints.

Revision ID: 0002
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_WHOLE = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "endpoint_loads",
        sa.Column("worker_id", sa.String(36), nullable=False),
        sa.Column("node", sa.String(length=64), nullable=False),
        sa.Column("circuit_id", sa.String(36), nullable=False),
        sa.Column("queued", sa.Integer(), nullable=False),
        sa.Column("wakes", _WHOLE, nullable=False),
        sa.Column("in_flight", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["circuit_id"], ["circuits.id"], name="fk_endpoint_loads_circuit_id_circuits", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("worker_id", "node", "circuit_id", name="pk_endpoint_loads"),
    )
    op.create_table(
        "endpoint_usage",
        sa.Column("id", _WHOLE, nullable=False, autoincrement=True),
        sa.Column("document", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_endpoint_usage"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_endpoint_usage_created_at", "endpoint_usage", ["created_at"])
