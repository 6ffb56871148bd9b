"""Keep device claims, and which of them sessions name.

Revision ID: 0036
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0036"
down_revision = "0035"
branch_labels = None
depends_on = None

_WHOLE = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_CLAIMS, _SPANS = "device_claims", "claim_spans"


def _text(name: str, length: int, *, nullable: bool = False) -> sa.Column[str]:
    return sa.Column(name, sa.String(length), nullable=nullable)


def _json(name: str) -> sa.Column[str]:
    return sa.Column(name, sa.Text(), nullable=False)


def _time(name: str, *, nullable: bool = False) -> sa.Column[object]:
    return sa.Column(name, sa.DateTime(timezone=True), nullable=nullable)


def upgrade() -> None:
    op.create_table(
        _CLAIMS,
        _text("id", 36),
        _text("name", 64),
        sa.Column("version", _WHOLE, nullable=False),
        _text("status", 32),
        sa.Column("status_info", sa.Text(), nullable=True),
        _time("status_changed"),
        sa.Column("is_deleting", sa.Boolean(), nullable=False),
        _text("domain_name", 64),
        _text("group_id", 36),
        _text("group_name", 64),
        _text("user_id", 36),
        _text("user_email", 256),
        _text("access_key", 20),
        _text("scaling_group", 64),
        _json("requested_slots"),
        _json("device_requests"),
        sa.Column("idle_timeout_s", sa.Float(), nullable=True),
        _time("created_at"),
        _text("agent", 64, nullable=True),
        _json("occupied_slots"),
        _json("devices"),
        _time("allocated_at", nullable=True),
        _time("idle_since", nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f(f"pk_{_CLAIMS}")),
    )
    op.create_index(op.f(f"ix_{_CLAIMS}_agent"), _CLAIMS, ["agent"])
    op.create_index(f"ix_{_CLAIMS}_owner", _CLAIMS, ["access_key"])
    op.create_index(f"uq_{_CLAIMS}_name", _CLAIMS, ["user_id", "group_id", "name"], unique=True)
    op.create_table(
        _SPANS,
        sa.Column("id", _WHOLE, autoincrement=True, nullable=False),
        _text("claim_id", 36),
        _text("domain_name", 64),
        _text("group_id", 36),
        _text("group_name", 64),
        _text("user_id", 36),
        _json("slots"),
        _time("started_at"),
        _time("terminated_at"),
        sa.PrimaryKeyConstraint("id", name=op.f(f"pk_{_SPANS}")),
        sqlite_autoincrement=True,
    )
    op.create_index(op.f(f"ix_{_SPANS}_terminated_at"), _SPANS, ["terminated_at"])
    op.add_column("sessions", _text("claim_id", 36, nullable=True))
    op.add_column("sessions", _text("claim_name", 64, nullable=True))
    for name in ("max_claims", "max_claim_idle_time"):
        op.add_column("keypair_resource_policies", sa.Column(name, _WHOLE, server_default="0", nullable=False))
