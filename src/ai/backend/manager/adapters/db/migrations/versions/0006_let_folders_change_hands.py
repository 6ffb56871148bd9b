"""Let folders change hands and lie outside of volumes; give groups a type; bound quota scopes by policies.

Revision ID: 0006
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

_KEEPS_NAME = sa.text("status NOT IN ('delete-complete', 'delete-error', 'delete-ongoing', 'delete-pending')")


def upgrade() -> None:
    op.add_column("groups", sa.Column("type", sa.String(length=32), nullable=False, server_default="GENERAL"))
    for table in ("users", "groups"):
        policy = sa.Column("resource_policy", sa.String(length=256), nullable=False, server_default="default")
        op.add_column(table, policy)
    op.create_table(
        "storage_policies",
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("name", sa.String(length=256), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("max_vfolder_count", sa.Integer(), nullable=False),
        sa.Column("max_quota_scope_size", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("kind", "name", name=op.f("pk_storage_policies")),
    )
    op.create_table(
        "quota_limits",
        sa.Column("host", sa.String(length=128), nullable=False),
        sa.Column("quota_scope", sa.String(length=64), nullable=False),
        sa.Column("limit_bytes", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("host", "quota_scope", name=op.f("pk_quota_limits")),
    )
    op.add_column("vfolders", sa.Column("unmanaged_path", sa.Text(), nullable=True))
    op.drop_index("uq_vfolders_live_name", table_name="vfolders")
    for owner in ("user", "group"):
        op.create_index(
            f"uq_vfolders_live_name_of_{owner}",
            "vfolders",
            [f"{owner}_id", "name"],
            unique=True,
            sqlite_where=_KEEPS_NAME,
            postgresql_where=_KEEPS_NAME,
        )
