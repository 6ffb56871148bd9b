"""Create the tables of the coordinator.

Revision ID: 0001
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_WHOLE = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "authorities",
        sa.Column("id", sa.Integer(), nullable=False, autoincrement=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("certificate", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_authorities"),
    )
    op.create_table(
        "setups",
        sa.Column("token_hash", sa.String(length=64), nullable=False),
        sa.Column("session_id", sa.String(36), nullable=False),
        sa.Column("document", sa.Text(), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("is_used", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("token_hash", name="pk_setups"),
    )
    op.create_index("ix_setups_session_id", "setups", ["session_id"])
    op.create_table(
        "workers",
        sa.Column("id", sa.String(36), nullable=False),
        sa.Column("authority", sa.String(length=255), nullable=False),
        sa.Column("frontend_mode", sa.String(32), nullable=False),
        sa.Column("protocol", sa.String(32), nullable=False),
        sa.Column("hostname", sa.String(length=255), nullable=False),
        sa.Column("use_tls", sa.Boolean(), nullable=False),
        sa.Column("api_port", sa.Integer(), nullable=False),
        sa.Column("low_port", sa.Integer(), nullable=True),
        sa.Column("high_port", sa.Integer(), nullable=True),
        sa.Column("wildcard_domain", sa.String(length=255), nullable=True),
        sa.Column("wildcard_port", sa.Integer(), nullable=True),
        sa.Column("filtered_apps_only", sa.Boolean(), nullable=False),
        sa.Column("accepted_traffics", sa.Text(), nullable=False),
        sa.Column("app_filters", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("version", _WHOLE, nullable=False),
        sa.UniqueConstraint("authority", name="uq_workers_authority"),
        sa.PrimaryKeyConstraint("id", name="pk_workers"),
    )
    op.create_table(
        "circuits",
        sa.Column("id", sa.String(36), nullable=False),
        sa.Column("worker_id", sa.String(36), nullable=False),
        sa.Column("port", sa.Integer(), nullable=True),
        sa.Column("subdomain", sa.String(length=63), nullable=True),
        sa.Column("app", sa.String(length=64), nullable=False),
        sa.Column("app_mode", sa.String(32), nullable=False),
        sa.Column("user_id", sa.String(36), nullable=True),
        sa.Column("endpoint_id", sa.String(36), nullable=True),
        sa.Column("document", sa.Text(), nullable=False),
        sa.Column("version", _WHOLE, nullable=False),
        sa.Column("requests", _WHOLE, nullable=False),
        sa.Column("last_used", sa.DateTime(timezone=True), nullable=False),
        sa.Column("failure", sa.Text(), nullable=True),
        sa.UniqueConstraint("worker_id", "port", name="uq_circuits_worker_id_port"),
        sa.UniqueConstraint("worker_id", "subdomain", name="uq_circuits_worker_id_subdomain"),
        sa.ForeignKeyConstraint(
            ["worker_id"], ["workers.id"], name="fk_circuits_worker_id_workers", ondelete="CASCADE"
        ),
        sa.UniqueConstraint("endpoint_id", name="uq_circuits_endpoint_id"),
        sa.PrimaryKeyConstraint("id", name="pk_circuits"),
    )
    op.create_table(
        "resting_slots",
        sa.Column("worker_id", sa.String(36), nullable=False),
        sa.Column("slot", sa.String(length=63), nullable=False),
        sa.Column("user_id", sa.String(36), nullable=True),
        sa.Column("until", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(
            ["worker_id"], ["workers.id"], name="fk_resting_slots_worker_id_workers", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("worker_id", "slot", name="pk_resting_slots"),
    )
    op.create_table(
        "worker_nodes",
        sa.Column("worker_id", sa.String(36), nullable=False),
        sa.Column("node", sa.String(length=64), nullable=False),
        sa.Column("seen_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("is_linked", sa.Boolean(), nullable=False),
        sa.Column("acked", _WHOLE, nullable=False),
        sa.Column("sequence", _WHOLE, nullable=False),
        sa.PrimaryKeyConstraint("worker_id", "node", name="pk_worker_nodes"),
        sa.ForeignKeyConstraint(
            ["worker_id"], ["workers.id"], name="fk_worker_nodes_worker_id_workers", ondelete="CASCADE"
        ),
    )
    op.create_table(
        "circuit_sessions",
        sa.Column("circuit_id", sa.String(36), nullable=False),
        sa.Column("session_id", sa.String(36), nullable=False),
        sa.ForeignKeyConstraint(
            ["circuit_id"], ["circuits.id"], name="fk_circuit_sessions_circuit_id_circuits", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("circuit_id", "session_id", name="pk_circuit_sessions"),
    )
    op.create_index("ix_circuit_sessions_session_id", "circuit_sessions", ["session_id"])
