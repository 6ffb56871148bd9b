"""Keep registries of artifacts, what was found in them, and which sessions mount it.

Revision ID: 0007
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "artifact_registries",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("type", sa.String(length=32), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("credentials", sa.Text(), nullable=False),
        sa.Column("storages", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("modified_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_artifact_registries")),
        sa.UniqueConstraint("name", name=op.f("uq_artifact_registries_name")),
    )
    op.create_table(
        "artifacts",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("registry_id", sa.String(length=36), nullable=False),
        sa.Column("type", sa.String(length=32), nullable=False),
        sa.Column("name", sa.String(length=256), nullable=False),
        sa.Column("description", sa.Text(), nullable=False),
        sa.Column("readme", sa.Text(), nullable=True),
        sa.Column("extra", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("scanned_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["registry_id"],
            ["artifact_registries.id"],
            name=op.f("fk_artifacts_registry_id_artifact_registries"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_artifacts")),
        sa.UniqueConstraint("registry_id", "type", "name", name=op.f("uq_artifacts_registry_id_type_name")),
    )
    op.create_index(op.f("ix_artifacts_name"), "artifacts", ["name"], unique=False)
    _create_revisions()


def _create_revisions() -> None:
    op.create_table(
        "artifact_revisions",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("artifact_id", sa.String(length=36), nullable=False),
        sa.Column("version", sa.String(length=256), nullable=False),
        sa.Column("status", sa.String(length=32), nullable=False),
        sa.Column("status_info", sa.Text(), nullable=True),
        sa.Column("status_changed", sa.DateTime(timezone=True), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("residue", sa.Boolean(), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=True),
        sa.Column("file_count", sa.Integer(), nullable=True),
        sa.Column("digest", sa.String(length=128), nullable=True),
        sa.Column("imported_digest", sa.String(length=128), nullable=True),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("remote_status", sa.String(length=32), nullable=True),
        sa.Column("stages", sa.Text(), nullable=True),
        sa.Column("delegated", sa.Boolean(), nullable=False),
        sa.Column("began_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("last_used", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(
            ["artifact_id"],
            ["artifacts.id"],
            name=op.f("fk_artifact_revisions_artifact_id_artifacts"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_artifact_revisions")),
        sa.UniqueConstraint("artifact_id", "version", name=op.f("uq_artifact_revisions_artifact_id_version")),
    )
    op.create_index(op.f("ix_artifact_revisions_residue"), "artifact_revisions", ["residue"], unique=False)
    # Whether an artifact has a revision in a status is asked for every artifact of a list.
    op.create_index(
        "ix_artifact_revisions_status_artifact_id", "artifact_revisions", ["status", "artifact_id"], unique=False
    )
    op.create_table(
        "session_artifacts",
        sa.Column("session_id", sa.String(length=36), nullable=False),
        sa.Column("revision_id", sa.String(length=36), nullable=False),
        sa.ForeignKeyConstraint(
            ["session_id"], ["sessions.id"], name=op.f("fk_session_artifacts_session_id_sessions"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("session_id", "revision_id", name=op.f("pk_session_artifacts")),
    )
    op.create_index(op.f("ix_session_artifacts_revision_id"), "session_artifacts", ["revision_id"], unique=False)
