"""Create the tables of the manager.

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
        "agent_acks",
        sa.Column("agent_id", sa.String(length=64), nullable=False),
        sa.Column("epoch", _WHOLE, nullable=False),
        sa.Column("seq", _WHOLE, nullable=False),
        sa.PrimaryKeyConstraint("agent_id", name=op.f("pk_agent_acks")),
    )
    op.create_table(
        "agents",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("status", sa.String(length=32), nullable=False),
        sa.Column("status_changed", sa.DateTime(timezone=True), nullable=False),
        sa.Column("epoch", _WHOLE, nullable=False),
        sa.Column("region", sa.String(length=64), nullable=False),
        sa.Column("architecture", sa.String(length=32), nullable=False),
        sa.Column("scaling_group", sa.String(length=64), nullable=False),
        sa.Column("schedulable", sa.Boolean(), nullable=False),
        sa.Column("available_slots", sa.Text(), nullable=False),
        sa.Column("occupied_slots", sa.Text(), nullable=False),
        sa.Column("addr", sa.String(length=256), nullable=False),
        sa.Column("first_contact", sa.DateTime(timezone=True), nullable=False),
        sa.Column("last_heartbeat", sa.DateTime(timezone=True), nullable=False),
        sa.Column("lost_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("version", sa.String(length=64), nullable=False),
        sa.Column("runtime", sa.String(length=64), nullable=False),
        sa.Column("tier", sa.String(length=64), nullable=False),
        sa.Column("enforcement", sa.Text(), nullable=False),
        sa.Column("generation", _WHOLE, nullable=False),
        sa.Column("devices", sa.Text(), nullable=False),
        sa.Column("plugins", sa.Text(), nullable=False),
        sa.Column("images", sa.Text(), nullable=False),
        sa.Column("runtime_classes", sa.Text(), server_default="[]", nullable=False),
        sa.Column("overlay", sa.Text(), nullable=True),
        sa.Column("location", sa.Text(), server_default="[]", nullable=False),
        sa.Column("kernel_limit", _WHOLE, nullable=True),
        sa.Column("version_id", _WHOLE, nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_agents")),
    )
    op.create_index(op.f("ix_agents_scaling_group"), "agents", ["scaling_group"], unique=False)
    op.create_index(op.f("ix_agents_status"), "agents", ["status"], unique=False)
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
        "audit_logs",
        sa.Column("id", _WHOLE, autoincrement=True, nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("request_id", sa.String(length=64), nullable=False),
        sa.Column("user_id", sa.String(length=36), nullable=True),
        sa.Column("access_key", sa.String(length=20), nullable=True),
        sa.Column("operation", sa.String(length=128), nullable=False),
        sa.Column("object_type", sa.String(length=32), nullable=False),
        sa.Column("object_id", sa.String(length=128), nullable=True),
        sa.Column("outcome", sa.String(length=64), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit_logs")),
    )
    op.create_index(op.f("ix_audit_logs_at"), "audit_logs", ["at"], unique=False)
    op.create_table(
        "background_tasks",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("name", sa.String(length=128), nullable=False),
        sa.Column("owner", sa.String(length=36), nullable=False),
        sa.Column("status", sa.String(length=32), nullable=False),
        sa.Column("current_progress", sa.Float(), nullable=False),
        sa.Column("total_progress", sa.Float(), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("manager", sa.String(length=128), server_default="", nullable=False),
        sa.Column("subject", sa.String(length=128), server_default="", nullable=False),
        sa.Column("is_unwanted", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_background_tasks")),
    )
    op.create_index(op.f("ix_background_tasks_status"), "background_tasks", ["status"], unique=False)
    op.create_table(
        "bootstrap_scripts",
        sa.Column("access_key", sa.String(length=20), nullable=False),
        sa.Column("script", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("access_key", name=op.f("pk_bootstrap_scripts")),
    )
    op.create_table(
        "domains",
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("description", sa.Text(), nullable=False),
        sa.Column("is_active", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("total_resource_slots", sa.Text(), nullable=False),
        sa.Column("allowed_vfolder_hosts", sa.Text(), server_default="{}", nullable=False),
        sa.Column("allowed_docker_registries", sa.Text(), nullable=True),
        sa.Column("integration_id", sa.String(length=512), nullable=True),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_domains")),
    )
    op.create_table(
        "dotfiles",
        sa.Column("scope", sa.String(length=32), nullable=False),
        sa.Column("owner", sa.String(length=64), nullable=False),
        sa.Column("path", sa.String(length=1024), nullable=False),
        sa.Column("permission", sa.String(length=4), nullable=False),
        sa.Column("data", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("scope", "owner", "path", name=op.f("pk_dotfiles")),
    )
    op.create_table(
        "error_logs",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("severity", sa.String(length=16), nullable=False),
        sa.Column("source", sa.String(length=64), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("user_id", sa.String(length=36), nullable=False),
        sa.Column("domain_name", sa.String(length=64), nullable=False),
        sa.Column("context_lang", sa.String(length=64), nullable=False),
        sa.Column("context_env", sa.Text(), nullable=False),
        sa.Column("request_url", sa.Text(), nullable=True),
        sa.Column("request_status", sa.Integer(), nullable=True),
        sa.Column("traceback", sa.Text(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("is_read", sa.Boolean(), nullable=False),
        sa.Column("is_cleared", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_error_logs")),
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_error_logs_created_at"), "error_logs", ["created_at"], unique=False)
    op.create_index(op.f("ix_error_logs_user_id"), "error_logs", ["user_id"], unique=False)
    op.create_table(
        "groups",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("domain_name", sa.String(length=64), nullable=False),
        sa.Column("description", sa.Text(), nullable=False),
        sa.Column("is_active", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("total_resource_slots", sa.Text(), nullable=False),
        sa.Column("allowed_vfolder_hosts", sa.Text(), server_default="{}", nullable=False),
        sa.Column("integration_id", sa.String(length=512), nullable=True),
        sa.Column("type", sa.String(length=32), server_default="GENERAL", nullable=False),
        sa.Column("resource_policy", sa.String(length=256), server_default="default", nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_groups")),
        sa.UniqueConstraint("domain_name", "name", name=op.f("uq_groups_domain_name_name")),
    )
    op.create_table(
        "image_aliases",
        sa.Column("alias", sa.String(length=128), nullable=False),
        sa.Column("image", sa.String(length=512), nullable=False),
        sa.Column("architecture", sa.String(length=32), nullable=False),
        sa.PrimaryKeyConstraint("alias", name=op.f("pk_image_aliases")),
    )
    op.create_index(op.f("ix_image_aliases_image"), "image_aliases", ["image"], unique=False)
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
    op.create_index("ix_images_registry_scanned_at", "images", ["registry", "scanned_at"], unique=False)
    op.create_index(op.f("ix_images_repository"), "images", ["repository"], unique=False)
    op.create_table(
        "kept_answers",
        sa.Column("access_key", sa.String(length=20), nullable=False),
        sa.Column("token", sa.String(length=128), nullable=False),
        sa.Column("fingerprint", sa.String(length=64), nullable=False),
        sa.Column("call_id", sa.String(length=36), nullable=False),
        sa.Column("begun_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("status", _WHOLE, nullable=True),
        sa.Column("headers", sa.Text(), nullable=True),
        sa.Column("body", sa.LargeBinary(), nullable=True),
        sa.PrimaryKeyConstraint("access_key", "token", name=op.f("pk_kept_answers")),
    )
    op.create_index(op.f("ix_kept_answers_begun_at"), "kept_answers", ["begun_at"], unique=False)
    op.create_table(
        "keypair_resource_policies",
        sa.Column("name", sa.String(length=256), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("default_for_unspecified", sa.String(length=32), nullable=False),
        sa.Column("total_resource_slots", sa.Text(), nullable=False),
        sa.Column("max_concurrent_sessions", _WHOLE, nullable=False),
        sa.Column("max_containers_per_session", _WHOLE, nullable=False),
        sa.Column("max_pending_session_count", _WHOLE, server_default="0", nullable=False),
        sa.Column("max_pending_session_resource_slots", sa.Text(), server_default="{}", nullable=False),
        sa.Column("max_session_lifetime", _WHOLE, nullable=False),
        sa.Column("idle_timeout", _WHOLE, nullable=False),
        sa.Column("max_vfolder_count", _WHOLE, nullable=False),
        sa.Column("max_vfolder_size", _WHOLE, nullable=False),
        sa.Column("allowed_vfolder_hosts", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_keypair_resource_policies")),
    )
    op.create_table(
        "keypairs",
        sa.Column("access_key", sa.String(length=20), nullable=False),
        sa.Column("secret_key", sa.Text(), nullable=False),
        sa.Column("user_id", sa.String(length=36), nullable=False),
        sa.Column("is_active", sa.Boolean(), nullable=False),
        sa.Column("is_admin", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("modified_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("last_used", sa.DateTime(timezone=True), nullable=True),
        sa.Column("resource_policy", sa.String(length=256), nullable=False),
        sa.Column("rate_limit", _WHOLE, nullable=False),
        sa.Column("num_queries", _WHOLE, nullable=False),
        sa.Column("ssh_public_key", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("access_key", name=op.f("pk_keypairs")),
    )
    op.create_index(op.f("ix_keypairs_user_id"), "keypairs", ["user_id"], unique=False)
    op.create_table(
        "leases",
        sa.Column("name", sa.String(length=128), nullable=False),
        sa.Column("holder", sa.String(length=128), nullable=False),
        sa.Column("token", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_leases")),
    )
    op.create_table(
        "quota_limits",
        sa.Column("host", sa.String(length=128), nullable=False),
        sa.Column("quota_scope", sa.String(length=64), nullable=False),
        sa.Column("limit_bytes", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("host", "quota_scope", name=op.f("pk_quota_limits")),
    )
    op.create_table(
        "resource_presets",
        sa.Column("name", sa.String(length=256), nullable=False),
        sa.Column("resource_slots", sa.Text(), nullable=False),
        sa.Column("shared_memory", _WHOLE, nullable=True),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_resource_presets")),
    )
    op.create_table(
        "resource_slot_types",
        sa.Column("slot_name", sa.String(length=64), nullable=False),
        sa.Column("slot_type", sa.String(length=32), nullable=False),
        sa.Column("display", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("slot_name", name=op.f("pk_resource_slot_types")),
    )
    op.create_table(
        "scaling_groups",
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("description", sa.Text(), nullable=False),
        sa.Column("is_active", sa.Boolean(), nullable=False),
        sa.Column("is_public", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("driver", sa.String(length=64), nullable=False),
        sa.Column("driver_opts", sa.Text(), nullable=False),
        sa.Column("scheduler", sa.String(length=64), nullable=False),
        sa.Column("scheduler_opts", sa.Text(), nullable=False),
        sa.Column("use_host_network", sa.Boolean(), nullable=False),
        sa.Column("wsproxy_addr", sa.String(length=1024), nullable=True),
        sa.Column("wsproxy_api_token", sa.String(length=128), nullable=True),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_scaling_groups")),
    )
    op.create_table(
        "session_callbacks",
        sa.Column("id", _WHOLE, autoincrement=True, nullable=False),
        sa.Column("session_id", sa.String(length=36), nullable=False),
        sa.Column("access_key", sa.String(length=20), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("attempts", _WHOLE, nullable=False),
        sa.Column("due_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_session_callbacks")),
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_session_callbacks_session_id"), "session_callbacks", ["session_id"], unique=False)
    op.create_table(
        "session_events",
        sa.Column("id", _WHOLE, autoincrement=True, nullable=False),
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("session_id", sa.String(length=36), nullable=False),
        sa.Column("kernel_id", sa.String(length=36), nullable=True),
        sa.Column("access_key", sa.String(length=20), nullable=False),
        sa.Column("domain_name", sa.String(length=64), nullable=False),
        sa.Column("group_id", sa.String(length=36), nullable=False),
        sa.Column("user_id", sa.String(length=36), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("payload", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_session_events")),
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_session_events_at"), "session_events", ["at"], unique=False)
    op.create_index(op.f("ix_session_events_session_id"), "session_events", ["session_id"], unique=False)
    op.create_table(
        "session_templates",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("name", sa.String(length=128), nullable=False),
        sa.Column("domain_name", sa.String(length=64), nullable=False),
        sa.Column("group_id", sa.String(length=36), nullable=False),
        sa.Column("group_name", sa.String(length=64), nullable=False),
        sa.Column("user_id", sa.String(length=36), nullable=False),
        sa.Column("user_email", sa.String(length=256), nullable=False),
        sa.Column("document", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("modified_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_session_templates")),
    )
    op.create_index(op.f("ix_session_templates_domain_name"), "session_templates", ["domain_name"], unique=False)
    op.create_index(op.f("ix_session_templates_user_id"), "session_templates", ["user_id"], unique=False)
    op.create_table(
        "sessions",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("type", sa.String(length=32), nullable=False),
        sa.Column("status", sa.String(length=32), nullable=False),
        sa.Column("status_info", sa.Text(), nullable=True),
        sa.Column("status_data", sa.Text(), nullable=False),
        sa.Column("status_history", sa.Text(), nullable=False),
        sa.Column("status_changed", sa.DateTime(timezone=True), nullable=False),
        sa.Column("result", sa.String(length=32), nullable=False),
        sa.Column("version", _WHOLE, nullable=False),
        sa.Column("domain_name", sa.String(length=64), nullable=False),
        sa.Column("group_id", sa.String(length=36), nullable=False),
        sa.Column("group_name", sa.String(length=64), nullable=False),
        sa.Column("user_id", sa.String(length=36), nullable=False),
        sa.Column("user_email", sa.String(length=256), nullable=False),
        sa.Column("access_key", sa.String(length=20), nullable=False),
        sa.Column("created_by", sa.String(length=20), nullable=False),
        sa.Column("image", sa.String(length=512), nullable=False),
        sa.Column("architecture", sa.String(length=32), nullable=False),
        sa.Column("tag", sa.String(length=256), nullable=True),
        sa.Column("cluster_mode", sa.String(length=32), nullable=False),
        sa.Column("runtime_class", sa.String(length=64), server_default="", nullable=False),
        sa.Column("cluster_size", _WHOLE, nullable=False),
        sa.Column("vni", _WHOLE, nullable=True),
        sa.Column("network", sa.Text(), nullable=True),
        sa.Column("requested_slots", sa.Text(), nullable=False),
        sa.Column("variant_requirements", sa.Text(), server_default="[]", nullable=False),
        sa.Column("resource_opts", sa.Text(), nullable=False),
        sa.Column("environ", sa.Text(), nullable=False),
        sa.Column("mounts", sa.Text(), nullable=False),
        sa.Column("vfolder_mounts", sa.Text(), server_default="[]", nullable=False),
        sa.Column("startup_command", sa.Text(), nullable=True),
        sa.Column("bootstrap_script", sa.Text(), nullable=True),
        sa.Column("callback_url", sa.Text(), nullable=True),
        sa.Column("starts_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("dependencies", sa.Text(), nullable=False),
        sa.Column("scaling_group", sa.String(length=64), nullable=False),
        sa.Column("designated_agents", sa.Text(), nullable=False),
        sa.Column("preopen_ports", sa.Text(), nullable=False),
        sa.Column("batch_timeout_s", sa.Float(), nullable=True),
        sa.Column("exec_timeout_s", sa.Float(), nullable=True),
        sa.Column("priority", _WHOLE, nullable=False),
        sa.Column("num_queries", _WHOLE, nullable=False),
        sa.Column("reason", sa.String(length=32), nullable=False),
        sa.Column("not_before", sa.DateTime(timezone=True), nullable=True),
        sa.Column("starting_over", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("scheduled_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("terminated_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_sessions")),
    )
    op.create_index("ix_sessions_created", "sessions", ["created_at", "id"], unique=False)
    op.create_index(op.f("ix_sessions_name"), "sessions", ["name"], unique=False)
    op.create_index("ix_sessions_owner", "sessions", ["access_key", "created_at"], unique=False)
    op.create_index(op.f("ix_sessions_status"), "sessions", ["status"], unique=False)
    op.create_index(
        "uq_sessions_live_name",
        "sessions",
        ["access_key", "name"],
        unique=True,
        sqlite_where=sa.text("status NOT IN ('CANCELLED', 'ERROR', 'TERMINATED')"),
        postgresql_where=sa.text("status NOT IN ('CANCELLED', 'ERROR', 'TERMINATED')"),
    )
    op.create_index("uq_sessions_vni", "sessions", ["vni"], unique=True)
    op.create_table(
        "share_histories",
        sa.Column("resource_group", sa.String(length=64), nullable=False),
        sa.Column("used", sa.Text(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("resource_group", name=op.f("pk_share_histories")),
    )
    op.create_table(
        "storage_policies",
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("name", sa.String(length=256), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("max_vfolder_count", _WHOLE, nullable=False),
        sa.Column("max_quota_scope_size", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("kind", "name", name=op.f("pk_storage_policies")),
    )
    op.create_table(
        "users",
        sa.Column("uuid", sa.String(length=36), nullable=False),
        sa.Column("username", sa.String(length=64), nullable=False),
        sa.Column("email", sa.String(length=256), nullable=False),
        sa.Column("password", sa.Text(), nullable=True),
        sa.Column("role", sa.String(length=32), nullable=False),
        sa.Column("domain_name", sa.String(length=64), nullable=False),
        sa.Column("full_name", sa.String(length=256), nullable=False),
        sa.Column("description", sa.Text(), nullable=False),
        sa.Column("need_password_change", sa.Boolean(), nullable=False),
        sa.Column("status", sa.String(length=32), nullable=False),
        sa.Column("status_info", sa.Text(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("modified_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("main_access_key", sa.String(length=20), nullable=True),
        sa.Column("resource_policy", sa.String(length=256), server_default="default", nullable=False),
        sa.Column("allowed_client_ip", sa.Text(), server_default="[]", nullable=False),
        sa.PrimaryKeyConstraint("uuid", name=op.f("pk_users")),
        sa.UniqueConstraint("email", name=op.f("uq_users_email")),
        sa.UniqueConstraint("username", name=op.f("uq_users_username")),
    )
    op.create_table(
        "vfolders",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("host", sa.String(length=128), nullable=False),
        sa.Column("quota_scope", sa.String(length=64), nullable=False),
        sa.Column("domain_name", sa.String(length=64), nullable=False),
        sa.Column("ownership_type", sa.String(length=32), nullable=False),
        sa.Column("user_id", sa.String(length=36), nullable=True),
        sa.Column("group_id", sa.String(length=36), nullable=True),
        sa.Column("usage_mode", sa.String(length=32), nullable=False),
        sa.Column("permission", sa.String(length=32), nullable=False),
        sa.Column("status", sa.String(length=32), nullable=False),
        sa.Column("status_info", sa.Text(), nullable=True),
        sa.Column("status_changed", sa.DateTime(timezone=True), nullable=False),
        sa.Column("cloneable", sa.Boolean(), nullable=False),
        sa.Column("cloned_from", sa.String(length=36), nullable=True),
        sa.Column("creator", sa.String(length=256), nullable=False),
        sa.Column("max_size", sa.BigInteger(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("last_used", sa.DateTime(timezone=True), nullable=True),
        sa.Column("unmanaged_path", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_vfolders")),
    )
    op.create_index(op.f("ix_vfolders_group_id"), "vfolders", ["group_id"], unique=False)
    op.create_index(op.f("ix_vfolders_status"), "vfolders", ["status"], unique=False)
    op.create_index(op.f("ix_vfolders_user_id"), "vfolders", ["user_id"], unique=False)
    op.create_index(
        "uq_vfolders_live_name_of_group",
        "vfolders",
        ["group_id", "name"],
        unique=True,
        sqlite_where=sa.text("status NOT IN ('delete-complete', 'delete-error', 'delete-ongoing', 'delete-pending')"),
        postgresql_where=sa.text(
            "status NOT IN ('delete-complete', 'delete-error', 'delete-ongoing', 'delete-pending')"
        ),
    )
    op.create_index(
        "uq_vfolders_live_name_of_user",
        "vfolders",
        ["user_id", "name"],
        unique=True,
        sqlite_where=sa.text("status NOT IN ('delete-complete', 'delete-error', 'delete-ongoing', 'delete-pending')"),
        postgresql_where=sa.text(
            "status NOT IN ('delete-complete', 'delete-error', 'delete-ongoing', 'delete-pending')"
        ),
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
    op.create_table(
        "kernels",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("session_id", sa.String(length=36), nullable=False),
        sa.Column("cluster_role", sa.String(length=16), nullable=False),
        sa.Column("cluster_idx", _WHOLE, nullable=False),
        sa.Column("local_rank", _WHOLE, nullable=False),
        sa.Column("cluster_hostname", sa.String(length=64), nullable=False),
        sa.Column("image", sa.String(length=512), nullable=False),
        sa.Column("architecture", sa.String(length=32), nullable=False),
        sa.Column("status", sa.String(length=32), nullable=False),
        sa.Column("reason", sa.String(length=32), nullable=False),
        sa.Column("status_info", sa.Text(), nullable=True),
        sa.Column("status_data", sa.Text(), nullable=False),
        sa.Column("status_changed", sa.DateTime(timezone=True), nullable=False),
        sa.Column("attempt", _WHOLE, nullable=False),
        sa.Column("agent", sa.String(length=64), nullable=True),
        sa.Column("requested_slots", sa.Text(), nullable=False),
        sa.Column("occupied_slots", sa.Text(), nullable=False),
        sa.Column("devices", sa.Text(), nullable=False),
        sa.Column("generation", _WHOLE, nullable=False),
        sa.Column("attached_devices", sa.Text(), nullable=False),
        sa.Column("service_ports", sa.Text(), nullable=False),
        sa.Column("container_id", sa.String(length=128), nullable=True),
        sa.Column("exit_code", _WHOLE, nullable=True),
        sa.Column("role_options", sa.Text(), server_default="{}", nullable=False),
        sa.Column("last_stat", sa.Text(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("terminated_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(
            ["session_id"], ["sessions.id"], name=op.f("fk_kernels_session_id_sessions"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_kernels")),
    )
    op.create_index(op.f("ix_kernels_agent"), "kernels", ["agent"], unique=False)
    op.create_index(op.f("ix_kernels_session_id"), "kernels", ["session_id"], unique=False)
    op.create_index("ix_kernels_span", "kernels", ["terminated_at", "started_at"], unique=False)
    op.create_index(op.f("ix_kernels_status"), "kernels", ["status"], unique=False)
    op.create_table(
        "memberships",
        sa.Column("user_id", sa.String(length=36), nullable=False),
        sa.Column("group_id", sa.String(length=36), nullable=False),
        sa.ForeignKeyConstraint(
            ["group_id"], ["groups.id"], name=op.f("fk_memberships_group_id_groups"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["user_id"], ["users.uuid"], name=op.f("fk_memberships_user_id_users"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("user_id", "group_id", name=op.f("pk_memberships")),
    )
    op.create_table(
        "scaling_group_links",
        sa.Column("scaling_group", sa.String(length=64), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("target", sa.String(length=64), nullable=False),
        sa.ForeignKeyConstraint(
            ["scaling_group"],
            ["scaling_groups.name"],
            name=op.f("fk_scaling_group_links_scaling_group_scaling_groups"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("scaling_group", "kind", "target", name=op.f("pk_scaling_group_links")),
    )
    op.create_table(
        "session_activities",
        sa.Column("session_id", sa.String(length=36), nullable=False),
        sa.Column("last_access", sa.DateTime(timezone=True), nullable=True),
        sa.Column("usage", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["session_id"], ["sessions.id"], name=op.f("fk_session_activities_session_id_sessions"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("session_id", name=op.f("pk_session_activities")),
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
    op.create_table(
        "session_dependencies",
        sa.Column("session_id", sa.String(length=36), nullable=False),
        sa.Column("depends_on", sa.String(length=36), nullable=False),
        sa.ForeignKeyConstraint(
            ["session_id"],
            ["sessions.id"],
            name=op.f("fk_session_dependencies_session_id_sessions"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("session_id", "depends_on", name=op.f("pk_session_dependencies")),
    )
    op.create_index(op.f("ix_session_dependencies_depends_on"), "session_dependencies", ["depends_on"], unique=False)
    op.create_table(
        "session_vfolders",
        sa.Column("session_id", sa.String(length=36), nullable=False),
        sa.Column("folder_id", sa.String(length=36), nullable=False),
        sa.ForeignKeyConstraint(
            ["session_id"], ["sessions.id"], name=op.f("fk_session_vfolders_session_id_sessions"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("session_id", "folder_id", name=op.f("pk_session_vfolders")),
    )
    op.create_index(op.f("ix_session_vfolders_folder_id"), "session_vfolders", ["folder_id"], unique=False)
    op.create_table(
        "vfolder_invitations",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("folder_id", sa.String(length=36), nullable=False),
        sa.Column("inviter", sa.String(length=256), nullable=False),
        sa.Column("invitee", sa.String(length=256), nullable=False),
        sa.Column("permission", sa.String(length=32), nullable=False),
        sa.Column("state", sa.String(length=32), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("modified_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["folder_id"], ["vfolders.id"], name=op.f("fk_vfolder_invitations_folder_id_vfolders"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_vfolder_invitations")),
    )
    op.create_index(op.f("ix_vfolder_invitations_invitee"), "vfolder_invitations", ["invitee"], unique=False)
    op.create_index(op.f("ix_vfolder_invitations_inviter"), "vfolder_invitations", ["inviter"], unique=False)
    op.create_index(
        "uq_vfolder_invitations_pending",
        "vfolder_invitations",
        ["folder_id", "invitee"],
        unique=True,
        sqlite_where=sa.text("state = 'pending'"),
        postgresql_where=sa.text("state = 'pending'"),
    )
    op.create_table(
        "vfolder_permissions",
        sa.Column("folder_id", sa.String(length=36), nullable=False),
        sa.Column("user_id", sa.String(length=36), nullable=False),
        sa.Column("permission", sa.String(length=32), nullable=False),
        sa.ForeignKeyConstraint(
            ["folder_id"], ["vfolders.id"], name=op.f("fk_vfolder_permissions_folder_id_vfolders"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("folder_id", "user_id", name=op.f("pk_vfolder_permissions")),
    )
    op.create_index(op.f("ix_vfolder_permissions_user_id"), "vfolder_permissions", ["user_id"], unique=False)
    op.create_table(
        "artifact_revisions",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("artifact_id", sa.String(length=36), nullable=False),
        sa.Column("version", sa.String(length=256), nullable=False),
        sa.Column("status", sa.String(length=32), nullable=False),
        sa.Column("status_info", sa.Text(), nullable=True),
        sa.Column("status_changed", sa.DateTime(timezone=True), nullable=False),
        sa.Column("generation", _WHOLE, nullable=False),
        sa.Column("attempt", _WHOLE, nullable=False),
        sa.Column("residue", sa.Boolean(), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=True),
        sa.Column("file_count", _WHOLE, nullable=True),
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
    op.create_index(
        "ix_artifact_revisions_status_artifact_id", "artifact_revisions", ["status", "artifact_id"], unique=False
    )
    op.create_table(
        "kernel_logs",
        sa.Column("kernel_id", sa.String(length=36), nullable=False),
        sa.Column("tail", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(
            ["kernel_id"], ["kernels.id"], name=op.f("fk_kernel_logs_kernel_id_kernels"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("kernel_id", name=op.f("pk_kernel_logs")),
    )
