"""Defines the SQL tables of resource groups."""

from __future__ import annotations

from sqlalchemy import Boolean, Column, ForeignKey, String, Table, Text

from ai.backend.infra.database import JSONText, UTCDateTime
from ai.backend.infra.database.columns import required
from ai.backend.manager.db import metadata

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
