"""Lay the tables of the manager.

Revision ID: 0001
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "agent_acks",
        sa.Column("agent_id", sa.String(length=64), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("agent_id", name=op.f("pk_agent_acks")),
    )
    op.create_table(
        "agents",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("status", sa.String(length=32), nullable=False),
        sa.Column("status_changed", sa.DateTime(timezone=True), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
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
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("devices", sa.Text(), nullable=False),
        sa.Column("plugins", sa.Text(), nullable=False),
        sa.Column("images", sa.Text(), nullable=False),
        sa.Column("version_id", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_agents")),
    )
    op.create_index(op.f("ix_agents_scaling_group"), "agents", ["scaling_group"], unique=False)
    op.create_index(op.f("ix_agents_status"), "agents", ["status"], unique=False)
    op.create_table(
        "audit_logs",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
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
        sa.PrimaryKeyConstraint("id", name=op.f("pk_background_tasks")),
    )
    op.create_index(op.f("ix_background_tasks_status"), "background_tasks", ["status"], unique=False)
    op.create_table(
        "domains",
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("description", sa.Text(), nullable=False),
        sa.Column("is_active", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("total_resource_slots", sa.Text(), nullable=False),
        sa.Column("integration_id", sa.String(length=512), nullable=True),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_domains")),
    )
    op.create_table(
        "groups",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("domain_name", sa.String(length=64), nullable=False),
        sa.Column("description", sa.Text(), nullable=False),
        sa.Column("is_active", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("total_resource_slots", sa.Text(), nullable=False),
        sa.Column("integration_id", sa.String(length=512), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_groups")),
        sa.UniqueConstraint("domain_name", "name", name=op.f("uq_groups_domain_name_name")),
    )
    op.create_table(
        "idempotency_tokens",
        sa.Column("access_key", sa.String(length=20), nullable=False),
        sa.Column("token", sa.String(length=128), nullable=False),
        sa.Column("session_id", sa.String(length=36), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("access_key", "token", name=op.f("pk_idempotency_tokens")),
    )
    op.create_index(op.f("ix_idempotency_tokens_created_at"), "idempotency_tokens", ["created_at"], unique=False)
    op.create_table(
        "keypair_resource_policies",
        sa.Column("name", sa.String(length=256), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("default_for_unspecified", sa.String(length=32), nullable=False),
        sa.Column("total_resource_slots", sa.Text(), nullable=False),
        sa.Column("max_concurrent_sessions", sa.Integer(), nullable=False),
        sa.Column("max_containers_per_session", sa.Integer(), nullable=False),
        sa.Column("max_session_lifetime", sa.Integer(), nullable=False),
        sa.Column("idle_timeout", sa.Integer(), nullable=False),
        sa.Column("max_vfolder_count", sa.Integer(), nullable=False),
        sa.Column("max_vfolder_size", sa.Integer(), nullable=False),
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
        sa.Column("rate_limit", sa.Integer(), nullable=False),
        sa.Column("num_queries", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("access_key", name=op.f("pk_keypairs")),
    )
    op.create_index(op.f("ix_keypairs_user_id"), "keypairs", ["user_id"], unique=False)
    op.create_table(
        "resource_presets",
        sa.Column("name", sa.String(length=256), nullable=False),
        sa.Column("resource_slots", sa.Text(), nullable=False),
        sa.Column("shared_memory", sa.Integer(), nullable=True),
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
        "session_events",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
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
        sa.Column("version", sa.Integer(), nullable=False),
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
        sa.Column("cluster_size", sa.Integer(), nullable=False),
        sa.Column("requested_slots", sa.Text(), nullable=False),
        sa.Column("resource_opts", sa.Text(), nullable=False),
        sa.Column("environ", sa.Text(), nullable=False),
        sa.Column("mounts", sa.Text(), nullable=False),
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
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("num_queries", sa.Integer(), nullable=False),
        sa.Column("reason", sa.String(length=32), nullable=False),
        sa.Column("not_before", sa.DateTime(timezone=True), nullable=True),
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
        sa.PrimaryKeyConstraint("uuid", name=op.f("pk_users")),
        sa.UniqueConstraint("email", name=op.f("uq_users_email")),
        sa.UniqueConstraint("username", name=op.f("uq_users_username")),
    )
    op.create_table(
        "kernels",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("session_id", sa.String(length=36), nullable=False),
        sa.Column("cluster_role", sa.String(length=16), nullable=False),
        sa.Column("cluster_idx", sa.Integer(), nullable=False),
        sa.Column("local_rank", sa.Integer(), nullable=False),
        sa.Column("cluster_hostname", sa.String(length=64), nullable=False),
        sa.Column("image", sa.String(length=512), nullable=False),
        sa.Column("architecture", sa.String(length=32), nullable=False),
        sa.Column("status", sa.String(length=32), nullable=False),
        sa.Column("reason", sa.String(length=32), nullable=False),
        sa.Column("status_info", sa.Text(), nullable=True),
        sa.Column("status_data", sa.Text(), nullable=False),
        sa.Column("status_changed", sa.DateTime(timezone=True), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("agent", sa.String(length=64), nullable=True),
        sa.Column("requested_slots", sa.Text(), nullable=False),
        sa.Column("occupied_slots", sa.Text(), nullable=False),
        sa.Column("devices", sa.Text(), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("attached_devices", sa.Text(), nullable=False),
        sa.Column("service_ports", sa.Text(), nullable=False),
        sa.Column("container_id", sa.String(length=128), nullable=True),
        sa.Column("exit_code", sa.Integer(), nullable=True),
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
        "kernel_logs",
        sa.Column("kernel_id", sa.String(length=36), nullable=False),
        sa.Column("tail", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(
            ["kernel_id"], ["kernels.id"], name=op.f("fk_kernel_logs_kernel_id_kernels"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("kernel_id", name=op.f("pk_kernel_logs")),
    )
