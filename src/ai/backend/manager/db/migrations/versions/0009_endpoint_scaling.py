"""Keep how endpoints are scaled, the rules, and the last decision with its inputs.

Revision ID: 0009
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

_RULES = "endpoint_scaling_rules"


def upgrade() -> None:
    op.add_column("endpoints", sa.Column("scaling", sa.Text(), nullable=True))
    op.add_column("endpoints", sa.Column("scaled", sa.Text(), nullable=True))
    op.create_table(
        _RULES,
        sa.Column("id", sa.String(36), nullable=False),
        sa.Column("endpoint_id", sa.String(36), nullable=False),
        sa.Column("rule", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["endpoint_id"], ["endpoints.id"], name=op.f(f"fk_{_RULES}_endpoint_id_endpoints"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f(f"pk_{_RULES}")),
    )
    op.create_index(op.f(f"ix_{_RULES}_endpoint_id"), _RULES, ["endpoint_id"])
