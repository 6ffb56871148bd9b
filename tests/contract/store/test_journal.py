"""What every implementation of the stores of background tasks and of the audit trail promises."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import pytest

from ai.backend.common.errors import Conflict
from ai.backend.common.ids import TaskId, UserId
from ai.backend.common.structs import replace
from ai.backend.infra.database import Database
from ai.backend.manager.logs.model import AuditRecord
from ai.backend.manager.logs.sql import SqlAuditStore
from ai.backend.manager.logs.store import AuditStore
from ai.backend.manager.tasks.model import Task, TaskStatus
from ai.backend.manager.tasks.sql import SqlTaskStore
from ai.backend.manager.tasks.store import TaskStore
from ai.backend.simulator.database import InlineDatabase
from tests.contract.store.builders import NOW
from tests.support.migrated import migrated
from tests.support.postgres import emptied, migrated_template, shared_server


@dataclass(frozen=True)
class Stores:
    """The two stores, over one database."""

    tasks: TaskStore
    audit: AuditStore


@pytest.fixture(params=["memory", "sqlite", pytest.param("postgres", marks=pytest.mark.needs("postgres"))])
async def stores(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Stores]:
    if request.param == "memory":
        inline = InlineDatabase(frozenset({"audit_logs", "background_tasks"}))
        yield Stores(SqlTaskStore(inline), SqlAuditStore(inline))
        return
    url = f"sqlite:///{migrated(tmp_path / 'manager.db')}" if request.param == "sqlite" else _postgres()
    database = Database(url)
    yield Stores(SqlTaskStore(database), SqlAuditStore(database))
    await database.close()


def _postgres() -> str:
    server = shared_server()
    return server.url(emptied(server, migrated_template()))


async def test_tasks_and_the_audit_trail(stores: Stores) -> None:
    tasks = stores.tasks
    task = Task(
        id=TaskId(uuid4()),
        name="rescan",
        owner=UserId(uuid4()),
        status=TaskStatus.STARTED,
        created_at=NOW,
        updated_at=NOW,
        subject="images",
    )
    await tasks.add_task(task)
    another = replace(task, id=TaskId(uuid4()))
    with pytest.raises(Conflict) as busy:
        await tasks.add_task(another)
    assert busy.value.data["task"] == str(task.id)
    for _ in range(2):
        await tasks.add_task(replace(task, id=TaskId(uuid4()), subject="", status=TaskStatus.DONE))
    moved = replace(task, status=TaskStatus.UPDATED, current_progress=1, total_progress=2, message="half")
    await tasks.put_task(moved)
    assert await tasks.task(task.id) == moved
    assert await tasks.open_task("images") == moved
    assert list(await tasks.cancel_requested([task.id, another.id])) == []
    await tasks.request_cancel(task.id)
    await tasks.put_task(moved)
    assert list(await tasks.cancel_requested([task.id, another.id])) == [task.id]
    assert await tasks.fail_open_tasks(at=NOW, message="gone") == 1
    assert await tasks.fail_open_tasks(at=NOW, message="gone") == 0
    assert await tasks.open_task("images") is None
    await tasks.add_task(another)
    records = [
        AuditRecord(
            at=NOW,
            request_id=f"r{i}",
            user_id=None,
            access_key=None,
            operation="create",
            object_type="session",
            object_id=None,
            outcome="ok",
            detail={"i": i},
        )
        for i in range(3)
    ]
    await stores.audit.append(records)
    assert await stores.audit.recent(2) == [records[2], records[1]]
