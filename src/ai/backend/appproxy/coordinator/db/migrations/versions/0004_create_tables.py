"""Create the tables of the coordinator.

Revision ID: 0004
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = None
branch_labels = None
depends_on = None
previous_program = "the program of commit f9319a09"
"""The program that upgrades a database of an earlier revision to this one; errors name it."""

_ID = sa.String(36)
_TEXT = sa.Text()
_TIME = sa.DateTime(timezone=True)
_WHOLE = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def _required(name: str, kind: Any, **options: Any) -> sa.Column[Any]:
    return sa.Column(name, kind, nullable=False, **options)


def upgrade() -> None:
    op.create_table(
        "authorities",
        _required("id", sa.Integer(), autoincrement=False),
        _required("key", _TEXT),
        _required("certificate", _TEXT),
        sa.PrimaryKeyConstraint("id", name="pk_authorities"),
    )
    op.create_table(
        "setups",
        _required("token_hash", sa.String(64)),
        _required("session_id", _ID),
        _required("document", _TEXT),
        _required("expires_at", _TIME),
        _required("is_used", sa.Boolean()),
        sa.PrimaryKeyConstraint("token_hash", name="pk_setups"),
    )
    op.create_index("ix_setups_session_id", "setups", ["session_id"])
    op.create_table(
        "workers",
        _required("id", _ID),
        _required("authority", sa.String(255)),
        _required("frontend_mode", sa.String(32)),
        _required("protocol", sa.String(32)),
        _required("hostname", sa.String(255)),
        _required("use_tls", sa.Boolean()),
        _required("api_port", sa.Integer()),
        sa.Column("low_port", sa.Integer()),
        sa.Column("high_port", sa.Integer()),
        sa.Column("wildcard_domain", sa.String(255)),
        sa.Column("wildcard_port", sa.Integer()),
        _required("filtered_apps_only", sa.Boolean()),
        _required("accepted_traffics", _TEXT),
        _required("app_filters", _TEXT),
        _required("created_at", _TIME),
        _required("updated_at", _TIME),
        _required("version", _WHOLE),
        sa.UniqueConstraint("authority", name="uq_workers_authority"),
        sa.PrimaryKeyConstraint("id", name="pk_workers"),
    )
    op.create_table(
        "circuits",
        _required("id", _ID),
        _required("worker_id", _ID),
        sa.Column("port", sa.Integer()),
        sa.Column("subdomain", sa.String(63)),
        _required("app", sa.String(64)),
        _required("app_mode", sa.String(32)),
        sa.Column("user_id", _ID),
        sa.Column("endpoint_id", _ID),
        _required("document", _TEXT),
        _required("version", _WHOLE),
        _required("requests", _WHOLE),
        _required("last_used", _TIME),
        sa.Column("failure", _TEXT),
        _required("tokens", _WHOLE, server_default="0"),
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
        _required("worker_id", _ID),
        _required("slot", sa.String(63)),
        sa.Column("user_id", _ID),
        sa.Column("until", _TIME),
        sa.Column("circuit_id", _ID),
        sa.Column("endpoint_id", _ID),
        sa.ForeignKeyConstraint(
            ["worker_id"], ["workers.id"], name="fk_resting_slots_worker_id_workers", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("worker_id", "slot", name="pk_resting_slots"),
    )
    op.create_table(
        "worker_nodes",
        _required("worker_id", _ID),
        _required("node", sa.String(64)),
        _required("seen_at", _TIME),
        _required("is_linked", sa.Boolean()),
        _required("acked", _WHOLE),
        _required("sequence", _WHOLE),
        sa.PrimaryKeyConstraint("worker_id", "node", name="pk_worker_nodes"),
        sa.ForeignKeyConstraint(
            ["worker_id"], ["workers.id"], name="fk_worker_nodes_worker_id_workers", ondelete="CASCADE"
        ),
    )
    op.create_table(
        "circuit_sessions",
        _required("circuit_id", _ID),
        _required("session_id", _ID),
        sa.ForeignKeyConstraint(
            ["circuit_id"], ["circuits.id"], name="fk_circuit_sessions_circuit_id_circuits", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("circuit_id", "session_id", name="pk_circuit_sessions"),
    )
    op.create_index("ix_circuit_sessions_session_id", "circuit_sessions", ["session_id"])
    op.create_table(
        "endpoint_loads",
        _required("worker_id", _ID),
        _required("node", sa.String(64)),
        _required("circuit_id", _ID),
        _required("queued", sa.Integer()),
        _required("wakes", _WHOLE),
        _required("in_flight", _TEXT),
        sa.ForeignKeyConstraint(
            ["circuit_id"], ["circuits.id"], name="fk_endpoint_loads_circuit_id_circuits", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("worker_id", "node", "circuit_id", name="pk_endpoint_loads"),
    )
    op.create_table(
        "endpoint_usage",
        _required("id", _WHOLE, autoincrement=True),
        _required("document", _TEXT),
        _required("created_at", _TIME),
        sa.PrimaryKeyConstraint("id", name="pk_endpoint_usage"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_endpoint_usage_created_at", "endpoint_usage", ["created_at"])
