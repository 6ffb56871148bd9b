"""Defines the SQL tables of agents and slot types."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Boolean, Column, String, Table

from ai.backend.common.states import AgentStatus, SlotType
from ai.backend.common.wire.reports import ImageReport, OverlayReport, PluginReport, RuntimeClassReport
from ai.backend.infra.database import JSONText, QuantityMap, UTCDateTime, Whole
from ai.backend.infra.database.columns import EnumText, JSONTuple, required
from ai.backend.manager.db import metadata

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
    required("devices", JSONTuple(dict[str, Any], is_shared=True)),
    required("plugins", JSONTuple(PluginReport, is_shared=True)),
    required("images", JSONTuple(ImageReport, is_shared=True)),
    required("runtime_classes", JSONTuple(RuntimeClassReport, is_shared=True), server_default="[]"),
    Column("overlay", JSONText(OverlayReport)),
    required("location", JSONTuple(str), server_default="[]"),
    Column("kernel_limit", Whole),
    required("version_id", Whole),
)


slot_types = Table(
    "resource_slot_types",
    metadata,
    Column("slot_name", String(64), primary_key=True),
    required("slot_type", EnumText(SlotType)),
    required("display", JSONText),
)
