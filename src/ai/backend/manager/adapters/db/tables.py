"""The tables of the manager (peer facts 4.4). Column names of sessions, kernels and agents are the fields of the
model."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Float,
    ForeignKey,
    Index,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
    false,
    text,
)

from ai.backend.common.states import (
    FINAL_SESSION_STATUSES,
    AgentStatus,
    ClusterMode,
    GroupType,
    KernelEventReason,
    KernelStatus,
    SessionResult,
    SessionStatus,
    SessionType,
    SlotType,
    UserRole,
    UserStatus,
)
from ai.backend.common.volume_paths import QuotaScopeKind
from ai.backend.common.wire.reports import ImageReport, OverlayReport, PluginReport, RuntimeClassReport
from ai.backend.infra.database import GUID, JSONText, QuantityMap, UTCDateTime, Whole, naming_convention
from ai.backend.infra.database.columns import EnumText, JSONOf, JSONTuple
from ai.backend.manager.model.folder import FolderMount
from ai.backend.manager.model.journal import TaskStatus
from ai.backend.manager.model.network import SessionNetwork

metadata = MetaData(naming_convention=naming_convention)

LIVE = text(f"status NOT IN ({', '.join(repr(s.value) for s in sorted(FINAL_SESSION_STATUSES))})")
"""In these words SQLite sees that the partial index of live sessions answers a query."""


def required(name: str, kind: Any, *constraints: ForeignKey, **options: Any) -> Column[Any]:
    """Return a column that is never NULL."""
    return Column(name, kind, *constraints, nullable=False, **options)


domains = Table(
    "domains",
    metadata,
    Column("name", String(64), primary_key=True),
    required("description", Text),
    required("is_active", Boolean),
    required("created_at", UTCDateTime),
    required("total_resource_slots", QuantityMap),
    required("allowed_vfolder_hosts", JSONText, server_default="{}"),
    Column("allowed_docker_registries", JSONText),
    Column("integration_id", String(512)),
)

groups = Table(
    "groups",
    metadata,
    Column("id", GUID, primary_key=True),
    required("name", String(64)),
    required("domain_name", String(64)),
    required("description", Text),
    required("is_active", Boolean),
    required("created_at", UTCDateTime),
    required("total_resource_slots", QuantityMap),
    required("allowed_vfolder_hosts", JSONText, server_default="{}"),
    Column("integration_id", String(512)),
    required("type", EnumText(GroupType), server_default=GroupType.GENERAL.value),
    required("resource_policy", String(256), server_default="default"),
    UniqueConstraint("domain_name", "name"),
)

users = Table(
    "users",
    metadata,
    Column("uuid", GUID, primary_key=True),
    required("username", String(64), unique=True),
    required("email", String(256), unique=True),
    Column("password", Text),
    required("role", EnumText(UserRole)),
    required("domain_name", String(64)),
    required("full_name", String(256)),
    required("description", Text),
    required("need_password_change", Boolean),
    required("status", EnumText(UserStatus)),
    Column("status_info", Text),
    required("created_at", UTCDateTime),
    required("modified_at", UTCDateTime),
    Column("main_access_key", String(20)),
    required("resource_policy", String(256), server_default="default"),
    required("allowed_client_ip", JSONTuple(str), server_default="[]"),
)

memberships = Table(
    "memberships",
    metadata,
    Column("user_id", GUID, ForeignKey("users.uuid", ondelete="CASCADE"), primary_key=True),
    Column("group_id", GUID, ForeignKey("groups.id", ondelete="CASCADE"), primary_key=True),
)

keypairs = Table(
    "keypairs",
    metadata,
    Column("access_key", String(20), primary_key=True),
    required("secret_key", Text),  # sealed, see sealing.py
    required("user_id", GUID, index=True),
    required("is_active", Boolean),
    required("is_admin", Boolean),
    required("created_at", UTCDateTime),
    required("modified_at", UTCDateTime),
    Column("last_used", UTCDateTime),
    required("resource_policy", String(256)),
    required("rate_limit", Whole),
    required("num_queries", Whole),
    Column("ssh_public_key", Text),
)

policies = Table(
    "keypair_resource_policies",
    metadata,
    Column("name", String(256), primary_key=True),
    required("created_at", UTCDateTime),
    required("default_for_unspecified", String(32)),
    required("total_resource_slots", QuantityMap),
    required("max_concurrent_sessions", Whole),
    required("max_containers_per_session", Whole),
    required("max_pending_session_count", Whole, server_default="0"),
    required("max_pending_session_resource_slots", QuantityMap, server_default="{}"),
    required("max_session_lifetime", Whole),
    required("idle_timeout", Whole),
    required("max_vfolder_count", Whole),
    required("max_vfolder_size", Whole),
    required("allowed_vfolder_hosts", JSONText),
)

storage_policies = Table(
    "storage_policies",
    metadata,
    Column("kind", EnumText(QuotaScopeKind), primary_key=True),
    Column("name", String(256), primary_key=True),
    required("created_at", UTCDateTime),
    required("max_vfolder_count", Whole),
    required("max_quota_scope_size", BigInteger),
)

resource_groups = Table(
    "scaling_groups",
    metadata,
    Column("name", String(64), primary_key=True),
    required("description", Text),
    required("is_active", Boolean),
    required("is_public", Boolean),
    required("created_at", UTCDateTime),
    required("driver", String(64)),
    required("driver_opts", JSONText),
    required("scheduler", String(64)),
    required("scheduler_opts", JSONText),
    required("use_host_network", Boolean),
    Column("wsproxy_addr", String(1024)),
    Column("wsproxy_api_token", String(128)),
)

resource_group_links = Table(
    "scaling_group_links",
    metadata,
    Column("scaling_group", String(64), ForeignKey("scaling_groups.name", ondelete="CASCADE"), primary_key=True),
    Column("kind", String(16), primary_key=True),  # domain | group | keypair
    Column("target", String(64), primary_key=True),
)

agents = Table(
    "agents",
    metadata,
    Column("id", String(64), primary_key=True),
    required("status", EnumText(AgentStatus), index=True),
    required("status_changed", UTCDateTime),
    required("epoch", Whole),
    required("region", String(64)),
    required("architecture", String(32)),
    required("scaling_group", String(64), index=True),
    required("schedulable", Boolean),
    required("available_slots", QuantityMap),
    required("occupied_slots", QuantityMap),
    required("addr", String(256)),
    required("first_contact", UTCDateTime),
    required("last_heartbeat", UTCDateTime),
    Column("lost_at", UTCDateTime),
    required("version", String(64)),
    required("runtime", String(64)),
    required("tier", String(64)),
    required("enforcement", JSONText),
    required("generation", Whole),
    required("devices", JSONTuple(dict[str, Any])),
    required("plugins", JSONTuple(PluginReport)),
    required("images", JSONTuple(ImageReport)),
    required("runtime_classes", JSONTuple(RuntimeClassReport), server_default="[]"),
    Column("overlay", JSONOf(OverlayReport)),
    required("location", JSONTuple(str), server_default="[]"),
    Column("kernel_limit", Whole),
    required("version_id", Whole),
)

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
    required("name", String(64), index=True),
    required("type", EnumText(SessionType)),
    required("status", EnumText(SessionStatus), index=True),
    Column("status_info", Text),
    required("status_data", JSONText),
    required("status_history", JSONText),
    required("status_changed", UTCDateTime),
    required("result", EnumText(SessionResult)),
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
    required("cluster_mode", EnumText(ClusterMode)),
    required("runtime_class", String(64), server_default=""),
    required("cluster_size", Whole),
    Column("vni", Whole),
    Column("network", JSONOf(SessionNetwork)),
    required("requested_slots", QuantityMap),
    required("variant_requirements", JSONTuple(str), server_default="[]"),
    required("resource_opts", JSONText),
    required("environ", JSONText),
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
    required("reason", EnumText(KernelEventReason)),
    Column("not_before", UTCDateTime),
    required("starting_over", Boolean, server_default=false()),
    required("created_at", UTCDateTime),
    Column("scheduled_at", UTCDateTime),
    Column("started_at", UTCDateTime),
    Column("terminated_at", UTCDateTime),
    Index("uq_sessions_live_name", "access_key", "name", unique=True, sqlite_where=LIVE, postgresql_where=LIVE),
    Index("uq_sessions_vni", "vni", unique=True),
    Index("ix_sessions_created", "created_at", "id"),
    Index("ix_sessions_owner", "access_key", "created_at"),
)

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
    required("status", EnumText(KernelStatus), index=True),
    required("reason", EnumText(KernelEventReason)),
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

kept_answers = Table(
    "kept_answers",
    metadata,
    Column("access_key", String(20), primary_key=True),
    Column("token", String(128), primary_key=True),
    required("fingerprint", String(64)),
    required("call_id", GUID),
    required("begun_at", UTCDateTime, index=True),
    Column("status", Whole),
    Column("headers", JSONText),
    Column("body", LargeBinary),
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

slot_types = Table(
    "resource_slot_types",
    metadata,
    Column("slot_name", String(64), primary_key=True),
    required("slot_type", EnumText(SlotType)),
    required("display", JSONText),
)

presets = Table(
    "resource_presets",
    metadata,
    Column("name", String(256), primary_key=True),
    required("resource_slots", QuantityMap),
    Column("shared_memory", Whole),
)

tasks = Table(
    "background_tasks",
    metadata,
    Column("id", GUID, primary_key=True),
    required("name", String(128)),
    required("owner", GUID),
    required("status", EnumText(TaskStatus), index=True),
    required("current_progress", Float),
    required("total_progress", Float),
    required("message", Text),
    required("created_at", UTCDateTime),
    required("updated_at", UTCDateTime),
    required("manager", String(128), server_default=""),
    required("subject", String(128), server_default=""),
    required("is_unwanted", Boolean, server_default=false()),
)

leases = Table(
    "leases",
    metadata,
    Column("name", String(128), primary_key=True),
    required("holder", String(128)),
    required("token", BigInteger),
    required("expires_at", UTCDateTime),
)

audit_logs = Table(
    "audit_logs",
    metadata,
    Column("id", Whole, primary_key=True, autoincrement=True),
    required("at", UTCDateTime, index=True),
    required("request_id", String(64)),
    Column("user_id", GUID),
    Column("access_key", String(20)),
    required("operation", String(128)),
    required("object_type", String(32)),
    Column("object_id", String(128)),
    required("outcome", String(64)),
    required("detail", JSONText),
)
