"""Create the tables of the manager.

Revision ID: 0038
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0038"
down_revision = None
branch_labels = None
depends_on = None
previous_program = "the program of commit f9319a09"
"""The program that upgrades a database of an earlier revision to this one; errors name it."""

_ID = sa.String(36)
_TEXT = sa.Text()
_TIME = sa.DateTime(timezone=True)
_INTEGER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def _partial_index_options(condition: str) -> dict[str, Any]:
    return {f"{dialect}_where": sa.text(condition) for dialect in ("sqlite", "postgresql")}


def _required(name: str, kind: Any, **options: Any) -> sa.Column[Any]:
    return sa.Column(name, kind, nullable=False, **options)


def upgrade() -> None:
    op.create_table(
        "agent_acks",
        _required("agent_id", sa.String(64)),
        _required("epoch", _INTEGER),
        _required("seq", _INTEGER),
        sa.PrimaryKeyConstraint("agent_id", name="pk_agent_acks"),
    )
    op.create_table(
        "agents",
        _required("id", sa.String(64)),
        _required("status", sa.String(32)),
        _required("status_changed", _TIME),
        _required("epoch", _INTEGER),
        _required("region", sa.String(64)),
        _required("architecture", sa.String(32)),
        _required("scaling_group", sa.String(64)),
        _required("schedulable", sa.Boolean()),
        _required("available_slots", _TEXT),
        _required("occupied_slots", _TEXT),
        _required("addr", sa.String(256)),
        _required("first_contact", _TIME),
        _required("last_heartbeat", _TIME),
        sa.Column("lost_at", _TIME),
        _required("version", sa.String(64)),
        _required("runtime", sa.String(64)),
        _required("tier", sa.String(64)),
        _required("enforcement", _TEXT),
        _required("generation", _INTEGER),
        _required("devices", _TEXT),
        _required("plugins", _TEXT),
        _required("images", _TEXT),
        _required("runtime_classes", _TEXT, server_default="[]"),
        sa.Column("overlay", _TEXT),
        _required("location", _TEXT, server_default="[]"),
        sa.Column("kernel_limit", _INTEGER),
        _required("version_id", _INTEGER),
        sa.PrimaryKeyConstraint("id", name="pk_agents"),
    )
    op.create_index("ix_agents_scaling_group", "agents", ["scaling_group"])
    op.create_index("ix_agents_status", "agents", ["status"])
    op.create_table(
        "artifact_registries",
        _required("id", _ID),
        _required("name", sa.String(64)),
        _required("type", sa.String(32)),
        _required("url", _TEXT),
        _required("credentials", _TEXT),
        _required("storages", _TEXT),
        _required("created_at", _TIME),
        _required("modified_at", _TIME),
        _required("viewers", _TEXT, server_default='["everyone"]'),
        sa.Column("user_import_bytes", sa.BigInteger()),
        sa.PrimaryKeyConstraint("id", name="pk_artifact_registries"),
        sa.UniqueConstraint("name", name="uq_artifact_registries_name"),
    )
    op.create_table(
        "audit_logs",
        _required("id", _INTEGER, autoincrement=True),
        _required("at", _TIME),
        _required("request_id", sa.String(64)),
        sa.Column("user_id", _ID),
        sa.Column("access_key", sa.String(20)),
        _required("operation", sa.String(128)),
        _required("object_type", sa.String(32)),
        sa.Column("object_id", sa.String(128)),
        _required("outcome", sa.String(64)),
        _required("detail", _TEXT),
        sa.PrimaryKeyConstraint("id", name="pk_audit_logs"),
    )
    op.create_index("ix_audit_logs_at", "audit_logs", ["at"])
    op.create_table(
        "background_tasks",
        _required("id", _ID),
        _required("name", sa.String(128)),
        _required("owner", _ID),
        _required("status", sa.String(32)),
        _required("current_progress", sa.Float()),
        _required("total_progress", sa.Float()),
        _required("message", _TEXT),
        _required("created_at", _TIME),
        _required("updated_at", _TIME),
        _required("manager", sa.String(128), server_default=""),
        _required("subject", sa.String(128), server_default=""),
        _required("is_unwanted", sa.Boolean(), server_default=sa.false()),
        sa.PrimaryKeyConstraint("id", name="pk_background_tasks"),
    )
    op.create_index("ix_background_tasks_status", "background_tasks", ["status"])
    op.create_table(
        "bootstrap_scripts",
        _required("access_key", sa.String(20)),
        _required("script", _TEXT),
        sa.PrimaryKeyConstraint("access_key", name="pk_bootstrap_scripts"),
    )
    op.create_table(
        "domains",
        _required("name", sa.String(64)),
        _required("description", _TEXT),
        _required("is_active", sa.Boolean()),
        _required("created_at", _TIME),
        _required("total_resource_slots", _TEXT),
        _required("allowed_vfolder_hosts", _TEXT, server_default="{}"),
        sa.Column("allowed_docker_registries", _TEXT),
        sa.Column("integration_id", sa.String(512)),
        sa.Column("modified_at", _TIME),
        sa.PrimaryKeyConstraint("name", name="pk_domains"),
    )
    op.create_table(
        "dotfiles",
        _required("scope", sa.String(32)),
        _required("owner", sa.String(64)),
        _required("path", sa.String(1024)),
        _required("permission", sa.String(4)),
        _required("data", _TEXT),
        sa.PrimaryKeyConstraint("scope", "owner", "path", name="pk_dotfiles"),
    )
    op.create_table(
        "error_logs",
        _required("id", sa.Integer(), autoincrement=True),
        _required("severity", sa.String(16)),
        _required("source", sa.String(64)),
        _required("message", _TEXT),
        _required("user_id", _ID),
        _required("domain_name", sa.String(64)),
        _required("context_lang", sa.String(64)),
        _required("context_env", _TEXT),
        sa.Column("request_url", _TEXT),
        sa.Column("request_status", sa.Integer()),
        sa.Column("traceback", _TEXT),
        _required("created_at", _TIME),
        _required("is_read", sa.Boolean()),
        _required("is_cleared", sa.Boolean()),
        sa.PrimaryKeyConstraint("id", name="pk_error_logs"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_error_logs_created_at", "error_logs", ["created_at"])
    op.create_index("ix_error_logs_user_id", "error_logs", ["user_id"])
    op.create_table(
        "groups",
        _required("id", _ID),
        _required("name", sa.String(64)),
        _required("domain_name", sa.String(64)),
        _required("description", _TEXT),
        _required("is_active", sa.Boolean()),
        _required("created_at", _TIME),
        _required("total_resource_slots", _TEXT),
        _required("allowed_vfolder_hosts", _TEXT, server_default="{}"),
        sa.Column("integration_id", sa.String(512)),
        _required("type", sa.String(32), server_default="GENERAL"),
        _required("resource_policy", sa.String(256), server_default="default"),
        sa.Column("modified_at", _TIME),
        sa.PrimaryKeyConstraint("id", name="pk_groups"),
        sa.UniqueConstraint("domain_name", "name", name="uq_groups_domain_name_name"),
    )
    op.create_table(
        "image_aliases",
        _required("alias", sa.String(128)),
        _required("image", sa.String(512)),
        _required("architecture", sa.String(32)),
        sa.PrimaryKeyConstraint("alias", name="pk_image_aliases"),
    )
    op.create_index("ix_image_aliases_image", "image_aliases", ["image"])
    op.create_table(
        "images",
        _required("name", sa.String(512)),
        _required("architecture", sa.String(32)),
        _required("repository", sa.String(512)),
        _required("registry", sa.String(256)),
        _required("project", sa.String(256)),
        _required("digest", sa.String(256)),
        _required("config_digest", sa.String(256)),
        _required("size_bytes", sa.BigInteger()),
        _required("labels", _TEXT),
        _required("created_at", _TIME),
        _required("scanned_at", _TIME),
        sa.PrimaryKeyConstraint("name", "architecture", name="pk_images"),
    )
    op.create_index("ix_images_registry_scanned_at", "images", ["registry", "scanned_at"])
    op.create_index("ix_images_repository", "images", ["repository"])
    op.create_table(
        "kept_answers",
        _required("access_key", sa.String(20)),
        _required("token", sa.String(128)),
        _required("fingerprint", sa.String(64)),
        _required("call_id", _ID),
        _required("begun_at", _TIME),
        sa.Column("status", _INTEGER),
        sa.Column("headers", _TEXT),
        sa.Column("body", sa.LargeBinary()),
        sa.PrimaryKeyConstraint("access_key", "token", name="pk_kept_answers"),
    )
    op.create_index("ix_kept_answers_begun_at", "kept_answers", ["begun_at"])
    op.create_table(
        "keypair_resource_policies",
        _required("name", sa.String(256)),
        _required("created_at", _TIME),
        _required("default_for_unspecified", sa.String(32)),
        _required("total_resource_slots", _TEXT),
        _required("max_concurrent_sessions", _INTEGER),
        _required("max_containers_per_session", _INTEGER),
        _required("max_pending_session_count", _INTEGER, server_default="0"),
        _required("max_pending_session_resource_slots", _TEXT, server_default="{}"),
        _required("max_session_lifetime", _INTEGER),
        _required("idle_timeout", _INTEGER),
        _required("max_vfolder_count", _INTEGER),
        _required("max_vfolder_size", _INTEGER),
        _required("allowed_vfolder_hosts", _TEXT),
        _required("max_claims", _INTEGER, server_default="0"),
        _required("max_claim_idle_time", _INTEGER, server_default="0"),
        sa.PrimaryKeyConstraint("name", name="pk_keypair_resource_policies"),
    )
    op.create_table(
        "keypairs",
        _required("access_key", sa.String(20)),
        _required("secret_key", _TEXT),
        _required("user_id", _ID),
        _required("is_active", sa.Boolean()),
        _required("is_admin", sa.Boolean()),
        _required("created_at", _TIME),
        _required("modified_at", _TIME),
        sa.Column("last_used", _TIME),
        _required("resource_policy", sa.String(256)),
        _required("rate_limit", _INTEGER),
        _required("num_queries", _INTEGER),
        sa.Column("ssh_public_key", _TEXT),
        _required("concurrency_limit", _INTEGER, server_default="0"),
        _required("allowed_client_ip", _TEXT, server_default="[]"),
        sa.PrimaryKeyConstraint("access_key", name="pk_keypairs"),
    )
    op.create_index("ix_keypairs_user_id", "keypairs", ["user_id"])
    op.create_table(
        "leases",
        _required("name", sa.String(128)),
        _required("holder", sa.String(128)),
        _required("token", sa.BigInteger()),
        _required("expires_at", _TIME),
        sa.PrimaryKeyConstraint("name", name="pk_leases"),
    )
    op.create_table(
        "quota_limits",
        _required("host", sa.String(128)),
        _required("quota_scope", sa.String(64)),
        _required("limit_bytes", sa.BigInteger()),
        sa.PrimaryKeyConstraint("host", "quota_scope", name="pk_quota_limits"),
    )
    op.create_table(
        "resource_presets",
        _required("name", sa.String(256)),
        _required("resource_slots", _TEXT),
        sa.Column("shared_memory", _INTEGER),
        _required("device_requests", _TEXT, server_default="[]"),
        sa.PrimaryKeyConstraint("name", name="pk_resource_presets"),
    )
    op.create_table(
        "resource_slot_types",
        _required("slot_name", sa.String(64)),
        _required("slot_type", sa.String(32)),
        _required("display", _TEXT),
        sa.PrimaryKeyConstraint("slot_name", name="pk_resource_slot_types"),
    )
    op.create_table(
        "scaling_groups",
        _required("name", sa.String(64)),
        _required("description", _TEXT),
        _required("is_active", sa.Boolean()),
        _required("is_public", sa.Boolean()),
        _required("created_at", _TIME),
        _required("driver", sa.String(64)),
        _required("driver_opts", _TEXT),
        _required("scheduler", sa.String(64)),
        _required("scheduler_opts", _TEXT),
        _required("use_host_network", sa.Boolean()),
        sa.Column("wsproxy_addr", sa.String(1024)),
        sa.Column("wsproxy_api_token", sa.String(128)),
        sa.PrimaryKeyConstraint("name", name="pk_scaling_groups"),
    )
    op.create_table(
        "session_callbacks",
        _required("id", _INTEGER, autoincrement=True),
        _required("session_id", _ID),
        _required("access_key", sa.String(20)),
        _required("url", _TEXT),
        _required("body", _TEXT),
        _required("attempts", _INTEGER),
        _required("due_at", _TIME),
        sa.Column("trace", sa.String(55)),
        sa.PrimaryKeyConstraint("id", name="pk_session_callbacks"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_session_callbacks_session_id", "session_callbacks", ["session_id"])
    op.create_table(
        "session_events",
        _required("id", _INTEGER, autoincrement=True),
        _required("name", sa.String(64)),
        _required("session_id", _ID),
        sa.Column("kernel_id", _ID),
        _required("access_key", sa.String(20)),
        _required("domain_name", sa.String(64)),
        _required("group_id", _ID),
        _required("user_id", _ID),
        _required("at", _TIME),
        _required("payload", _TEXT),
        sa.PrimaryKeyConstraint("id", name="pk_session_events"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_session_events_at", "session_events", ["at"])
    op.create_index("ix_session_events_session_id", "session_events", ["session_id"])
    op.create_table(
        "session_templates",
        _required("id", _ID),
        _required("kind", sa.String(32)),
        _required("name", sa.String(128)),
        _required("domain_name", sa.String(64)),
        _required("group_id", _ID),
        _required("group_name", sa.String(64)),
        _required("user_id", _ID),
        _required("user_email", sa.String(256)),
        _required("document", _TEXT),
        _required("created_at", _TIME),
        _required("modified_at", _TIME),
        sa.PrimaryKeyConstraint("id", name="pk_session_templates"),
    )
    op.create_index("ix_session_templates_domain_name", "session_templates", ["domain_name"])
    op.create_index("ix_session_templates_user_id", "session_templates", ["user_id"])
    op.create_table(
        "sessions",
        _required("id", _ID),
        _required("name", sa.String(64)),
        _required("type", sa.String(32)),
        _required("status", sa.String(32)),
        sa.Column("status_info", _TEXT),
        _required("status_data", _TEXT),
        _required("status_history", _TEXT),
        _required("status_changed", _TIME),
        _required("result", sa.String(32)),
        _required("version", _INTEGER),
        _required("domain_name", sa.String(64)),
        _required("group_id", _ID),
        _required("group_name", sa.String(64)),
        _required("user_id", _ID),
        _required("user_email", sa.String(256)),
        _required("access_key", sa.String(20)),
        _required("created_by", sa.String(20)),
        _required("image", sa.String(512)),
        _required("architecture", sa.String(32)),
        sa.Column("tag", sa.String(256)),
        _required("cluster_mode", sa.String(32)),
        _required("runtime_class", sa.String(64), server_default=""),
        _required("cluster_size", _INTEGER),
        sa.Column("vni", _INTEGER),
        sa.Column("network", _TEXT),
        _required("requested_slots", _TEXT),
        _required("variant_requirements", _TEXT, server_default="[]"),
        _required("resource_opts", _TEXT),
        _required("environ", _TEXT),
        _required("mounts", _TEXT),
        _required("vfolder_mounts", _TEXT, server_default="[]"),
        sa.Column("startup_command", _TEXT),
        sa.Column("bootstrap_script", _TEXT),
        sa.Column("callback_url", _TEXT),
        sa.Column("starts_at", _TIME),
        _required("dependencies", _TEXT),
        _required("scaling_group", sa.String(64)),
        _required("designated_agents", _TEXT),
        _required("preopen_ports", _TEXT),
        sa.Column("batch_timeout_s", sa.Float()),
        sa.Column("exec_timeout_s", sa.Float()),
        _required("priority", _INTEGER),
        _required("num_queries", _INTEGER),
        _required("reason", sa.String(32)),
        sa.Column("not_before", _TIME),
        _required("starting_over", sa.Boolean(), server_default=sa.false()),
        _required("created_at", _TIME),
        sa.Column("scheduled_at", _TIME),
        sa.Column("started_at", _TIME),
        sa.Column("terminated_at", _TIME),
        sa.Column("array_id", _ID),
        sa.Column("array_name", sa.String(64)),
        sa.Column("array_index", _INTEGER),
        sa.Column("array_parallel", _INTEGER),
        _required("device_requests", _TEXT, server_default="[]"),
        sa.Column("trace", sa.String(55)),
        _required("plugin_options", _TEXT, server_default="{}"),
        sa.Column("claim_id", _ID),
        sa.Column("claim_name", sa.String(64)),
        _required("diagnosed_devices", _TEXT, server_default="{}"),
        _required("sealed_environ", _TEXT, server_default="{}"),
        sa.PrimaryKeyConstraint("id", name="pk_sessions"),
    )
    op.create_index("ix_sessions_created", "sessions", ["created_at", "id"])
    op.create_index("ix_sessions_owner", "sessions", ["access_key", "created_at"])
    op.create_index("ix_sessions_status", "sessions", ["status"])
    op.create_index(
        "uq_sessions_live_name",
        "sessions",
        ["access_key", "name"],
        unique=True,
        **_partial_index_options("status NOT IN ('CANCELLED', 'ERROR', 'TERMINATED')"),
    )
    op.create_index("uq_sessions_vni", "sessions", ["vni"], unique=True)
    op.create_table(
        "share_histories",
        _required("resource_group", sa.String(64)),
        _required("used", _TEXT),
        _required("at", _TIME),
        sa.PrimaryKeyConstraint("resource_group", name="pk_share_histories"),
    )
    op.create_table(
        "storage_policies",
        _required("kind", sa.String(32)),
        _required("name", sa.String(256)),
        _required("created_at", _TIME),
        _required("max_vfolder_count", _INTEGER),
        _required("max_quota_scope_size", sa.BigInteger()),
        sa.PrimaryKeyConstraint("kind", "name", name="pk_storage_policies"),
    )
    op.create_table(
        "users",
        _required("uuid", _ID),
        _required("username", sa.String(64)),
        _required("email", sa.String(256)),
        sa.Column("password", _TEXT),
        _required("role", sa.String(32)),
        _required("domain_name", sa.String(64)),
        _required("full_name", sa.String(256)),
        _required("description", _TEXT),
        _required("need_password_change", sa.Boolean()),
        _required("status", sa.String(32)),
        sa.Column("status_info", _TEXT),
        _required("created_at", _TIME),
        _required("modified_at", _TIME),
        sa.Column("main_access_key", sa.String(20)),
        _required("resource_policy", sa.String(256), server_default="default"),
        _required("allowed_client_ip", _TEXT, server_default="[]"),
        _required("totp_activated", sa.Boolean(), server_default=sa.false()),
        _required("sudo_session_enabled", sa.Boolean(), server_default=sa.false()),
        sa.Column("password_changed_at", _TIME),
        sa.PrimaryKeyConstraint("uuid", name="pk_users"),
        sa.UniqueConstraint("email", name="uq_users_email"),
        sa.UniqueConstraint("username", name="uq_users_username"),
    )
    op.create_table(
        "vfolders",
        _required("id", _ID),
        _required("name", sa.String(64)),
        _required("host", sa.String(128)),
        _required("quota_scope", sa.String(64)),
        _required("domain_name", sa.String(64)),
        _required("ownership_type", sa.String(32)),
        sa.Column("user_id", _ID),
        sa.Column("group_id", _ID),
        _required("usage_mode", sa.String(32)),
        _required("permission", sa.String(32)),
        _required("status", sa.String(32)),
        sa.Column("status_info", _TEXT),
        _required("status_changed", _TIME),
        _required("cloneable", sa.Boolean()),
        sa.Column("cloned_from", _ID),
        _required("creator", sa.String(256)),
        sa.Column("max_size", sa.BigInteger()),
        _required("created_at", _TIME),
        sa.Column("last_used", _TIME),
        sa.Column("unmanaged_path", _TEXT),
        sa.PrimaryKeyConstraint("id", name="pk_vfolders"),
    )
    op.create_index("ix_vfolders_group_id", "vfolders", ["group_id"])
    op.create_index("ix_vfolders_status", "vfolders", ["status"])
    op.create_index("ix_vfolders_user_id", "vfolders", ["user_id"])
    op.create_index(
        "uq_vfolders_live_name_of_group",
        "vfolders",
        ["group_id", "name"],
        unique=True,
        **_partial_index_options(
            "status NOT IN ('delete-complete', 'delete-error', 'delete-ongoing', 'delete-pending')"
        ),
    )
    op.create_index(
        "uq_vfolders_live_name_of_user",
        "vfolders",
        ["user_id", "name"],
        unique=True,
        **_partial_index_options(
            "status NOT IN ('delete-complete', 'delete-error', 'delete-ongoing', 'delete-pending')"
        ),
    )
    op.create_table(
        "artifacts",
        _required("id", _ID),
        _required("registry_id", _ID),
        _required("type", sa.String(32)),
        _required("name", sa.String(256)),
        _required("description", _TEXT),
        sa.Column("readme", _TEXT),
        _required("extra", _TEXT),
        _required("created_at", _TIME),
        _required("scanned_at", _TIME),
        _required("restricted", sa.Boolean(), server_default=sa.false()),
        sa.Column("viewers", _TEXT),
        sa.ForeignKeyConstraint(
            ["registry_id"],
            ["artifact_registries.id"],
            name="fk_artifacts_registry_id_artifact_registries",
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name="pk_artifacts"),
        sa.UniqueConstraint("registry_id", "type", "name", name="uq_artifacts_registry_id_type_name"),
    )
    op.create_index("ix_artifacts_name", "artifacts", ["name"])
    op.create_table(
        "kernels",
        _required("id", _ID),
        _required("session_id", _ID),
        _required("cluster_role", sa.String(16)),
        _required("cluster_idx", _INTEGER),
        _required("local_rank", _INTEGER),
        _required("cluster_hostname", sa.String(64)),
        _required("image", sa.String(512)),
        _required("architecture", sa.String(32)),
        _required("status", sa.String(32)),
        _required("reason", sa.String(32)),
        sa.Column("status_info", _TEXT),
        _required("status_data", _TEXT),
        _required("status_changed", _TIME),
        _required("attempt", _INTEGER),
        sa.Column("agent", sa.String(64)),
        _required("requested_slots", _TEXT),
        _required("occupied_slots", _TEXT),
        _required("devices", _TEXT),
        _required("generation", _INTEGER),
        _required("attached_devices", _TEXT),
        _required("service_ports", _TEXT),
        sa.Column("container_id", sa.String(128)),
        sa.Column("exit_code", _INTEGER),
        _required("role_options", _TEXT, server_default="{}"),
        sa.Column("last_stat", _TEXT),
        _required("created_at", _TIME),
        sa.Column("started_at", _TIME),
        sa.Column("terminated_at", _TIME),
        sa.ForeignKeyConstraint(
            ["session_id"], ["sessions.id"], name="fk_kernels_session_id_sessions", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_kernels"),
    )
    op.create_index("ix_kernels_agent", "kernels", ["agent"])
    op.create_index("ix_kernels_session_id", "kernels", ["session_id"])
    op.create_index("ix_kernels_span", "kernels", ["terminated_at", "started_at"])
    op.create_index("ix_kernels_status", "kernels", ["status"])
    op.create_table(
        "memberships",
        _required("user_id", _ID),
        _required("group_id", _ID),
        _required("is_admin", sa.Boolean(), server_default=sa.false()),
        sa.ForeignKeyConstraint(["group_id"], ["groups.id"], name="fk_memberships_group_id_groups", ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["user_id"], ["users.uuid"], name="fk_memberships_user_id_users", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("user_id", "group_id", name="pk_memberships"),
    )
    op.create_table(
        "scaling_group_links",
        _required("scaling_group", sa.String(64)),
        _required("kind", sa.String(16)),
        _required("target", sa.String(64)),
        sa.ForeignKeyConstraint(
            ["scaling_group"],
            ["scaling_groups.name"],
            name="fk_scaling_group_links_scaling_group_scaling_groups",
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("scaling_group", "kind", "target", name="pk_scaling_group_links"),
    )
    op.create_table(
        "session_activities",
        _required("session_id", _ID),
        sa.Column("last_access", _TIME),
        _required("usage", _TEXT),
        sa.ForeignKeyConstraint(
            ["session_id"], ["sessions.id"], name="fk_session_activities_session_id_sessions", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("session_id", name="pk_session_activities"),
    )
    op.create_table(
        "session_artifacts",
        _required("session_id", _ID),
        _required("revision_id", _ID),
        sa.ForeignKeyConstraint(
            ["session_id"], ["sessions.id"], name="fk_session_artifacts_session_id_sessions", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("session_id", "revision_id", name="pk_session_artifacts"),
    )
    op.create_index("ix_session_artifacts_revision_id", "session_artifacts", ["revision_id"])
    op.create_table(
        "session_dependencies",
        _required("session_id", _ID),
        _required("depends_on", _ID),
        sa.ForeignKeyConstraint(
            ["session_id"], ["sessions.id"], name="fk_session_dependencies_session_id_sessions", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("session_id", "depends_on", name="pk_session_dependencies"),
    )
    op.create_index("ix_session_dependencies_depends_on", "session_dependencies", ["depends_on"])
    op.create_table(
        "session_vfolders",
        _required("session_id", _ID),
        _required("folder_id", _ID),
        sa.ForeignKeyConstraint(
            ["session_id"], ["sessions.id"], name="fk_session_vfolders_session_id_sessions", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("session_id", "folder_id", name="pk_session_vfolders"),
    )
    op.create_index("ix_session_vfolders_folder_id", "session_vfolders", ["folder_id"])
    op.create_table(
        "vfolder_invitations",
        _required("id", _ID),
        _required("folder_id", _ID),
        _required("inviter", sa.String(256)),
        _required("invitee", sa.String(256)),
        _required("permission", sa.String(32)),
        _required("state", sa.String(32)),
        _required("created_at", _TIME),
        _required("modified_at", _TIME),
        sa.ForeignKeyConstraint(
            ["folder_id"], ["vfolders.id"], name="fk_vfolder_invitations_folder_id_vfolders", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_vfolder_invitations"),
    )
    op.create_index("ix_vfolder_invitations_invitee", "vfolder_invitations", ["invitee"])
    op.create_index("ix_vfolder_invitations_inviter", "vfolder_invitations", ["inviter"])
    op.create_index(
        "uq_vfolder_invitations_pending",
        "vfolder_invitations",
        ["folder_id", "invitee"],
        unique=True,
        **_partial_index_options("state = 'pending'"),
    )
    op.create_table(
        "vfolder_permissions",
        _required("folder_id", _ID),
        _required("user_id", _ID),
        _required("permission", sa.String(32)),
        sa.ForeignKeyConstraint(
            ["folder_id"], ["vfolders.id"], name="fk_vfolder_permissions_folder_id_vfolders", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("folder_id", "user_id", name="pk_vfolder_permissions"),
    )
    op.create_index("ix_vfolder_permissions_user_id", "vfolder_permissions", ["user_id"])
    op.create_table(
        "artifact_revisions",
        _required("id", _ID),
        _required("artifact_id", _ID),
        _required("version", sa.String(256)),
        _required("status", sa.String(32)),
        sa.Column("status_info", _TEXT),
        _required("status_changed", _TIME),
        _required("generation", _INTEGER),
        _required("attempt", _INTEGER),
        _required("residue", sa.Boolean()),
        sa.Column("size", sa.BigInteger()),
        sa.Column("file_count", _INTEGER),
        sa.Column("digest", sa.String(128)),
        sa.Column("imported_digest", sa.String(128)),
        _required("source", _TEXT),
        sa.Column("remote_status", sa.String(32)),
        sa.Column("stages", _TEXT),
        _required("delegated", sa.Boolean()),
        sa.Column("began_at", _TIME),
        _required("created_at", _TIME),
        sa.Column("last_used", _TIME),
        sa.ForeignKeyConstraint(
            ["artifact_id"], ["artifacts.id"], name="fk_artifact_revisions_artifact_id_artifacts", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_artifact_revisions"),
        sa.UniqueConstraint("artifact_id", "version", name="uq_artifact_revisions_artifact_id_version"),
    )
    op.create_index("ix_artifact_revisions_residue", "artifact_revisions", ["residue"])
    op.create_index("ix_artifact_revisions_status_artifact_id", "artifact_revisions", ["status", "artifact_id"])
    op.create_table(
        "kernel_logs",
        _required("kernel_id", _ID),
        _required("tail", sa.LargeBinary()),
        sa.ForeignKeyConstraint(
            ["kernel_id"], ["kernels.id"], name="fk_kernel_logs_kernel_id_kernels", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("kernel_id", name="pk_kernel_logs"),
    )
    op.create_index("ix_sessions_array", "sessions", ["array_id", "array_index"])
    op.create_index("ix_sessions_named", "sessions", ["name", "access_key", "created_at"])
    op.create_table(
        "totp_devices",
        _required("user_id", _ID),
        _required("key", _TEXT),
        _required("is_active", sa.Boolean()),
        _required("created_at", _TIME),
        _required("last_step", sa.BigInteger()),
        _required("failures", _INTEGER),
        sa.Column("failed_at", _TIME),
        sa.ForeignKeyConstraint(["user_id"], ["users.uuid"], name="fk_totp_devices_user_id_users", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("user_id", name="pk_totp_devices"),
    )
    op.create_table(
        "recovery_codes",
        _required("user_id", _ID),
        _required("digest", sa.String(64)),
        sa.ForeignKeyConstraint(
            ["user_id"], ["users.uuid"], name="fk_recovery_codes_user_id_users", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("user_id", "digest", name="pk_recovery_codes"),
    )
    op.create_table(
        "old_passwords",
        _required("id", _INTEGER, autoincrement=True),
        _required("user_id", _ID),
        _required("password", _TEXT),
        sa.ForeignKeyConstraint(["user_id"], ["users.uuid"], name="fk_old_passwords_user_id_users", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name="pk_old_passwords"),
    )
    op.create_index("ix_old_passwords_user_id", "old_passwords", ["user_id"])
    op.create_table(
        "sign_ins",
        _required("id", _INTEGER, autoincrement=True),
        _required("user_id", _ID),
        _required("at", _TIME),
        _required("address", sa.String(64)),
        _required("method", sa.String(64)),
        _required("outcome", sa.String(64)),
        sa.ForeignKeyConstraint(["user_id"], ["users.uuid"], name="fk_sign_ins_user_id_users", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name="pk_sign_ins"),
    )
    op.create_index("ix_sign_ins_at", "sign_ins", ["at"])
    op.create_index("ix_sign_ins_user_id_id", "sign_ins", ["user_id", "id"])
    op.create_table(
        "endpoints",
        _required("id", _ID),
        _required("name", sa.String(64)),
        sa.Column("active_name", sa.String(64)),
        _required("version", _INTEGER),
        _required("status", sa.String(32)),
        _required("reason", sa.String(32)),
        _required("domain_name", sa.String(64)),
        _required("group_id", _ID),
        _required("group_name", sa.String(64)),
        _required("user_id", _ID),
        _required("user_email", sa.String(256)),
        _required("access_key", sa.String(20)),
        _required("created_by", sa.String(20)),
        _required("resource_group", sa.String(64)),
        _required("open_to_public", sa.Boolean()),
        _required("desired", _INTEGER),
        sa.Column("url", _TEXT),
        _required("published", sa.String(64)),
        _required("policy", _TEXT),
        _required("explanation", _TEXT),
        sa.Column("problem", _TEXT),
        _required("created_at", _TIME),
        _required("changed_at", _TIME),
        sa.Column("destroyed_at", _TIME),
        sa.Column("scaling", _TEXT),
        sa.Column("scaled", _TEXT),
        sa.PrimaryKeyConstraint("id", name="pk_endpoints"),
        sa.UniqueConstraint("user_id", "active_name", name="uq_endpoints_user_id_active_name"),
    )
    op.create_index("ix_endpoints_status", "endpoints", ["status"])
    op.create_table(
        "endpoint_revisions",
        _required("id", _ID),
        _required("endpoint_id", _ID),
        _required("number", _INTEGER),
        _required("status", sa.String(32)),
        _required("reason", sa.String(32)),
        _required("spec", _TEXT),
        _required("failures", _INTEGER),
        sa.Column("failed_at", _TIME),
        _required("step", _INTEGER),
        sa.Column("step_since", _TIME),
        _required("weight", sa.Float()),
        _required("created_at", _TIME),
        _required("changed_at", _TIME),
        sa.ForeignKeyConstraint(
            ["endpoint_id"], ["endpoints.id"], name="fk_endpoint_revisions_endpoint_id_endpoints", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_endpoint_revisions"),
        sa.UniqueConstraint("endpoint_id", "number", name="uq_endpoint_revisions_endpoint_id_number"),
    )
    op.create_table(
        "endpoint_replicas",
        _required("id", _ID),
        _required("endpoint_id", _ID),
        _required("revision_id", _ID),
        _required("status", sa.String(32)),
        _required("reason", sa.String(32)),
        sa.Column("detail", _TEXT),
        _required("traffic_ratio", sa.Float()),
        sa.Column("route", _TEXT),
        _required("created_at", _TIME),
        _required("changed_at", _TIME),
        sa.Column("started_at", _TIME),
        sa.Column("ready_at", _TIME),
        sa.ForeignKeyConstraint(
            ["endpoint_id"], ["endpoints.id"], name="fk_endpoint_replicas_endpoint_id_endpoints", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_endpoint_replicas"),
    )
    op.create_index("ix_endpoint_replicas_endpoint_id", "endpoint_replicas", ["endpoint_id"])
    op.create_table(
        "endpoint_tokens",
        _required("id", _ID),
        _required("endpoint_id", _ID),
        _required("user_id", _ID),
        _required("domain_name", sa.String(64)),
        _required("group_id", _ID),
        _required("created_at", _TIME),
        _required("valid_until", _TIME),
        sa.ForeignKeyConstraint(
            ["endpoint_id"], ["endpoints.id"], name="fk_endpoint_tokens_endpoint_id_endpoints", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_endpoint_tokens"),
    )
    op.create_index("ix_endpoint_tokens_endpoint_id", "endpoint_tokens", ["endpoint_id"])
    op.create_table(
        "endpoint_events",
        _required("id", _INTEGER),
        _required("endpoint_id", _ID),
        _required("at", _TIME),
        _required("subject", sa.String(64)),
        _required("status", sa.String(32)),
        _required("reason", sa.String(64)),
        sa.Column("detail", _TEXT),
        _required("data", _TEXT),
        sa.ForeignKeyConstraint(
            ["endpoint_id"], ["endpoints.id"], name="fk_endpoint_events_endpoint_id_endpoints", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_endpoint_events"),
    )
    op.create_index("ix_endpoint_events_endpoint", "endpoint_events", ["endpoint_id", "id"])
    op.create_index("ix_endpoint_events_at", "endpoint_events", ["at"])
    op.create_table(
        "endpoint_scaling_rules",
        _required("id", _ID),
        _required("endpoint_id", _ID),
        _required("rule", _TEXT),
        _required("created_at", _TIME),
        sa.ForeignKeyConstraint(
            ["endpoint_id"],
            ["endpoints.id"],
            name="fk_endpoint_scaling_rules_endpoint_id_endpoints",
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name="pk_endpoint_scaling_rules"),
    )
    op.create_index("ix_endpoint_scaling_rules_endpoint_id", "endpoint_scaling_rules", ["endpoint_id"])
    op.create_table(
        "endpoint_usage",
        _required("id", _ID),
        _required("endpoint_id", _ID),
        _required("hour", _INTEGER),
        _required("token", sa.String(64)),
        sa.Column("user_id", _ID),
        sa.Column("revision_id", _ID),
        sa.Column("replica_id", _ID),
        _required("requests", _INTEGER),
        _required("errors", _INTEGER),
        _required("prompt_tokens", _INTEGER),
        _required("cached_tokens", _INTEGER),
        _required("output_tokens", _INTEGER),
        _required("estimated", _INTEGER),
        _required("busy_ms", _INTEGER),
        sa.ForeignKeyConstraint(
            ["endpoint_id"], ["endpoints.id"], name="fk_endpoint_usage_endpoint_id_endpoints", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_endpoint_usage"),
    )
    op.create_index("ix_endpoint_usage_hour", "endpoint_usage", ["hour"])
    op.create_index("ix_endpoint_usage_endpoint", "endpoint_usage", ["endpoint_id", "hour"])
    op.create_table(
        "endpoint_usage_positions",
        _required("source", sa.String(64)),
        _required("last", _INTEGER),
        sa.PrimaryKeyConstraint("source", name="pk_endpoint_usage_positions"),
    )
    op.create_table(
        "device_claims",
        _required("id", _ID),
        _required("name", sa.String(64)),
        _required("version", _INTEGER),
        _required("status", sa.String(32)),
        sa.Column("status_info", _TEXT),
        _required("status_changed", _TIME),
        _required("is_deleting", sa.Boolean()),
        _required("domain_name", sa.String(64)),
        _required("group_id", _ID),
        _required("group_name", sa.String(64)),
        _required("user_id", _ID),
        _required("user_email", sa.String(256)),
        _required("access_key", sa.String(20)),
        _required("scaling_group", sa.String(64)),
        _required("requested_slots", _TEXT),
        _required("device_requests", _TEXT),
        sa.Column("idle_timeout_s", sa.Float()),
        _required("created_at", _TIME),
        sa.Column("agent", sa.String(64)),
        _required("occupied_slots", _TEXT),
        _required("devices", _TEXT),
        sa.Column("allocated_at", _TIME),
        sa.Column("idle_since", _TIME),
        sa.PrimaryKeyConstraint("id", name="pk_device_claims"),
    )
    op.create_index("ix_device_claims_agent", "device_claims", ["agent"])
    op.create_index("ix_device_claims_owner", "device_claims", ["access_key"])
    op.create_index("uq_device_claims_name", "device_claims", ["user_id", "group_id", "name"], unique=True)
    op.create_table(
        "claim_spans",
        _required("id", _INTEGER, autoincrement=True),
        _required("claim_id", _ID),
        _required("domain_name", sa.String(64)),
        _required("group_id", _ID),
        _required("group_name", sa.String(64)),
        _required("user_id", _ID),
        _required("slots", _TEXT),
        _required("started_at", _TIME),
        _required("terminated_at", _TIME),
        sa.PrimaryKeyConstraint("id", name="pk_claim_spans"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_claim_spans_terminated_at", "claim_spans", ["terminated_at"])
