"""A commit goes on where whoever asked for it does not wait."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast
from uuid import uuid4

import pytest

from ai.backend.common.ids import AgentId
from ai.backend.common.states import SessionStatus, UserRole
from ai.backend.common.structs import replace
from ai.backend.common.wire.agent import ImageJob, ImageJobState
from ai.backend.infra.bus import Bus
from ai.backend.manager.execution.commits import CommitService
from ai.backend.manager.tasks.model import Task
from ai.backend.manager.tasks.service import TaskService
from tests.contract.store.builders import NOW, make_session

CALLER = cast("Any", SimpleNamespace(user_id=uuid4(), role=UserRole.SUPERADMIN, domain_name="default"))


class TaskRows:
    """What the store of tasks was told. ``writable``: until then nothing is written."""

    def __init__(self) -> None:
        self.told: list[Task] = []
        self.writable = asyncio.Event()
        self.asked, self.ended = asyncio.Event(), asyncio.Event()

    async def add_task(self, task: Task) -> None:
        self.told.append(task)
        self.asked.set()
        await self.writable.wait()

    async def put_task(self, task: Task) -> None:
        self.told.append(task)
        if task.status.is_final:
            self.ended.set()


class Committer:
    """An agent that begins a commit when it may."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.asked, self.may = asyncio.Event(), asyncio.Event()

    async def image_job(self, job: ImageJob) -> ImageJobState:
        self.asked.set()
        await self.may.wait()
        if self.error is not None:
            raise self.error
        return ImageJobState(state="done", result={"place": job.filename})


def commits(agent: Committer, rows: TaskRows) -> CommitService:
    session = make_session()
    session = replace(session, status=SessionStatus.RUNNING, kernels=(replace(session.main, agent=AgentId("a")),))

    async def one(*_: Any, **__: Any) -> Any:
        return session

    clock, id_generator = SimpleNamespace(now=lambda: NOW), SimpleNamespace(uuid=uuid4)
    tasks = TaskService(cast("Any", rows), Bus(), cast("Any", clock), cast("Any", id_generator))
    finder, gateway = SimpleNamespace(one=one), SimpleNamespace(agent=lambda _: agent)
    given: Any = (None, None, finder, gateway, tasks, None, clock, id_generator)
    return CommitService(*given)


@pytest.mark.parametrize("where", ["store", "agent"])
async def test_a_commit_goes_on_where_its_caller_is_gone(where: str) -> None:
    agent, rows = Committer(), TaskRows()
    asking = asyncio.create_task(commits(agent, rows).archive(CALLER, "mine"))
    async with asyncio.timeout(30):
        await rows.asked.wait()
        if where == "agent":
            rows.writable.set()
            await agent.asked.wait()
        asking.cancel()
        await asyncio.wait([asking])
        rows.writable.set()
        agent.may.set()
        await rows.ended.wait()
    assert asking.cancelled()
    assert (rows.told[-1].status.value, rows.told[-1].message[:12]) == ("bgtask_done", "committed to")


async def test_a_defect_is_told_to_who_asked_and_in_the_task() -> None:
    agent, rows = Committer(RuntimeError("a defect")), TaskRows()
    rows.writable.set()
    agent.may.set()
    async with asyncio.timeout(30):
        with pytest.raises(RuntimeError, match="a defect"):
            await commits(agent, rows).archive(CALLER, "mine")
        await rows.ended.wait()
    assert (rows.told[-1].status.value, rows.told[-1].message) == ("bgtask_failed", "internal error")
