"""Keep images of registries and their aliases, and which registries a domain may use.

Revision ID: 0010
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("domains") as batch:
        batch.add_column(sa.Column("allowed_docker_registries", sa.Text(), nullable=True))
    op.create_table(
        "images",
        sa.Column("name", sa.String(length=512), nullable=False),
        sa.Column("architecture", sa.String(length=32), nullable=False),
        sa.Column("repository", sa.String(length=512), nullable=False),
        sa.Column("registry", sa.String(length=256), nullable=False),
        sa.Column("project", sa.String(length=256), nullable=False),
        sa.Column("digest", sa.String(length=256), nullable=False),
        sa.Column("config_digest", sa.String(length=256), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("labels", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("scanned_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("name", "architecture", name=op.f("pk_images")),
    )
    # A session names an image by its name, with a tag or without.
    op.create_index(op.f("ix_images_repository"), "images", ["repository"], unique=False)
    op.create_index("ix_images_registry_scanned_at", "images", ["registry", "scanned_at"], unique=False)
    op.create_table(
        "image_aliases",
        sa.Column("alias", sa.String(length=128), nullable=False),
        sa.Column("image", sa.String(length=512), nullable=False),
        sa.Column("architecture", sa.String(length=32), nullable=False),
        sa.PrimaryKeyConstraint("alias", name=op.f("pk_image_aliases")),
    )
    op.create_index(op.f("ix_image_aliases_image"), "image_aliases", ["image"], unique=False)
