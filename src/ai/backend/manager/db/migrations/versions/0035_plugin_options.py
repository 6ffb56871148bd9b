"""Keep what sessions say to accelerator plugins.

Revision ID: 0035
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0035"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("sessions", sa.Column("plugin_options", sa.Text(), server_default="{}", nullable=False))
