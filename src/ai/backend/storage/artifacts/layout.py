"""Reads the records and objects of revisions on storages, and copies objects between storages."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import aclosing
from typing import TypeVar
from uuid import UUID

import msgspec

from ai.backend.common.errors import InvalidPath, NoSuchFile, Unavailable
from ai.backend.common.wire.artifacts import Manifest
from ai.backend.plugin.object_storage import ObjectStorage, ObjectUpload
from ai.backend.storage.artifacts.model import MAX_RECORD, area, files_of, manifest_key

T = TypeVar("T")


async def load_record(storage: ObjectStorage, key: str, kind: type[T]) -> T | None:
    """Returns a record of a revision, or None if there is no readable one."""
    try:
        return msgspec.json.decode(await storage.get(key, limit=MAX_RECORD), type=kind)
    except (NoSuchFile, InvalidPath, msgspec.MsgspecError):
        return None


async def load_manifest(storage: ObjectStorage, revision: UUID) -> Manifest | None:
    """Returns the manifest of a revision, or None if it is not archived there."""
    return await load_record(storage, manifest_key(revision), Manifest)


async def sizes_below(storage: ObjectStorage, prefix: str) -> dict[str, int]:
    """Returns path below the prefix -> bytes."""
    sizes: dict[str, int] = {}
    cursor: str | None = None
    while True:
        page = await storage.list(prefix, cursor=cursor)
        sizes |= {info.key.removeprefix(prefix): info.size for info in page.objects}
        if (cursor := page.cursor) is None:
            return sizes


async def transfer(
    source: ObjectStorage, key: str, target: ObjectStorage, target_key: str, size: int, report: Callable[[int], None]
) -> None:
    """Copies an object to another storage, resuming a partial copy; ``report`` receives the bytes added. Raises
    NoSuchFile: the source does not exist."""
    await source.stat(key)
    upload = await upload_of(target, target_key, size)
    try:
        report(upload.offset)
        async with aclosing(source.read(key, offset=upload.offset)) as parts:
            async for part in parts:
                await upload.write(part)
                report(len(part))
        if upload.offset != size:
            raise Unavailable("An object was cut short while it was copied.", data={"key": key[:256]})
        await upload.publish()
    finally:
        await upload.close()


async def upload_of(storage: ObjectStorage, key: str, size: int) -> ObjectUpload:
    """Opens an upload of ``size`` bytes; discards a longer partial one, which is of another file."""
    upload = await storage.open_upload(key, size=size)
    if upload.offset > size:
        await upload.abort()
        upload = await storage.open_upload(key, size=size)
    return upload


async def drop_other_attempts(storage: ObjectStorage, revision: UUID, attempt: int) -> None:
    """Removes the objects of other attempts, except the manifest."""
    top = area("artifacts", revision)
    current = (files_of("artifacts", revision, attempt), manifest_key(revision))
    await storage.delete(
        [top + path for path in await sizes_below(storage, top) if not (top + path).startswith(current)]
    )
