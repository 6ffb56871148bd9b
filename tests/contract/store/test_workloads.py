"""What every implementation of the store of sessions promises of workloads."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ai.backend.common.structs import replace
from ai.backend.infra.database import Database
from ai.backend.manager.composition.stores import Stores
from ai.backend.manager.sessions.memory import Memory
from ai.backend.manager.sessions.model import KernelWorkload
from ai.backend.simulator.stores import make_stores
from tests.contract.store.builders import AGENT, NOW, ended, make_agent, make_session, placed
from tests.support.migrated import migrated
from tests.support.postgres import emptied, migrated_template, shared_server


@pytest.fixture(params=["memory", "sqlite", pytest.param("postgres", marks=pytest.mark.needs("postgres"))])
async def stores(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Stores]:
    if request.param == "memory":
        yield make_stores(Memory(), lambda: NOW)
        return
    if request.param == "sqlite":
        database = Database(f"sqlite:///{migrated(tmp_path / 'manager.db')}")
    else:
        server = shared_server()
        database = Database(server.url(emptied(server, migrated_template())))
    yield Stores.sql(database)
    await database.close()


async def test_workloads_are_those_of_kernels_that_run(stores: Stores) -> None:
    await stores.agents.put_agent(make_agent())
    sessions = [make_session(name, runtime_class="kata") for name in ("runs", "waits", "is-over")]
    for session in sessions:
        await stores.sessions.insert(session, events=[])
    for session in (sessions[0], sessions[2]):
        change = placed(session)
        kernel = replace(change.new.kernels[0], container_id=f"c-{session.name}")
        await stores.sessions.save([replace(change, new=replace(change.new, kernels=(kernel,)))])
    over = await stores.sessions.get(sessions[2].id)
    assert over is not None
    await stores.sessions.save([ended(over)])
    (found,) = await stores.sessions.workloads()
    assert found == KernelWorkload(
        session_id=sessions[0].id,
        kernel_id=sessions[0].main.id,
        agent=AGENT,
        container_id="c-runs",
        runtime_class="kata",
    )
