"""Keep templates, dotfiles, the use of sessions and reported errors; bound what waits.

Revision ID: 0008
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    _add_columns()
    op.create_table(
        "session_templates",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("name", sa.String(length=128), nullable=False),
        sa.Column("domain_name", sa.String(length=64), nullable=False),
        sa.Column("group_id", sa.String(length=36), nullable=False),
        sa.Column("group_name", sa.String(length=64), nullable=False),
        sa.Column("user_id", sa.String(length=36), nullable=False),
        sa.Column("user_email", sa.String(length=256), nullable=False),
        sa.Column("document", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("modified_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_session_templates")),
    )
    op.create_index(op.f("ix_session_templates_domain_name"), "session_templates", ["domain_name"], unique=False)
    op.create_index(op.f("ix_session_templates_user_id"), "session_templates", ["user_id"], unique=False)
    op.create_table(
        "dotfiles",
        sa.Column("scope", sa.String(length=32), nullable=False),
        sa.Column("owner", sa.String(length=64), nullable=False),
        sa.Column("path", sa.String(length=1024), nullable=False),
        sa.Column("permission", sa.String(length=4), nullable=False),
        sa.Column("data", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("scope", "owner", "path", name=op.f("pk_dotfiles")),
    )
    op.create_table(
        "bootstrap_scripts",
        sa.Column("access_key", sa.String(length=20), nullable=False),
        sa.Column("script", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("access_key", name=op.f("pk_bootstrap_scripts")),
    )
    op.create_table(
        "session_activities",
        sa.Column("session_id", sa.String(length=36), nullable=False),
        sa.Column("last_access", sa.DateTime(timezone=True), nullable=True),
        sa.Column("usage", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["session_id"], ["sessions.id"], name=op.f("fk_session_activities_session_id_sessions"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("session_id", name=op.f("pk_session_activities")),
    )
    _create_error_logs()


def _add_columns() -> None:
    with op.batch_alter_table("keypair_resource_policies") as batch:
        batch.add_column(sa.Column("max_pending_session_count", sa.Integer(), nullable=False, server_default="0"))
        batch.add_column(
            sa.Column("max_pending_session_resource_slots", sa.Text(), nullable=False, server_default="{}")
        )
    with op.batch_alter_table("kernels") as batch:
        batch.add_column(sa.Column("role_options", sa.Text(), nullable=False, server_default="{}"))


def _create_error_logs() -> None:
    op.create_table(
        "error_logs",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("severity", sa.String(length=16), nullable=False),
        sa.Column("source", sa.String(length=64), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("user_id", sa.String(length=36), nullable=False),
        sa.Column("domain_name", sa.String(length=64), nullable=False),
        sa.Column("context_lang", sa.String(length=64), nullable=False),
        sa.Column("context_env", sa.Text(), nullable=False),
        sa.Column("request_url", sa.Text(), nullable=True),
        sa.Column("request_status", sa.Integer(), nullable=True),
        sa.Column("traceback", sa.Text(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("is_read", sa.Boolean(), nullable=False),
        sa.Column("is_cleared", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_error_logs")),
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_error_logs_created_at"), "error_logs", ["created_at"], unique=False)
    op.create_index(op.f("ix_error_logs_user_id"), "error_logs", ["user_id"], unique=False)
