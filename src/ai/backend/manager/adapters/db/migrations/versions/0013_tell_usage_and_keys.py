"""Find kernels by when they ran; keep the SSH keys of keypairs and whence users may come.

Revision ID: 0013
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index("ix_kernels_span", "kernels", ["terminated_at", "started_at"])
    with op.batch_alter_table("keypairs") as batch:
        batch.add_column(sa.Column("ssh_public_key", sa.Text(), nullable=True))
    with op.batch_alter_table("users") as batch:
        batch.add_column(sa.Column("allowed_client_ip", sa.Text(), nullable=False, server_default="[]"))
