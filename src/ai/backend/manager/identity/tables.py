"""Defines the SQL tables of users, keypairs, domains, groups and policies."""

from __future__ import annotations

import msgspec
from sqlalchemy import BigInteger, Boolean, Column, ForeignKey, Index, String, Table, Text, UniqueConstraint, false

from ai.backend.common.states import GroupType, UserRole, UserStatus
from ai.backend.common.volume_paths import QuotaScopeKind
from ai.backend.infra.database import GUID, JSONText, QuantityMap, UTCDateTime, Whole
from ai.backend.infra.database.columns import EnumText, JSONTuple, required
from ai.backend.manager.db import metadata
from ai.backend.manager.identity.model import ALL_REGISTRIES


class RegistryNames(JSONText):
    """Column type for names of image registries: a JSON list, or the text of a PostgreSQL array.

    The manual's SQL writes the latter (spec 03-06:148). ``*`` in it is every registry, as NULL; a text that is neither
    is no registry.
    """

    cache_ok = True

    def decode(self, text: str) -> list[str] | None:
        if text.startswith("{"):
            names = [name.strip(' "') for name in text.strip("{}").split(",")]
        else:
            try:
                names = msgspec.json.decode(text, type=list[str])
            except msgspec.MsgspecError:
                names = []
        return None if ALL_REGISTRIES in names else [name for name in names if name]


domains = Table(
    "domains",
    metadata,
    Column("name", String(64), primary_key=True),
    required("description", Text),
    required("is_active", Boolean),
    required("created_at", UTCDateTime),
    Column("modified_at", UTCDateTime),
    required("total_resource_slots", QuantityMap),
    required("allowed_vfolder_hosts", JSONText, server_default="{}"),
    Column("allowed_docker_registries", RegistryNames),
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
    Column("modified_at", UTCDateTime),
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
    required("totp_activated", Boolean, server_default=false()),
    required("sudo_session_enabled", Boolean, server_default=false()),
    Column("password_changed_at", UTCDateTime),
)

totp_devices = Table(
    "totp_devices",
    metadata,
    Column("user_id", GUID, ForeignKey("users.uuid", ondelete="CASCADE"), primary_key=True),
    required("key", Text),  # sealed, see secrets/sealer.py
    required("is_active", Boolean),
    required("created_at", UTCDateTime),
    required("last_step", BigInteger),  # of the newest one-time password that was accepted
    required("failures", Whole),
    Column("failed_at", UTCDateTime),
)

recovery_codes = Table(
    "recovery_codes",
    metadata,
    Column("user_id", GUID, ForeignKey("users.uuid", ondelete="CASCADE"), primary_key=True),
    Column("digest", String(64), primary_key=True),
)

old_passwords = Table(
    "old_passwords",
    metadata,
    Column("id", Whole, primary_key=True, autoincrement=True),
    Column("user_id", GUID, ForeignKey("users.uuid", ondelete="CASCADE"), nullable=False, index=True),
    required("password", Text),
)

sign_ins = Table(
    "sign_ins",
    metadata,
    Column("id", Whole, primary_key=True, autoincrement=True),
    Column("user_id", GUID, ForeignKey("users.uuid", ondelete="CASCADE"), nullable=False),
    required("at", UTCDateTime, index=True),
    required("address", String(64)),
    required("method", String(64)),
    required("outcome", String(64)),
    Index("ix_sign_ins_user_id_id", "user_id", "id"),
)

memberships = Table(
    "memberships",
    metadata,
    Column("user_id", GUID, ForeignKey("users.uuid", ondelete="CASCADE"), primary_key=True),
    Column("group_id", GUID, ForeignKey("groups.id", ondelete="CASCADE"), primary_key=True),
    required("is_admin", Boolean, server_default=false()),
)

keypairs = Table(
    "keypairs",
    metadata,
    Column("access_key", String(20), primary_key=True),
    required("secret_key", Text),  # sealed, see secrets/sealer.py
    required("user_id", GUID, index=True),
    required("is_active", Boolean),
    required("is_admin", Boolean),
    required("created_at", UTCDateTime),
    required("modified_at", UTCDateTime),
    Column("last_used", UTCDateTime),
    required("resource_policy", String(256)),
    required("rate_limit", Whole),
    required("concurrency_limit", Whole, server_default="0"),
    required("num_queries", Whole),
    Column("ssh_public_key", Text),
    required("allowed_client_ip", JSONTuple(str), server_default="[]"),
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
    required("max_claims", Whole, server_default="0"),
    required("max_claim_idle_time", Whole, server_default="0"),
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
