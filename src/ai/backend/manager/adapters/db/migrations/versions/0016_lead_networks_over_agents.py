"""Let sessions have networks over several agents.

Revision ID: 0016
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("sessions", sa.Column("vni", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=True))
    op.add_column("sessions", sa.Column("network", sa.Text(), nullable=True))
    op.create_index("uq_sessions_vni", "sessions", ["vni"], unique=True)
    op.add_column("agents", sa.Column("overlay", sa.Text(), nullable=True))
