"""Defines the SQL tables of images and stores images in SQL."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any

from msgspec.structs import asdict
from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Index,
    Row,
    String,
    Table,
    and_,
    bindparam,
    delete,
    func,
    insert,
    or_,
    select,
    update,
)
from sqlalchemy.exc import IntegrityError
from sqlalchemy.sql import ColumnElement

from ai.backend.common.errors import Conflict, InvalidInput
from ai.backend.common.images import ImageName
from ai.backend.infra.database import Database, JSONText, UTCDateTime
from ai.backend.infra.database.batching import chunks
from ai.backend.infra.database.columns import required
from ai.backend.infra.database.prepared import IsOneOf, Prepared
from ai.backend.manager.db import metadata
from ai.backend.manager.images.model import ImageAlias, RegisteredImage, ScannedImage

ANY_ARCHITECTURE = ""
"""The value that stands for any architecture in the key column."""

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

_IMAGES_BY_NAME_QUERY = Prepared(select(images).where(IsOneOf(images.c.name, "names")))
_HAS_REFERENCE = or_(images.c.name == bindparam("reference"), images.c.repository == bindparam("reference"))
_IMAGES_OF_REFERENCE_QUERY = Prepared(select(images).where(_HAS_REFERENCE).order_by(images.c.name))
_ALIAS_QUERY = Prepared(select(image_aliases).where(image_aliases.c.alias == bindparam("alias")))


def _image_of(row: Row[Any]) -> RegisteredImage:
    return RegisteredImage(**{key: value for key, value in row._mapping.items() if key != "repository"})


def _alias_of(row: Row[Any]) -> ImageAlias:
    return ImageAlias(alias=row.alias, image=row.image, architecture=row.architecture or None)


def _has_key(name: str, architecture: str) -> ColumnElement[bool]:
    return and_(images.c.name == name, images.c.architecture == architecture)


def _drop_dangling_aliases(s: Connection, names: Collection[str]) -> None:
    for chunk in chunks(names):
        remaining_names = select(images.c.name).where(images.c.name.in_(chunk))
        s.execute(
            delete(image_aliases).where(image_aliases.c.image.in_(chunk), image_aliases.c.image.not_in(remaining_names))
        )


class SqlImageStore:
    """Implements :class:`ai.backend.manager.images.store.ImageStore`."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def record(self, registry: str, scanned_images: Sequence[ScannedImage], *, at: datetime) -> int:
        def work(s: Connection) -> int:
            new_count = 0
            for image in scanned_images:
                changed_columns = {**asdict(image), "labels": dict(image.labels), "scanned_at": at}
                if s.execute(
                    update(images).where(_has_key(image.name, image.architecture)).values(changed_columns)
                ).rowcount:
                    continue
                repository = ImageName.parse(image.name).repository
                s.execute(
                    insert(images),
                    {**changed_columns, "registry": registry, "repository": repository, "created_at": at},
                )
                new_count += 1
            return new_count

        return await self._db.run_write(work)

    async def sweep(self, registry: str, *, before: datetime, kept_names: Collection[str] = ()) -> int:
        def work(s: Connection) -> int:
            stale_names_query = select(images.c.name).where(images.c.registry == registry, images.c.scanned_at < before)
            removed_names = [row.name for row in s.execute(stale_names_query) if row.name not in kept_names]
            count = 0
            for chunk in chunks(set(removed_names)):
                clauses = (images.c.name.in_(chunk), images.c.registry == registry, images.c.scanned_at < before)
                count += s.execute(delete(images).where(*clauses)).rowcount
            _drop_dangling_aliases(s, set(removed_names))
            return count

        return await self._db.run_write(work)

    async def all(self, registry: str | None = None) -> list[RegisteredImage]:
        query = select(images).order_by(images.c.name, images.c.architecture)
        if registry is not None:
            query = query.where(images.c.registry == registry)
        return await self._db.run_read(lambda s: [_image_of(row) for row in s.execute(query)])

    async def lookup(self, reference: str) -> list[RegisteredImage]:
        def work(s: Connection) -> list[RegisteredImage]:
            matches = [_image_of(row) for row in _IMAGES_OF_REFERENCE_QUERY.all(s, {"reference": reference})]
            alias = _ALIAS_QUERY.first(s, {"alias": reference}) if not matches else None
            if not matches and alias is not None:
                query = select(images).where(images.c.name == alias.image)
                if alias.architecture != ANY_ARCHITECTURE:
                    query = query.where(images.c.architecture == alias.architecture)
                matches = [_image_of(row) for row in s.execute(query)]
            return matches

        return await self._db.run_read(work)

    async def by_names(self, names: Collection[str]) -> list[RegisteredImage]:
        return [_image_of(row) for row in await self._db.fetch(_IMAGES_BY_NAME_QUERY, {"names": names})]

    async def forget(self, name: str, architecture: str | None = None) -> int:
        def work(s: Connection) -> int:
            clauses = images.c.name == name if architecture is None else _has_key(name, architecture)
            count = s.execute(delete(images).where(clauses)).rowcount
            if count:
                _drop_dangling_aliases(s, [name])
            return count

        return await self._db.run_write(work)

    async def clear(self, registry: str) -> int:
        def work(s: Connection) -> int:
            names = {row.name for row in s.execute(select(images.c.name).where(images.c.registry == registry))}
            count = s.execute(delete(images).where(images.c.registry == registry)).rowcount
            _drop_dangling_aliases(s, names)
            return count

        return await self._db.run_write(work)

    async def aliases(self) -> list[ImageAlias]:
        query = select(image_aliases).order_by(image_aliases.c.alias)
        return await self._db.run_read(lambda s: [_alias_of(row) for row in s.execute(query)])

    async def alias(self, alias: str) -> ImageAlias | None:
        rows = await self._db.fetch(_ALIAS_QUERY, {"alias": alias})
        return _alias_of(rows[0]) if rows else None

    async def put_alias(self, alias: ImageAlias) -> None:
        values = {**asdict(alias), "architecture": alias.architecture or ANY_ARCHITECTURE}

        def work(s: Connection) -> None:
            row = s.execute(select(image_aliases).where(image_aliases.c.alias == alias.alias)).one_or_none()
            if row is None:
                if s.execute(select(func.count()).select_from(images).where(images.c.name == alias.alias)).scalar_one():
                    raise InvalidInput(f"{alias.alias!r} is the name of an image itself.")
                s.execute(insert(image_aliases), values)
            elif dict(row._mapping) != values:
                raise Conflict(f"{alias.alias!r} stands for {row.image} already.", data={"alias": "taken"})

        try:
            await self._db.run_write(work)
        except IntegrityError:
            raise Conflict(f"{alias.alias!r} is taken already.", data={"alias": "taken"}) from None

    async def drop_alias(self, alias: str) -> bool:
        query = delete(image_aliases).where(image_aliases.c.alias == alias)
        return await self._db.run_write(lambda s: s.execute(query).rowcount > 0)
