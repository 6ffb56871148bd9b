"""Keep virtual folders, who shares them, and which sessions mount them.

Revision ID: 0005
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

_KEEPS_NAME = sa.text("status NOT IN ('delete-complete', 'delete-error', 'delete-ongoing', 'delete-pending')")
_PENDING = sa.text("state = 'pending'")


def upgrade() -> None:
    for table in ("domains", "groups"):
        op.add_column(table, sa.Column("allowed_vfolder_hosts", sa.Text(), nullable=False, server_default="{}"))
    op.add_column("sessions", sa.Column("vfolder_mounts", sa.Text(), nullable=False, server_default="[]"))
    op.create_table(
        "vfolders",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("host", sa.String(length=128), nullable=False),
        sa.Column("quota_scope", sa.String(length=64), nullable=False),
        sa.Column("domain_name", sa.String(length=64), nullable=False),
        sa.Column("ownership_type", sa.String(length=32), nullable=False),
        sa.Column("user_id", sa.String(length=36), nullable=True),
        sa.Column("group_id", sa.String(length=36), nullable=True),
        sa.Column("usage_mode", sa.String(length=32), nullable=False),
        sa.Column("permission", sa.String(length=32), nullable=False),
        sa.Column("status", sa.String(length=32), nullable=False),
        sa.Column("status_info", sa.Text(), nullable=True),
        sa.Column("status_changed", sa.DateTime(timezone=True), nullable=False),
        sa.Column("cloneable", sa.Boolean(), nullable=False),
        sa.Column("cloned_from", sa.String(length=36), nullable=True),
        sa.Column("creator", sa.String(length=256), nullable=False),
        sa.Column("max_size", sa.BigInteger(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("last_used", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_vfolders")),
    )
    for column in ("user_id", "group_id", "status"):
        op.create_index(op.f(f"ix_vfolders_{column}"), "vfolders", [column], unique=False)
    op.create_index(
        "uq_vfolders_live_name",
        "vfolders",
        ["quota_scope", "name"],
        unique=True,
        sqlite_where=_KEEPS_NAME,
        postgresql_where=_KEEPS_NAME,
    )
    _create_sharing()


def _create_sharing() -> None:
    op.create_table(
        "vfolder_permissions",
        sa.Column("folder_id", sa.String(length=36), nullable=False),
        sa.Column("user_id", sa.String(length=36), nullable=False),
        sa.Column("permission", sa.String(length=32), nullable=False),
        sa.ForeignKeyConstraint(
            ["folder_id"], ["vfolders.id"], name=op.f("fk_vfolder_permissions_folder_id_vfolders"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("folder_id", "user_id", name=op.f("pk_vfolder_permissions")),
    )
    op.create_index(op.f("ix_vfolder_permissions_user_id"), "vfolder_permissions", ["user_id"], unique=False)
    op.create_table(
        "vfolder_invitations",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("folder_id", sa.String(length=36), nullable=False),
        sa.Column("inviter", sa.String(length=256), nullable=False),
        sa.Column("invitee", sa.String(length=256), nullable=False),
        sa.Column("permission", sa.String(length=32), nullable=False),
        sa.Column("state", sa.String(length=32), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("modified_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["folder_id"], ["vfolders.id"], name=op.f("fk_vfolder_invitations_folder_id_vfolders"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_vfolder_invitations")),
    )
    for column in ("inviter", "invitee"):
        op.create_index(op.f(f"ix_vfolder_invitations_{column}"), "vfolder_invitations", [column], unique=False)
    op.create_index(
        "uq_vfolder_invitations_pending",
        "vfolder_invitations",
        ["folder_id", "invitee"],
        unique=True,
        sqlite_where=_PENDING,
        postgresql_where=_PENDING,
    )
    op.create_table(
        "session_vfolders",
        sa.Column("session_id", sa.String(length=36), nullable=False),
        sa.Column("folder_id", sa.String(length=36), nullable=False),
        sa.ForeignKeyConstraint(
            ["session_id"], ["sessions.id"], name=op.f("fk_session_vfolders_session_id_sessions"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("session_id", "folder_id", name=op.f("pk_session_vfolders")),
    )
    op.create_index(op.f("ix_session_vfolders_folder_id"), "session_vfolders", ["folder_id"], unique=False)
