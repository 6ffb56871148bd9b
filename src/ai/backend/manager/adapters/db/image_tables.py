"""The tables of images. Column names are the fields of the model."""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, Column, Index, String, Table

from ai.backend.infra.database import JSONText, UTCDateTime
from ai.backend.manager.adapters.db.tables import metadata

ANY_ARCHITECTURE = ""
"""What stands in a column of a key for no particular architecture."""


def _required(name: str, kind: Any, **options: Any) -> Column[Any]:
    return Column(name, kind, nullable=False, **options)


images = Table(
    "images",
    metadata,
    Column("name", String(512), primary_key=True),
    Column("architecture", String(32), primary_key=True),
    _required("repository", String(512), index=True),
    _required("registry", String(256)),
    _required("project", String(256)),
    _required("digest", String(256)),
    _required("config_digest", String(256)),
    _required("size_bytes", BigInteger),
    _required("labels", JSONText),
    _required("created_at", UTCDateTime),
    _required("scanned_at", UTCDateTime),
    Index("ix_images_registry_scanned_at", "registry", "scanned_at"),
)

image_aliases = Table(
    "image_aliases",
    metadata,
    Column("alias", String(128), primary_key=True),
    _required("image", String(512), index=True),
    _required("architecture", String(32)),
)
