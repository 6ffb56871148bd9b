"""The table of leases."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, String, Table

from ai.backend.infra.database import UTCDateTime
from ai.backend.manager.db.metadata import metadata, required

leases = Table(
    "leases",
    metadata,
    Column("name", String(128), primary_key=True),
    required("holder", String(128)),
    required("token", BigInteger),
    required("expires_at", UTCDateTime),
)
