"""Images kept by digest: fetched once, resumed, checked, evicted, and a full disk."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from ai.backend.common.errors import (
    ArtifactDamaged,
    ArtifactRejected,
    BackendError,
    InvalidInput,
    NotFound,
    StorageFull,
    Unavailable,
)
from ai.backend.kubeacc.crd.operations import Artifact
from ai.backend.kubeacc.drivers.artifact_settings import ArtifactSettings
from ai.backend.kubeacc.drivers.artifact_sources import file_source
from ai.backend.kubeacc.drivers.artifact_store import ArtifactStore

BITS = b"the bits of an image"


def artifact(content: bytes = BITS, uri: str = "https://host/a.bit") -> Artifact:
    return Artifact(uri=uri, sha256=hashlib.sha256(content).hexdigest())


class Source:
    """Writes ``content`` from the end of the file on, then raises ``error``, once each."""

    def __init__(self, content: bytes = BITS) -> None:
        self.content = content
        self.error: Exception | None = None
        self.most: int | None = None
        self.offsets: list[int] = []
        self.during: Callable[[], Awaitable[None]] = lambda: asyncio.sleep(0)

    async def __call__(self, artifact: Artifact, target: BinaryIO, limit: int) -> None:
        offset = target.tell()
        self.offsets.append(offset)
        await self.during()
        target.write(self.content[offset : self.most])
        if self.error is not None:
            error, self.error, self.most = self.error, None, None
            raise error


def store(folder: Path, source: Source, **settings: Any) -> ArtifactStore:
    return ArtifactStore(folder / "images", ArtifactSettings(**settings), {"https": source})


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "images").iterdir())


async def test_an_image_is_fetched_once_for_all_who_ask(tmp_path: Path) -> None:
    source = Source()
    images = store(tmp_path, source)
    paths = await asyncio.gather(*(images.fetch(artifact()) for _ in range(5)))
    assert len(set(paths)) == 1
    assert (paths[0].read_bytes(), paths[0].suffix) == (BITS, ".bit")
    again = await store(tmp_path, source).fetch(artifact(uri="https://other/b.xclbin"))
    assert (again.read_bytes(), again.suffix) == (BITS, ".xclbin")
    assert source.offsets == [0]
    assert (tmp_path / "images").stat().st_mode & 0o077 == 0


async def test_what_was_interrupted_goes_on_where_it_was(tmp_path: Path) -> None:
    source = Source()
    source.error, source.most = Unavailable("broken off"), 5
    with pytest.raises(Unavailable, match="broken off"):
        await store(tmp_path, source).fetch(artifact())
    path = await store(tmp_path, source).fetch(artifact())
    assert path.read_bytes() == BITS
    assert source.offsets == [0, 5]


async def test_a_beginning_of_other_bytes_is_thrown_away(tmp_path: Path) -> None:
    source = Source(b"other bytes at first")
    source.error, source.most = Unavailable("broken off"), 5
    images = store(tmp_path, source)
    with pytest.raises(Unavailable):
        await images.fetch(artifact())
    source.content = BITS
    with pytest.raises(ArtifactDamaged) as caught:
        await images.fetch(artifact())
    assert caught.value.retryable
    assert (await images.fetch(artifact())).read_bytes() == BITS


@pytest.mark.parametrize(
    ("source", "settings", "error"),
    [
        (Source(b"other"), {}, ArtifactRejected),
        (Source(), {"max_size": 5}, ArtifactRejected),
    ],
)
async def test_other_images_leave_nothing(
    tmp_path: Path, source: Source, settings: dict[str, Any], error: type[BackendError]
) -> None:
    with pytest.raises(error) as caught:
        await store(tmp_path, source, **settings).fetch(artifact())
    assert not caught.value.retryable
    assert names(tmp_path) == []


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
async def test_a_full_disk_is_said_and_freed(tmp_path: Path, number: int) -> None:
    source = Source()
    source.error, source.most = OSError(number, os.strerror(number)), 5
    images = store(tmp_path, source)
    with pytest.raises(StorageFull, match="has no room"):
        await images.fetch(artifact())
    assert names(tmp_path) == []
    assert (await images.fetch(artifact())).read_bytes() == BITS


async def test_an_endless_image_ends_in_time(tmp_path: Path) -> None:
    source = Source()

    async def hang() -> None:
        await asyncio.Event().wait()

    source.during = hang
    with pytest.raises(Unavailable, match="not here after"):
        await store(tmp_path, source, timeout=0.01).fetch(artifact())


async def test_what_is_changed_in_the_folder_is_fetched_anew(tmp_path: Path) -> None:
    source = Source()
    images = store(tmp_path, source)
    path = await images.fetch(artifact())
    path.write_bytes(b"spoiled")
    assert (await images.fetch(artifact())).read_bytes() == BITS
    assert source.offsets == [0, 0]


async def test_a_link_instead_of_a_partial_file_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / f".{artifact().sha256}.partial").symlink_to(victim)
    with pytest.raises(Unavailable):
        await store(tmp_path, Source()).fetch(artifact())
    assert victim.read_bytes() == b"precious"


async def test_the_least_used_images_go_first(tmp_path: Path) -> None:
    contents = [bytes([number]) * 100 for number in range(3)]
    source = Source()
    images = store(tmp_path, source, cache_size=250)
    for age, content in zip((300, 100, 0), contents, strict=True):
        source.content = content
        path = await images.fetch(artifact(content))
        os.utime(path, (path.stat().st_mtime - age,) * 2)
    kept = {artifact(content).sha256 for content in contents[1:]}
    assert {name.removesuffix(".bit") for name in names(tmp_path)} == kept


async def test_an_image_that_a_device_has_loaded_stays(tmp_path: Path) -> None:
    source = Source(bytes(100))
    images = store(tmp_path, source, cache_size=50)
    loaded = await images.fetch(artifact(bytes(100)))
    images.in_use = lambda: [str(loaded)]
    for number in (1, 2):
        source.content = bytes([number]) * 100
        await images.fetch(artifact(source.content))
    assert len(names(tmp_path)) == 2
    assert loaded.exists()


async def test_three_who_ask_for_one_image_write_one_file_at_a_time(tmp_path: Path) -> None:
    source, active = Source(), 0

    async def count() -> None:
        nonlocal active
        active += 1
        assert active == 1
        await asyncio.sleep(0)
        active -= 1

    source.during = count
    images = store(tmp_path, source)
    source.error = Unavailable("once")

    async def fetch() -> None:
        for _ in range(3):
            try:
                await images.fetch(artifact())
            except Unavailable:
                source.error, source.most = Unavailable("again"), 5

    await asyncio.gather(*(fetch() for _ in range(3)))


async def test_schemes_without_a_source_are_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="glance: are not fetched here; the schemes are: https"):
        await store(tmp_path, Source()).fetch(artifact(uri="glance:1"))


async def test_images_of_a_folder_are_copied(tmp_path: Path) -> None:
    folder = tmp_path / "local"
    folder.mkdir()
    (folder / "a.bit").write_bytes(BITS)
    images = ArtifactStore(tmp_path / "images", ArtifactSettings(), {"file": file_source(folder)})
    copy = await images.fetch(artifact(uri=f"file://{folder}/a.bit"))
    assert (copy.read_bytes(), copy.parent) == (BITS, tmp_path / "images")
    with pytest.raises(NotFound):
        await images.fetch(artifact(b"x", uri=f"file://{folder}/b.bit"))
    small = ArtifactStore(tmp_path / "small", ArtifactSettings(max_size=3), {"file": file_source(folder)})
    with pytest.raises(ArtifactRejected, match="larger than 3 bytes"):
        await small.fetch(artifact(uri=f"file://{folder}/a.bit"))
