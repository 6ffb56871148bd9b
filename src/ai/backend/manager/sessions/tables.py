"""Defines the SQL tables of sessions."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from sqlalchemy import Boolean, Column, Float, ForeignKey, Index, LargeBinary, String, Table, Text, false, select, text

from ai.backend.common import states
from ai.backend.infra.database import GUID, JSONText, QuantityMap, UTCDateTime, Whole
from ai.backend.infra.database.columns import EnumText, JSONTuple, required
from ai.backend.manager.db import metadata
from ai.backend.manager.folders.model import FolderMount
from ai.backend.manager.sessions.model import SessionNetwork

LIVE = text(f"status NOT IN ({', '.join(repr(status.value) for status in sorted(states.FINAL_SESSION_STATUSES))})")
"""The condition of live sessions, in the wording with which SQLite uses their partial index."""

agent_acks = Table(
    "agent_acks",
    metadata,
    Column("agent_id", String(64), primary_key=True),
    required("epoch", Whole),
    required("seq", Whole),
)

sessions = Table(
    "sessions",
    metadata,
    Column("id", GUID, primary_key=True),
    required("name", String(64)),
    required("type", EnumText(states.SessionType)),
    required("status", EnumText(states.SessionStatus), index=True),
    Column("status_info", Text),
    required("status_data", JSONText),
    required("status_history", JSONText),
    required("status_changed", UTCDateTime),
    required("result", EnumText(states.SessionResult)),
    required("version", Whole),
    required("domain_name", String(64)),
    required("group_id", GUID),
    required("group_name", String(64)),
    required("user_id", GUID),
    required("user_email", String(256)),
    required("access_key", String(20)),
    required("created_by", String(20)),
    required("image", String(512)),
    required("architecture", String(32)),
    Column("tag", String(256)),
    required("cluster_mode", EnumText(states.ClusterMode)),
    required("runtime_class", String(64), server_default=""),
    required("cluster_size", Whole),
    Column("vni", Whole),
    Column("network", JSONText(SessionNetwork)),
    required("requested_slots", QuantityMap),
    required("variant_requirements", JSONTuple(str), server_default="[]"),
    required("device_requests", JSONTuple(str), server_default="[]"),
    required("plugin_options", JSONText, server_default="{}"),
    required("diagnosed_devices", JSONText, server_default="{}"),
    required("resource_opts", JSONText),
    required("environ", JSONText),
    required("sealed_environ", JSONText, server_default="{}"),
    required("mounts", JSONTuple(str)),
    required("vfolder_mounts", JSONTuple(FolderMount), server_default="[]"),
    Column("startup_command", Text),
    Column("bootstrap_script", Text),
    Column("callback_url", Text),
    Column("starts_at", UTCDateTime),
    required("dependencies", JSONTuple(UUID)),
    required("scaling_group", String(64)),
    required("designated_agents", JSONTuple(str)),
    required("preopen_ports", JSONTuple(int)),
    Column("batch_timeout_s", Float),
    Column("exec_timeout_s", Float),
    required("priority", Whole),
    required("num_queries", Whole),
    required("reason", EnumText(states.KernelEventReason)),
    Column("not_before", UTCDateTime),
    required("starting_over", Boolean, server_default=false()),
    required("created_at", UTCDateTime),
    Column("scheduled_at", UTCDateTime),
    Column("started_at", UTCDateTime),
    Column("terminated_at", UTCDateTime),
    Column("array_id", GUID),
    Column("array_name", String(64)),
    Column("array_index", Whole),
    Column("array_parallel", Whole),
    Column("claim_id", GUID),
    Column("claim_name", String(64)),
    Column("trace", String(55)),
    Index("ix_sessions_array", "array_id", "array_index"),
    Index("uq_sessions_live_name", "access_key", "name", unique=True, sqlite_where=LIVE),
    Index("uq_sessions_vni", "vni", unique=True),
    Index("ix_sessions_created", "created_at", "id"),
    Index("ix_sessions_owner", "access_key", "created_at"),
    Index("ix_sessions_named", "name", "access_key", "created_at"),
)

LIVE_SESSIONS = select(sessions.c.id, sessions.c.name).where(LIVE)
"""The table of live sessions for the stores of folders and artifacts, which do not remove mounted data."""

kernels = Table(
    "kernels",
    metadata,
    Column("id", GUID, primary_key=True),
    required("session_id", GUID, ForeignKey("sessions.id", ondelete="CASCADE"), index=True),
    required("cluster_role", String(16)),
    required("cluster_idx", Whole),
    required("local_rank", Whole),
    required("cluster_hostname", String(64)),
    required("image", String(512)),
    required("architecture", String(32)),
    required("status", EnumText(states.KernelStatus), index=True),
    required("reason", EnumText(states.KernelEventReason)),
    Column("status_info", Text),
    required("status_data", JSONText),
    required("status_changed", UTCDateTime),
    required("attempt", Whole),
    Column("agent", String(64), index=True),
    required("requested_slots", QuantityMap),
    required("occupied_slots", QuantityMap),
    required("devices", JSONText),
    required("generation", Whole),
    required("attached_devices", JSONText),
    required("service_ports", JSONTuple(dict[str, Any])),
    Column("container_id", String(128)),
    Column("exit_code", Whole),
    required("role_options", JSONText, server_default="{}"),
    Column("last_stat", JSONText),
    required("created_at", UTCDateTime),
    Column("started_at", UTCDateTime),
    Column("terminated_at", UTCDateTime),
    Index("ix_kernels_span", "terminated_at", "started_at"),
)

device_claims = Table(
    "device_claims",
    metadata,
    Column("id", GUID, primary_key=True),
    required("name", String(64)),
    required("version", Whole),
    required("status", EnumText(states.ClaimStatus)),
    Column("status_info", Text),
    required("status_changed", UTCDateTime),
    required("is_deleting", Boolean),
    required("domain_name", String(64)),
    required("group_id", GUID),
    required("group_name", String(64)),
    required("user_id", GUID),
    required("user_email", String(256)),
    required("access_key", String(20)),
    required("scaling_group", String(64)),
    required("requested_slots", QuantityMap),
    required("device_requests", JSONTuple(str)),
    Column("idle_timeout_s", Float),
    required("created_at", UTCDateTime),
    Column("agent", String(64), index=True),
    required("occupied_slots", QuantityMap),
    required("devices", JSONText),
    Column("allocated_at", UTCDateTime),
    Column("idle_since", UTCDateTime),
    Index("uq_device_claims_name", "user_id", "group_id", "name", unique=True),
    Index("ix_device_claims_owner", "access_key"),
)

claim_spans = Table(
    "claim_spans",
    metadata,
    Column("id", Whole, primary_key=True, autoincrement=True),
    required("claim_id", GUID),
    required("domain_name", String(64)),
    required("group_id", GUID),
    required("group_name", String(64)),
    required("user_id", GUID),
    required("slots", QuantityMap),
    required("started_at", UTCDateTime),
    required("terminated_at", UTCDateTime, index=True),
    sqlite_autoincrement=True,
)
"""The periods in which claims held devices, for reports of usage."""

session_dependencies = Table(
    "session_dependencies",
    metadata,
    Column("session_id", GUID, ForeignKey("sessions.id", ondelete="CASCADE"), primary_key=True),
    Column("depends_on", GUID, primary_key=True, index=True),
)

kernel_logs = Table(
    "kernel_logs",
    metadata,
    Column("kernel_id", GUID, ForeignKey("kernels.id", ondelete="CASCADE"), primary_key=True),
    required("tail", LargeBinary),
)

session_callbacks = Table(
    "session_callbacks",
    metadata,
    Column("id", Whole, primary_key=True, autoincrement=True),
    required("session_id", GUID, index=True),
    required("access_key", String(20)),
    required("url", Text),
    required("body", JSONText),
    required("attempts", Whole),
    required("due_at", UTCDateTime),
    Column("trace", String(55)),
    sqlite_autoincrement=True,
)

session_events = Table(
    "session_events",
    metadata,
    Column("id", Whole, primary_key=True, autoincrement=True),
    required("name", String(64)),
    required("session_id", GUID, index=True),
    Column("kernel_id", GUID),
    required("access_key", String(20)),
    required("domain_name", String(64)),
    required("group_id", GUID),
    required("user_id", GUID),
    required("at", UTCDateTime, index=True),
    required("payload", JSONText),
    sqlite_autoincrement=True,  # ids are never used again, also after the newest rows were purged
)
