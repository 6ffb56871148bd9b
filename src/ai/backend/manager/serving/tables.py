"""Defines the SQL tables of model services."""

from __future__ import annotations

from sqlalchemy import Boolean, Column, Float, ForeignKey, Index, String, Table, Text, UniqueConstraint

from ai.backend.common.serving import EndpointStatus, ReplicaStatus, ServedRevisionStatus, ServingReason
from ai.backend.core.serving.autoscale import ScalingPolicy, ScalingRule
from ai.backend.core.serving.model import RolloutPolicy
from ai.backend.infra.database import GUID, JSONText, UTCDateTime, Whole
from ai.backend.infra.database.columns import EnumText, required
from ai.backend.manager.db import metadata
from ai.backend.manager.serving.model import ReplicaRoute, RevisionSpec, ScalingNote

endpoints = Table(
    "endpoints",
    metadata,
    Column("id", GUID, primary_key=True),
    required("name", String(64)),
    Column("active_name", String(64)),
    required("version", Whole),
    required("status", EnumText(EndpointStatus), index=True),
    required("reason", EnumText(ServingReason)),
    required("domain_name", String(64)),
    required("group_id", GUID),
    required("group_name", String(64)),
    required("user_id", GUID),
    required("user_email", String(256)),
    required("access_key", String(20)),
    required("created_by", String(20)),
    required("resource_group", String(64)),
    required("open_to_public", Boolean),
    required("desired", Whole),
    Column("url", Text),
    required("published", String(64)),
    required("policy", JSONText(RolloutPolicy)),
    Column("scaling", JSONText(ScalingPolicy)),
    Column("scaled", JSONText(ScalingNote)),
    required("explanation", Text),
    Column("problem", Text),
    required("created_at", UTCDateTime),
    required("changed_at", UTCDateTime),
    Column("destroyed_at", UTCDateTime),
    UniqueConstraint("user_id", "active_name"),
)

endpoint_revisions = Table(
    "endpoint_revisions",
    metadata,
    Column("id", GUID, primary_key=True),
    required("endpoint_id", GUID, ForeignKey("endpoints.id", ondelete="CASCADE")),
    required("number", Whole),
    required("status", EnumText(ServedRevisionStatus)),
    required("reason", EnumText(ServingReason)),
    required("spec", JSONText(RevisionSpec)),
    required("failures", Whole),
    Column("failed_at", UTCDateTime),
    required("step", Whole),
    Column("step_since", UTCDateTime),
    required("weight", Float),
    required("created_at", UTCDateTime),
    required("changed_at", UTCDateTime),
    UniqueConstraint("endpoint_id", "number"),
)

endpoint_replicas = Table(
    "endpoint_replicas",
    metadata,
    Column("id", GUID, primary_key=True),
    required("endpoint_id", GUID, ForeignKey("endpoints.id", ondelete="CASCADE"), index=True),
    required("revision_id", GUID),
    required("status", EnumText(ReplicaStatus)),
    required("reason", EnumText(ServingReason)),
    Column("detail", Text),
    required("traffic_ratio", Float),
    Column("route", JSONText(ReplicaRoute)),
    required("created_at", UTCDateTime),
    required("changed_at", UTCDateTime),
    Column("started_at", UTCDateTime),
    Column("ready_at", UTCDateTime),
)

endpoint_scaling_rules = Table(
    "endpoint_scaling_rules",
    metadata,
    Column("id", GUID, primary_key=True),
    required("endpoint_id", GUID, ForeignKey("endpoints.id", ondelete="CASCADE"), index=True),
    required("rule", JSONText(ScalingRule)),
    required("created_at", UTCDateTime),
)

endpoint_tokens = Table(
    "endpoint_tokens",
    metadata,
    Column("id", GUID, primary_key=True),
    required("endpoint_id", GUID, ForeignKey("endpoints.id", ondelete="CASCADE"), index=True),
    required("user_id", GUID),
    required("domain_name", String(64)),
    required("group_id", GUID),
    required("created_at", UTCDateTime),
    required("valid_until", UTCDateTime),
)

endpoint_usage = Table(
    "endpoint_usage",
    metadata,
    Column("id", GUID, primary_key=True),
    required("endpoint_id", GUID, ForeignKey("endpoints.id", ondelete="CASCADE")),
    required("hour", Whole, index=True),
    required("token", String(64)),
    Column("user_id", GUID),
    Column("revision_id", GUID),
    Column("replica_id", GUID),
    required("requests", Whole),
    required("errors", Whole),
    required("prompt_tokens", Whole),
    required("cached_tokens", Whole),
    required("output_tokens", Whole),
    required("estimated", Whole),
    required("busy_ms", Whole),
    Index("ix_endpoint_usage_endpoint", "endpoint_id", "hour"),
)

endpoint_usage_positions = Table(
    "endpoint_usage_positions",
    metadata,
    Column("source", String(64), primary_key=True),
    required("last", Whole),
)

endpoint_events = Table(
    "endpoint_events",
    metadata,
    Column("id", Whole, primary_key=True, autoincrement=True),
    required("endpoint_id", GUID, ForeignKey("endpoints.id", ondelete="CASCADE")),
    required("at", UTCDateTime, index=True),
    required("subject", String(64)),
    required("status", String(32)),
    required("reason", String(64)),
    Column("detail", Text),
    required("data", JSONText),
    Index("ix_endpoint_events_endpoint", "endpoint_id", "id"),
)
