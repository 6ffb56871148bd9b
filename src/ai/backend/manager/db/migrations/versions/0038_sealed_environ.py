"""Keep environment variables of sessions that are secret.

Revision ID: 0038
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0038"
down_revision = "0037"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("sessions", sa.Column("sealed_environ", sa.Text(), server_default="{}", nullable=False))
