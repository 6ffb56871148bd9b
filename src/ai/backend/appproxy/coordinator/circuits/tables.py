"""Tables of circuits, resting slots and set-ups."""

from __future__ import annotations

from uuid import UUID

from sqlalchemy import Boolean, Column, ForeignKey, Index, Integer, String, Table, Text, UniqueConstraint

from ai.backend.appproxy.coordinator.circuits.model import Setup
from ai.backend.appproxy.coordinator.db import metadata
from ai.backend.common.wire.appproxy import AppMode, Circuit, InferenceUsage
from ai.backend.infra.database import GUID, JSONText, UTCDateTime, Whole
from ai.backend.infra.database.columns import EnumText, required

circuits = Table(
    "circuits",
    metadata,
    Column("id", GUID, primary_key=True),
    required("worker_id", GUID, ForeignKey("workers.id", ondelete="CASCADE")),
    Column("port", Integer),
    Column("subdomain", String(63)),
    required("app", String(64)),
    required("app_mode", EnumText(AppMode)),
    Column("user_id", GUID),
    Column("endpoint_id", GUID, unique=True),
    required("document", JSONText(Circuit)),
    required("version", Whole),
    required("requests", Whole),
    required("tokens", Whole),
    required("last_used", UTCDateTime),
    Column("failure", Text),
    UniqueConstraint("worker_id", "port"),
    UniqueConstraint("worker_id", "subdomain"),
)

circuit_sessions = Table(
    "circuit_sessions",
    metadata,
    Column("circuit_id", GUID, ForeignKey("circuits.id", ondelete="CASCADE"), primary_key=True),
    Column("session_id", GUID, primary_key=True),
)
Index("ix_circuit_sessions_session_id", circuit_sessions.c.session_id)

endpoint_loads = Table(
    "endpoint_loads",
    metadata,
    Column("worker_id", GUID, primary_key=True),
    Column("node", String(64), primary_key=True),
    Column("circuit_id", GUID, ForeignKey("circuits.id", ondelete="CASCADE"), primary_key=True),
    required("queued", Integer),
    required("wakes", Whole),
    required("in_flight", JSONText(dict[UUID, int])),
)

endpoint_usage = Table(
    "endpoint_usage",
    metadata,
    Column("id", Whole, primary_key=True, autoincrement=True),
    required("document", JSONText(InferenceUsage)),
    required("created_at", UTCDateTime),
    sqlite_autoincrement=True,
)
Index("ix_endpoint_usage_created_at", endpoint_usage.c.created_at)

resting_slots = Table(
    "resting_slots",
    metadata,
    Column("worker_id", GUID, ForeignKey("workers.id", ondelete="CASCADE"), primary_key=True),
    Column("slot", String(63), primary_key=True),
    Column("user_id", GUID),
    Column("until", UTCDateTime),  # NULL: a name stays reserved to its owner
    Column("circuit_id", GUID),  # whose last reports are still counted
    Column("endpoint_id", GUID),
)

setups = Table(
    "setups",
    metadata,
    Column("token_hash", String(64), primary_key=True),
    required("session_id", GUID),
    required("document", JSONText(Setup)),
    required("expires_at", UTCDateTime),
    required("is_used", Boolean),
)
Index("ix_setups_session_id", setups.c.session_id)
