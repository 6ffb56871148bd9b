"""Add endpoints of model services with their revisions, replicas, tokens and events.

Revision ID: 0007
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

_WHOLE = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_GUID = sa.String(36)
_TIME = sa.DateTime(timezone=True)


def _required(name: str, kind: Any) -> sa.Column[Any]:
    return sa.Column(name, kind, nullable=False)


def _of_endpoint(table: str) -> sa.ForeignKeyConstraint:
    name = op.f(f"fk_{table}_endpoint_id_endpoints")
    return sa.ForeignKeyConstraint(["endpoint_id"], ["endpoints.id"], name=name, ondelete="CASCADE")


def upgrade() -> None:
    op.create_table(
        "endpoints",
        _required("id", _GUID),
        _required("name", sa.String(64)),
        sa.Column("active_name", sa.String(64), nullable=True),
        _required("version", _WHOLE),
        _required("status", sa.String(32)),
        _required("reason", sa.String(32)),
        _required("domain_name", sa.String(64)),
        _required("group_id", _GUID),
        _required("group_name", sa.String(64)),
        _required("user_id", _GUID),
        _required("user_email", sa.String(256)),
        _required("access_key", sa.String(20)),
        _required("created_by", sa.String(20)),
        _required("resource_group", sa.String(64)),
        _required("open_to_public", sa.Boolean()),
        _required("desired", _WHOLE),
        sa.Column("url", sa.Text(), nullable=True),
        _required("published", sa.String(64)),
        _required("policy", sa.Text()),
        _required("explanation", sa.Text()),
        sa.Column("problem", sa.Text(), nullable=True),
        _required("created_at", _TIME),
        _required("changed_at", _TIME),
        sa.Column("destroyed_at", _TIME, nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_endpoints")),
        sa.UniqueConstraint("user_id", "active_name", name=op.f("uq_endpoints_user_id_active_name")),
    )
    op.create_index(op.f("ix_endpoints_status"), "endpoints", ["status"])
    op.create_table(
        "endpoint_revisions",
        _required("id", _GUID),
        _required("endpoint_id", _GUID),
        _required("number", _WHOLE),
        _required("status", sa.String(32)),
        _required("reason", sa.String(32)),
        _required("spec", sa.Text()),
        _required("failures", _WHOLE),
        sa.Column("failed_at", _TIME, nullable=True),
        _required("step", _WHOLE),
        sa.Column("step_since", _TIME, nullable=True),
        _required("weight", sa.Float()),
        _required("created_at", _TIME),
        _required("changed_at", _TIME),
        _of_endpoint("endpoint_revisions"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_endpoint_revisions")),
        sa.UniqueConstraint("endpoint_id", "number", name=op.f("uq_endpoint_revisions_endpoint_id_number")),
    )
    op.create_table(
        "endpoint_replicas",
        _required("id", _GUID),
        _required("endpoint_id", _GUID),
        _required("revision_id", _GUID),
        _required("status", sa.String(32)),
        _required("reason", sa.String(32)),
        sa.Column("detail", sa.Text(), nullable=True),
        _required("traffic_ratio", sa.Float()),
        sa.Column("route", sa.Text(), nullable=True),
        _required("created_at", _TIME),
        _required("changed_at", _TIME),
        sa.Column("started_at", _TIME, nullable=True),
        sa.Column("ready_at", _TIME, nullable=True),
        _of_endpoint("endpoint_replicas"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_endpoint_replicas")),
    )
    op.create_index(op.f("ix_endpoint_replicas_endpoint_id"), "endpoint_replicas", ["endpoint_id"])
    op.create_table(
        "endpoint_tokens",
        _required("id", _GUID),
        _required("endpoint_id", _GUID),
        _required("user_id", _GUID),
        _required("domain_name", sa.String(64)),
        _required("group_id", _GUID),
        _required("created_at", _TIME),
        _required("valid_until", _TIME),
        _of_endpoint("endpoint_tokens"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_endpoint_tokens")),
    )
    op.create_index(op.f("ix_endpoint_tokens_endpoint_id"), "endpoint_tokens", ["endpoint_id"])
    op.create_table(
        "endpoint_events",
        _required("id", _WHOLE),
        _required("endpoint_id", _GUID),
        _required("at", _TIME),
        _required("subject", sa.String(64)),
        _required("status", sa.String(32)),
        _required("reason", sa.String(64)),
        sa.Column("detail", sa.Text(), nullable=True),
        _required("data", sa.Text()),
        _of_endpoint("endpoint_events"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_endpoint_events")),
    )
    op.create_index("ix_endpoint_events_endpoint", "endpoint_events", ["endpoint_id", "id"])
    op.create_index(op.f("ix_endpoint_events_at"), "endpoint_events", ["at"])
