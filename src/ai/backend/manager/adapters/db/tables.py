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
from ai.backend.common.wire.agent import ImageReport, OverlayReport, PluginReport, RuntimeClassReport
from ai.backend.infra.database import GUID, JSONText, QuantityMap, UTCDateTime, Whole, naming_convention
from ai.backend.manager.adapters.db.columns import EnumText, JSONOf, JSONTuple
from ai.backend.manager.model.folder import FolderMount
from ai.backend.manager.model.journal import TaskStatus
from ai.backend.manager.model.network import SessionNetwork

metadata = MetaData(naming_convention=naming_convention)

LIVE = text(f"status NOT IN ({', '.join(repr(s.value) for s in sorted(FINAL_SESSION_STATUSES))})")
"""In these words SQLite sees that the partial index of live sessions answers a query."""


def _required(name: str, kind: Any, *constraints: ForeignKey, **options: Any) -> Column[Any]:
    return Column(name, kind, *constraints, nullable=False, **options)


domains = Table(
    "domains",
    metadata,
    Column("name", String(64), primary_key=True),
    _required("description", Text),
    _required("is_active", Boolean),
    _required("created_at", UTCDateTime),
    _required("total_resource_slots", QuantityMap),
    _required("allowed_vfolder_hosts", JSONText, server_default="{}"),
    Column("allowed_docker_registries", JSONText),
    Column("integration_id", String(512)),
)

groups = Table(
    "groups",
    metadata,
    Column("id", GUID, primary_key=True),
    _required("name", String(64)),
    _required("domain_name", String(64)),
    _required("description", Text),
    _required("is_active", Boolean),
    _required("created_at", UTCDateTime),
    _required("total_resource_slots", QuantityMap),
    _required("allowed_vfolder_hosts", JSONText, server_default="{}"),
    Column("integration_id", String(512)),
    _required("type", EnumText(GroupType), server_default=GroupType.GENERAL.value),
    _required("resource_policy", String(256), server_default="default"),
    UniqueConstraint("domain_name", "name"),
)

users = Table(
    "users",
    metadata,
    Column("uuid", GUID, primary_key=True),
    _required("username", String(64), unique=True),
    _required("email", String(256), unique=True),
    Column("password", Text),
    _required("role", EnumText(UserRole)),
    _required("domain_name", String(64)),
    _required("full_name", String(256)),
    _required("description", Text),
    _required("need_password_change", Boolean),
    _required("status", EnumText(UserStatus)),
    Column("status_info", Text),
    _required("created_at", UTCDateTime),
    _required("modified_at", UTCDateTime),
    Column("main_access_key", String(20)),
    _required("resource_policy", String(256), server_default="default"),
    _required("allowed_client_ip", JSONTuple(str), server_default="[]"),
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
    _required("secret_key", Text),  # sealed, see sealing.py
    _required("user_id", GUID, index=True),
    _required("is_active", Boolean),
    _required("is_admin", Boolean),
    _required("created_at", UTCDateTime),
    _required("modified_at", UTCDateTime),
    Column("last_used", UTCDateTime),
    _required("resource_policy", String(256)),
    _required("rate_limit", Whole),
    _required("num_queries", Whole),
    Column("ssh_public_key", Text),
)

policies = Table(
    "keypair_resource_policies",
    metadata,
    Column("name", String(256), primary_key=True),
    _required("created_at", UTCDateTime),
    _required("default_for_unspecified", String(32)),
    _required("total_resource_slots", QuantityMap),
    _required("max_concurrent_sessions", Whole),
    _required("max_containers_per_session", Whole),
    _required("max_pending_session_count", Whole, server_default="0"),
    _required("max_pending_session_resource_slots", QuantityMap, server_default="{}"),
    _required("max_session_lifetime", Whole),
    _required("idle_timeout", Whole),
    _required("max_vfolder_count", Whole),
    _required("max_vfolder_size", Whole),
    _required("allowed_vfolder_hosts", JSONText),
)

storage_policies = Table(
    "storage_policies",
    metadata,
    Column("kind", EnumText(QuotaScopeKind), primary_key=True),
    Column("name", String(256), primary_key=True),
    _required("created_at", UTCDateTime),
    _required("max_vfolder_count", Whole),
    _required("max_quota_scope_size", BigInteger),
)

