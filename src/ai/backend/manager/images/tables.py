"""Tables of images. Columns are named as the fields of the model."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Index, String, Table

from ai.backend.infra.database import JSONText, UTCDateTime
from ai.backend.manager.db.metadata import metadata, required

ANY_ARCHITECTURE = ""
"""The value of the key column for any architecture."""

images = Table(
    "images",
    metadata,
    Column("name", String(512), primary_key=True),
    Column("architecture", String(32), primary_key=True),
    required("repository", String(512), index=True),
    required("registry", String(256)),
    required("project", String(256)),
    required("digest", String(256)),
    required("config_digest", String(256)),
    required("size_bytes", BigInteger),
    required("labels", JSONText),
    required("created_at", UTCDateTime),
    required("scanned_at", UTCDateTime),
    Index("ix_images_registry_scanned_at", "registry", "scanned_at"),
)

image_aliases = Table(
    "image_aliases",
    metadata,
    Column("alias", String(128), primary_key=True),
    required("image", String(512), index=True),
    required("architecture", String(32)),
)
