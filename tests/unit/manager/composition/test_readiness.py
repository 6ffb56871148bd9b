"""A manager is ready while its database answers."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from ai.backend.common.errors import Unavailable
from ai.backend.infra.bus import Bus
from ai.backend.infra.config_store import SQLiteConfigStore
from ai.backend.infra.database import Database
from ai.backend.manager.composition import backing_services
from ai.backend.manager.composition.backing_services import BackingServices


class FakeDatabase:
    """Answers, fails, or is silent until ``answers`` is set."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.answers = asyncio.Event()
        self.queries = 0

    async def fetch(self, query: Any) -> list[Any]:
        self.queries += 1
        await self.answers.wait()
        if self.error is not None:
            raise self.error
        return []

    async def close(self) -> None:
        pass


def services_over(fake: FakeDatabase) -> BackingServices:
    database = cast("Database", fake)
    return BackingServices(database, SQLiteConfigStore(database), Bus(), None)


async def test_a_manager_whose_database_is_silent_is_not_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backing_services, "_PROBE_S", 0.01)
    services = services_over(FakeDatabase())
    assert await services.readiness() == {"database": False}
    await services.stop()


async def test_probes_at_the_same_time_share_a_query() -> None:
    fake = FakeDatabase()
    services = services_over(fake)
    fake.answers.set()
    assert await services.readiness() == {"database": True}
    fake.error = Unavailable("The database does not answer.")
    fake.answers.clear()
    probes = [asyncio.create_task(services.readiness()) for _ in range(5)]
    await asyncio.sleep(0)
    fake.answers.set()
    assert await asyncio.gather(*probes) == [{"database": False}] * 5
    assert fake.queries == 2
    await services.stop()
