"""A storage back end and a runtime of other packages keep the contracts, and are found by their entry points."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ai.backend.agent.config.settings import AgentSettings
from ai.backend.agent.runtimes import load_runtime
from ai.backend.common.errors import InvalidInput
from ai.backend.plugin.object_storage import ObjectStorage, StorageContext
from ai.backend.plugin.runtime import AbstractRuntime
from ai.backend.plugin.testing.object_storage import ObjectStorageContract
from ai.backend.plugin.testing.runtime.contract import RuntimeContract
from ai.backend.storage.volumes.registry import load_backend
from tests.plugins.bare_runtime import BareRuntime, BareSettings
from tests.plugins.sqlite_storage import SqliteStorage
from tests.support.entry_points import install_plugins


class TestSqliteStorage(ObjectStorageContract):
    @pytest.fixture(autouse=True)
    def _root(self, tmp_path: Path) -> None:
        self.root = tmp_path

    def make(self, place: str) -> ObjectStorage:
        return SqliteStorage("local", {"file": self.root / place}, StorageContext())


@pytest.mark.needs("root")
class TestBareRuntime(RuntimeContract):
    image = "python"

    @pytest.fixture
    async def runtime(self, tmp_path: Path) -> AsyncIterator[AbstractRuntime]:
        self.state = tmp_path / "state"
        runtime = await self.reopen(None)
        yield runtime
        await runtime.shutdown()

    async def reopen(self, runtime: AbstractRuntime | None) -> AbstractRuntime:
        again = BareRuntime(BareSettings(processes=200), self.state)
        await again.setup()
        return again


def test_an_object_storage_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidInput, match="built in are directory, s3"):
        load_backend("sqlite", ObjectStorage)
    install_plugins(tmp_path, monkeypatch)
    assert load_backend("sqlite", ObjectStorage) is SqliteStorage


def test_a_runtime_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def settings(**runtime: object) -> AgentSettings:
        node = {"runtime": "bare", "data-dir": str(tmp_path / "agent")}
        return AgentSettings.model_validate({"agent": node, "runtime": runtime})

    with pytest.raises(InvalidInput, match="there is no runtime 'bare'; known are process, docker"):
        load_runtime(settings())
    install_plugins(tmp_path / "site", monkeypatch)
    runtime = load_runtime(settings(processes=70))
    assert isinstance(runtime, BareRuntime)
    with pytest.raises(InvalidInput, match="the settings of the runtime bare are wrong"):
        load_runtime(settings(colour="red"))