resource_groups = Table(
    "scaling_groups",
    metadata,
    Column("name", String(64), primary_key=True),
    _required("description", Text),
    _required("is_active", Boolean),
    _required("is_public", Boolean),
    _required("created_at", UTCDateTime),
    _required("driver", String(64)),
    _required("driver_opts", JSONText),
    _required("scheduler", String(64)),
    _required("scheduler_opts", JSONText),
    _required("use_host_network", Boolean),
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
    _required("status", EnumText(AgentStatus), index=True),
    _required("status_changed", UTCDateTime),
    _required("epoch", Whole),
    _required("region", String(64)),
    _required("architecture", String(32)),
    _required("scaling_group", String(64), index=True),
    _required("schedulable", Boolean),
    _required("available_slots", QuantityMap),
    _required("occupied_slots", QuantityMap),
    _required("addr", String(256)),
    _required("first_contact", UTCDateTime),
    _required("last_heartbeat", UTCDateTime),
    Column("lost_at", UTCDateTime),
    _required("version", String(64)),
    _required("runtime", String(64)),
    _required("tier", String(64)),
    _required("enforcement", JSONText),
    _required("generation", Whole),
    _required("devices", JSONTuple(dict[str, Any])),
    _required("plugins", JSONTuple(PluginReport)),
    _required("images", JSONTuple(ImageReport)),
    _required("runtime_classes", JSONTuple(RuntimeClassReport), server_default="[]"),
    Column("overlay", JSONOf(OverlayReport)),
    _required("location", JSONTuple(str), server_default="[]"),
    Column("kernel_limit", Whole),
    _required("version_id", Whole),
)

agent_acks = Table(
    "agent_acks",
    metadata,
    Column("agent_id", String(64), primary_key=True),
    _required("epoch", Whole),
    _required("seq", Whole),
)

sessions = Table(
    "sessions",
    metadata,
    Column("id", GUID, primary_key=True),
    _required("name", String(64), index=True),
    _required("type", EnumText(SessionType)),
    _required("status", EnumText(SessionStatus), index=True),
    Column("status_info", Text),
    _required("status_data", JSONText),
    _required("status_history", JSONText),
    _required("status_changed", UTCDateTime),
    _required("result", EnumText(SessionResult)),
    _required("version", Whole),
    _required("domain_name", String(64)),
    _required("group_id", GUID),
    _required("group_name", String(64)),
    _required("user_id", GUID),
    _required("user_email", String(256)),
    _required("access_key", String(20)),
    _required("created_by", String(20)),
    _required("image", String(512)),
    _required("architecture", String(32)),
    Column("tag", String(256)),
    _required("cluster_mode", EnumText(ClusterMode)),
    _required("runtime_class", String(64), server_default=""),
    _required("cluster_size", Whole),
    Column("vni", Whole),
    Column("network", JSONOf(SessionNetwork)),
    _required("requested_slots", QuantityMap),
    _required("variant_requirements", JSONTuple(str), server_default="[]"),
    _required("resource_opts", JSONText),
    _required("environ", JSONText),
    _required("mounts", JSONTuple(str)),
    _required("vfolder_mounts", JSONTuple(FolderMount), server_default="[]"),
    Column("startup_command", Text),
    Column("bootstrap_script", Text),
    Column("callback_url", Text),
    Column("starts_at", UTCDateTime),
    _required("dependencies", JSONTuple(UUID)),
    _required("scaling_group", String(64)),
    _required("designated_agents", JSONTuple(str)),
    _required("preopen_ports", JSONTuple(int)),
    Column("batch_timeout_s", Float),
    Column("exec_timeout_s", Float),
    _required("priority", Whole),
    _required("num_queries", Whole),
    _required("reason", EnumText(KernelEventReason)),
    Column("not_before", UTCDateTime),
    _required("created_at", UTCDateTime),
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
    _required("session_id", GUID, ForeignKey("sessions.id", ondelete="CASCADE"), index=True),
    _required("cluster_role", String(16)),
    _required("cluster_idx", Whole),
    _required("local_rank", Whole),
    _required("cluster_hostname", String(64)),
    _required("image", String(512)),
    _required("architecture", String(32)),
    _required("status", EnumText(KernelStatus), index=True),
    _required("reason", EnumText(KernelEventReason)),
    Column("status_info", Text),
    _required("status_data", JSONText),
    _required("status_changed", UTCDateTime),
    _required("attempt", Whole),
    Column("agent", String(64), index=True),
    _required("requested_slots", QuantityMap),
    _required("occupied_slots", QuantityMap),
    _required("devices", JSONText),
    _required("generation", Whole),
    _required("attached_devices", JSONText),
    _required("service_ports", JSONTuple(dict[str, Any])),
    Column("container_id", String(128)),
    Column("exit_code", Whole),
    _required("role_options", JSONText, server_default="{}"),
    Column("last_stat", JSONText),
    _required("created_at", UTCDateTime),
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
    _required("tail", LargeBinary),
)

