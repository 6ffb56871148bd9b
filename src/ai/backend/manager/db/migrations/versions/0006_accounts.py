"""Add one-time passwords, old passwords, sign-ins, administrators of projects, and networks of keypairs.

Revision ID: 0006
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

_WHOLE = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_MOMENT = sa.DateTime(timezone=True)


def _owner(table: str) -> sa.ForeignKeyConstraint:
    name = op.f(f"fk_{table}_user_id_users")
    return sa.ForeignKeyConstraint(["user_id"], ["users.uuid"], name=name, ondelete="CASCADE")


def upgrade() -> None:
    for name in ("totp_activated", "sudo_session_enabled"):
        op.add_column("users", sa.Column(name, sa.Boolean(), nullable=False, server_default=sa.false()))
    op.add_column("users", sa.Column("password_changed_at", _MOMENT, nullable=True))
    op.add_column("memberships", sa.Column("is_admin", sa.Boolean(), nullable=False, server_default=sa.false()))
    op.add_column("keypairs", sa.Column("allowed_client_ip", sa.Text(), nullable=False, server_default="[]"))
    op.create_table(
        "totp_devices",
        sa.Column("user_id", sa.String(36), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("is_active", sa.Boolean(), nullable=False),
        sa.Column("created_at", _MOMENT, nullable=False),
        sa.Column("last_step", sa.BigInteger(), nullable=False),
        sa.Column("failures", _WHOLE, nullable=False),
        sa.Column("failed_at", _MOMENT, nullable=True),
        _owner("totp_devices"),
        sa.PrimaryKeyConstraint("user_id", name=op.f("pk_totp_devices")),
    )
    op.create_table(
        "recovery_codes",
        sa.Column("user_id", sa.String(36), nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        _owner("recovery_codes"),
        sa.PrimaryKeyConstraint("user_id", "digest", name=op.f("pk_recovery_codes")),
    )
    op.create_table(
        "old_passwords",
        sa.Column("id", _WHOLE, autoincrement=True, nullable=False),
        sa.Column("user_id", sa.String(36), nullable=False),
        sa.Column("password", sa.Text(), nullable=False),
        _owner("old_passwords"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_old_passwords")),
    )
    op.create_index("ix_old_passwords_user_id", "old_passwords", ["user_id"])
    op.create_table(
        "sign_ins",
        sa.Column("id", _WHOLE, autoincrement=True, nullable=False),
        sa.Column("user_id", sa.String(36), nullable=False),
        sa.Column("at", _MOMENT, nullable=False),
        sa.Column("address", sa.String(64), nullable=False),
        sa.Column("method", sa.String(64), nullable=False),
        sa.Column("outcome", sa.String(64), nullable=False),
        _owner("sign_ins"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_sign_ins")),
    )
    op.create_index("ix_sign_ins_at", "sign_ins", ["at"])
    op.create_index("ix_sign_ins_user_id_id", "sign_ins", ["user_id", "id"])
