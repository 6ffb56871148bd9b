"""Keep which circuit had a resting slot.

Revision ID: 0004
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from ai.backend.infra.database import GUID

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("resting_slots", sa.Column("circuit_id", GUID))
    op.add_column("resting_slots", sa.Column("endpoint_id", GUID))
