"""Tables of workers."""

from __future__ import annotations

from sqlalchemy import Boolean, Column, ForeignKey, Integer, String, Table, Text

from ai.backend.appproxy.coordinator.db import metadata
from ai.backend.common.wire.appproxy import AppFilter, AppMode, FrontendMode, ProxyProtocol
from ai.backend.infra.database import GUID, UTCDateTime, Whole
from ai.backend.infra.database.columns import EnumText, JSONTuple, required

workers = Table(
    "workers",
    metadata,
    Column("id", GUID, primary_key=True),
    required("authority", String(255), unique=True),
    required("frontend_mode", EnumText(FrontendMode)),
    required("protocol", EnumText(ProxyProtocol)),
    required("hostname", String(255)),
    required("use_tls", Boolean),
    required("api_port", Integer),
    Column("low_port", Integer),
    Column("high_port", Integer),
    Column("wildcard_domain", String(255)),
    Column("wildcard_port", Integer),
    required("filtered_apps_only", Boolean),
    required("accepted_traffics", JSONTuple(AppMode)),
    required("app_filters", JSONTuple(AppFilter)),
    required("created_at", UTCDateTime),
    required("updated_at", UTCDateTime),
    required("version", Whole),
)

authorities = Table(
    "authorities",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),  # always 1
    required("key", Text),
    required("certificate", Text),
)

worker_nodes = Table(
    "worker_nodes",
    metadata,
    Column("worker_id", GUID, ForeignKey("workers.id", ondelete="CASCADE"), primary_key=True),
    Column("node", String(64), primary_key=True),
    required("seen_at", UTCDateTime),
    required("is_linked", Boolean),
    required("acked", Whole),
    required("sequence", Whole),
)
