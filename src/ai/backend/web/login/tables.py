"""Tables of login sessions in the web server's SQLite file.

They are made when they are missing: sessions may be lost.
"""

from __future__ import annotations

from sqlalchemy import Column, Integer, LargeBinary, MetaData, String, Table

from ai.backend.infra.database.columns import UTCDateTime

metadata = MetaData()

logins = Table(
    "login_sessions",
    metadata,
    Column("login_id", String(64), primary_key=True),
    Column("username", String(256), nullable=False, index=True),
    Column("sealed", LargeBinary, nullable=False),
    Column("expires_at", UTCDateTime, nullable=False, index=True),
    Column("created_at", UTCDateTime, nullable=False),
    Column("address", String(64), nullable=False),
    Column("client", String(256), nullable=False),
)

login_uses = Table(
    "login_session_uses",
    metadata,
    Column("login_id", String(64), primary_key=True),
    Column("used_at", UTCDateTime, nullable=False),
)

login_failures = Table(
    "login_failures",
    metadata,
    Column("key", String(320), primary_key=True),
    Column("count", Integer, nullable=False),
    Column("expires_at", UTCDateTime, nullable=False, index=True),
)
