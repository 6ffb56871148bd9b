"""What every implementation of the store of images promises."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from ai.backend.common.errors import Conflict
from ai.backend.infra.database import Database
from ai.backend.manager.images.model import ImageAlias, ScannedImage
from ai.backend.manager.images.sql import SqlImageStore
from ai.backend.manager.images.store import ImageStore
from tests.contract.store.builders import NOW
from tests.support.migrated import migrated
from tests.support.postgres import emptied, migrated_template, shared_server

LATER = NOW + timedelta(hours=1)
PYTHON = "cr.test/lab/python"


def found(tag: str, architecture: str = "x86_64", repository: str = PYTHON, digest: str = "sha256:1") -> ScannedImage:
    return ScannedImage(
        name=f"{repository}:{tag}", architecture=architecture, digest=digest, size_bytes=1 << 40, labels={"k": "v"}
    )


class ImageStoreContract:
    async def test_what_is_recorded_twice_is_brought_up_to_date(self, store: ImageStore) -> None:
        assert await store.record("cr.test", [found("1"), found("1", "aarch64")], at=NOW) == 2
        assert await store.record("cr.test", [found("1", digest="sha256:2"), found("2")], at=LATER) == 1
        images = {(i.name, i.architecture): i for i in await store.all("cr.test")}
        one = images[f"{PYTHON}:1", "x86_64"]
        assert (one.digest, one.created_at, one.scanned_at) == ("sha256:2", NOW, LATER)
        assert (one.size_bytes, dict(one.labels)) == (1 << 40, {"k": "v"})
        assert list(images) == [(f"{PYTHON}:1", "aarch64"), (f"{PYTHON}:1", "x86_64"), (f"{PYTHON}:2", "x86_64")]
        assert await store.all("other") == []

    async def test_names_repositories_and_aliases_are_found(self, store: ImageStore) -> None:
        await store.record("cr.test", [found("1"), found("1", "aarch64"), found("2")], at=NOW)
        await store.put_alias(ImageAlias(alias="py", image=f"{PYTHON}:1", architecture="aarch64"))
        await store.put_alias(ImageAlias(alias="any", image=f"{PYTHON}:1"))
        assert len(await store.lookup(PYTHON)) == 3
        assert len(await store.lookup(f"{PYTHON}:1")) == 2
        assert [i.architecture for i in await store.lookup("py")] == ["aarch64"]
        assert len(await store.lookup("any")) == 2
        assert await store.lookup("cr.test/lab/pytho_") == []
        assert len(await store.by_names([f"{PYTHON}:2", "none"])) == 1
        assert await store.by_names([]) == []

    async def test_an_alias_stands_for_one_image(self, store: ImageStore) -> None:
        await store.record("cr.test", [found("1"), found("2")], at=NOW)
        alias = ImageAlias(alias="py", image=f"{PYTHON}:1")
        await store.put_alias(alias)
        await store.put_alias(alias)
        with pytest.raises(Conflict):
            await store.put_alias(ImageAlias(alias="py", image=f"{PYTHON}:2"))
        assert await store.aliases() == [alias]
        assert await store.alias("py") == alias
        assert await store.drop_alias("py")
        assert not await store.drop_alias("py")
        assert await store.alias("py") is None

    async def test_what_is_gone_is_swept_with_what_stood_for_it(self, store: ImageStore) -> None:
        await store.record("cr.test", [found("old"), found("unread"), found("kept"), found("kept", "aarch64")], at=NOW)
        await store.record("other.test", [found("1", repository="other.test/x")], at=NOW)
        for tag in ("old", "unread", "kept"):
            await store.put_alias(ImageAlias(alias=tag, image=f"{PYTHON}:{tag}"))
        await store.put_alias(ImageAlias(alias="of-a-node", image="python:3.11"))
        await store.record("cr.test", [found("kept")], at=LATER)
        assert await store.sweep("cr.test", before=LATER, kept_names=[f"{PYTHON}:unread"]) == 2
        assert [(i.name, i.architecture) for i in await store.all()] == [
            (f"{PYTHON}:kept", "x86_64"),
            (f"{PYTHON}:unread", "x86_64"),
            ("other.test/x:1", "x86_64"),
        ]
        assert [a.alias for a in await store.aliases()] == ["kept", "of-a-node", "unread"]

    async def test_images_are_forgotten(self, store: ImageStore) -> None:
        await store.record("cr.test", [found("1"), found("1", "aarch64"), found("2")], at=NOW)
        await store.put_alias(ImageAlias(alias="py", image=f"{PYTHON}:1"))
        assert await store.forget(f"{PYTHON}:1", "aarch64") == 1
        assert await store.alias("py") is not None
        assert await store.forget(f"{PYTHON}:1") == 1
        assert await store.alias("py") is None
        assert await store.forget(f"{PYTHON}:1") == 0
        assert await store.clear("cr.test") == 1
        assert await store.clear("cr.test") == 0


class TestSqlImages(ImageStoreContract):
    @pytest.fixture
    async def store(self, tmp_path: Path) -> AsyncIterator[ImageStore]:
        database = Database(f"sqlite:///{migrated(tmp_path / 'manager.db')}")
        yield SqlImageStore(database)
        await database.close()


@pytest.mark.needs("postgres")
class TestPostgresImages(ImageStoreContract):
    @pytest.fixture
    async def store(self) -> AsyncIterator[ImageStore]:
        server = shared_server()
        database = Database(server.url(emptied(server, migrated_template())))
        yield SqlImageStore(database)
        await database.close()