idempotency_tokens = Table(
    "idempotency_tokens",
    metadata,
    Column("access_key", String(20), primary_key=True),
    Column("token", String(128), primary_key=True),
    _required("session_id", GUID),
    _required("created_at", UTCDateTime, index=True),
)

kept_answers = Table(
    "kept_answers",
    metadata,
    Column("access_key", String(20), primary_key=True),
    Column("token", String(128), primary_key=True),
    _required("fingerprint", String(64)),
    _required("begun_at", UTCDateTime, index=True),
    Column("status", Whole),
    Column("headers", JSONText),
    Column("body", LargeBinary),
)

session_callbacks = Table(
    "session_callbacks",
    metadata,
    Column("id", Whole, primary_key=True, autoincrement=True),
    _required("session_id", GUID, index=True),
    _required("access_key", String(20)),
    _required("url", Text),
    _required("body", JSONText),
    _required("attempts", Whole),
    _required("due_at", UTCDateTime),
    sqlite_autoincrement=True,
)

session_events = Table(
    "session_events",
    metadata,
    Column("id", Whole, primary_key=True, autoincrement=True),
    _required("name", String(64)),
    _required("session_id", GUID, index=True),
    Column("kernel_id", GUID),
    _required("access_key", String(20)),
    _required("domain_name", String(64)),
    _required("group_id", GUID),
    _required("user_id", GUID),
    _required("at", UTCDateTime, index=True),
    _required("payload", JSONText),
    sqlite_autoincrement=True,  # ids are never used again, also after the newest rows were purged
)

slot_types = Table(
    "resource_slot_types",
    metadata,
    Column("slot_name", String(64), primary_key=True),
    _required("slot_type", EnumText(SlotType)),
    _required("display", JSONText),
)

presets = Table(
    "resource_presets",
    metadata,
    Column("name", String(256), primary_key=True),
    _required("resource_slots", QuantityMap),
    Column("shared_memory", Whole),
)

tasks = Table(
    "background_tasks",
    metadata,
    Column("id", GUID, primary_key=True),
    _required("name", String(128)),
    _required("owner", GUID),
    _required("status", EnumText(TaskStatus), index=True),
    _required("current_progress", Float),
    _required("total_progress", Float),
    _required("message", Text),
    _required("created_at", UTCDateTime),
    _required("updated_at", UTCDateTime),
    _required("manager", String(128), server_default=""),
    _required("subject", String(128), server_default=""),
    _required("is_unwanted", Boolean, server_default=false()),
)

leases = Table(
    "leases",
    metadata,
    Column("name", String(128), primary_key=True),
    _required("holder", String(128)),
    _required("token", BigInteger),
    _required("expires_at", UTCDateTime),
)

audit_logs = Table(
    "audit_logs",
    metadata,
    Column("id", Whole, primary_key=True, autoincrement=True),
    _required("at", UTCDateTime, index=True),
    _required("request_id", String(64)),
    Column("user_id", GUID),
    Column("access_key", String(20)),
    _required("operation", String(128)),
    _required("object_type", String(32)),
    Column("object_id", String(128)),
    _required("outcome", String(64)),
    _required("detail", JSONText),
)
