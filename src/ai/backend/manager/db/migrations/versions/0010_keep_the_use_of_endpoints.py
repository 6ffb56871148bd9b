"""Keep what tokens used at replicas of endpoints, hour by hour.

Revision ID: 0010
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

_USAGE = "endpoint_usage"
_WHOLE = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_SUMS = ("requests", "errors", "prompt_tokens", "cached_tokens", "output_tokens", "estimated", "busy_ms")


def upgrade() -> None:
    op.create_table(
        _USAGE,
        sa.Column("id", sa.String(36), nullable=False),
        sa.Column("endpoint_id", sa.String(36), nullable=False),
        sa.Column("hour", _WHOLE, nullable=False),
        sa.Column("token", sa.String(64), nullable=False),
        *(sa.Column(name, sa.String(36), nullable=True) for name in ("user_id", "revision_id", "replica_id")),
        *(sa.Column(name, _WHOLE, nullable=False) for name in _SUMS),
        sa.ForeignKeyConstraint(
            ["endpoint_id"], ["endpoints.id"], name=op.f(f"fk_{_USAGE}_endpoint_id_endpoints"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f(f"pk_{_USAGE}")),
    )
    op.create_index(op.f(f"ix_{_USAGE}_hour"), _USAGE, ["hour"])
    op.create_index(f"ix_{_USAGE}_endpoint", _USAGE, ["endpoint_id", "hour"])
    op.create_table(
        "endpoint_usage_positions",
        sa.Column("source", sa.String(64), nullable=False),
        sa.Column("last", _WHOLE, nullable=False),
        sa.PrimaryKeyConstraint("source", name=op.f("pk_endpoint_usage_positions")),
    )
