"""Keep leases, name the manager of a background task, and let integers of PostgreSQL have 64 bits.

Revision ID: 0009
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "leases",
        sa.Column("name", sa.String(length=128), nullable=False),
        sa.Column("holder", sa.String(length=128), nullable=False),
        sa.Column("token", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_leases")),
    )
    op.add_column("background_tasks", sa.Column("manager", sa.String(length=128), nullable=False, server_default=""))
    if op.get_bind().dialect.name == "postgresql":
        _widen_integers()


def _widen_integers() -> None:
    """SQLite's have 64 bits anyway."""
    found = op.get_bind().execute(
        sa.text(
            "SELECT table_name, column_name, pg_get_serial_sequence(quote_ident(table_name), column_name)"
            " FROM information_schema.columns WHERE table_schema = current_schema() AND data_type = 'integer'"
        )
    )
    for table, column, sequence in found.all():
        op.alter_column(table, column, type_=sa.BigInteger(), existing_type=sa.Integer())
        if sequence is not None:
            op.execute(sa.text(f"ALTER SEQUENCE {sequence} AS BIGINT"))
