"""Artifacts of the type IMAGE become images of agents, which start sessions (spec 03-17:14, 36)."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

from ai.backend.common.ids import TaskId
from ai.backend.common.wire.agent import ImageJobState
from ai.backend.manager.tasks.model import Task
from tests.component.manager.api.conftest import Api
from tests.component.manager.api.test_artifacts_api import available
from tests.support.fake_artifacts import FakeDepot

UPLOAD = {"registry": "ours", "name": "Team/Tool", "version": "1.0", "files": [{"path": "weights", "size": 1}]}


async def _uploaded(api: Api, **fields: Any) -> str:
    """Returns the id of a revision that is available."""
    await api.admin.request("POST", "/artifact-registries", json={"name": "ours", "type": "local"})
    reply = await api.admin.request("POST", "/artifacts/upload", json={**UPLOAD, "artifact_type": "IMAGE", **fields})
    assert reply.status == 200, reply.body
    revision_id: str = reply.json()["revision"]["id"]
    await available(api, revision_id)
    return revision_id


async def _install(api: Api, revision_id: str, **body: Any) -> Task:
    reply = await api.admin.request("POST", f"/artifacts/revisions/{revision_id}/install", json=body)
    assert reply.status == 202, reply.body
    tasks = api.cluster.manager.services.tasks
    async with asyncio.timeout(20):
        task_id = TaskId(UUID(reply.json()["bgtask_id"]))
        return [task async for task in tasks.subscribe(api.cluster.admin, task_id)][-1]


async def test_an_image_artifact_is_loaded_on_agents(api: Api, depot: FakeDepot) -> None:
    revision_id = await _uploaded(api)
    done = await _install(api, revision_id)
    assert done.message == "install team/tool:1.0: done on 1 of 1 agents"
    job = api.agent.image_jobs[-1]
    assert (job.action, job.image) == ("load", "team/tool:1.0")
    assert job.folder == f"{depot.root / revision_id}/weights", "its only file"
    await _install(api, revision_id, agents="agent-1", image="mine:2")
    assert api.agent.image_jobs[-1].image == "mine:2"
    api.agent.image_answers = [ImageJobState(state="failed", code="invalid-api-params", message="this is no archive")]
    assert (await _install(api, revision_id)).message == "this is no archive"


async def test_what_cannot_be_an_image_is_refused(api: Api, depot: FakeDepot) -> None:
    package, image = await _uploaded(api, name="tools", artifact_type="PACKAGE"), await _uploaded(api)

    async def status(revision_id: str, **body: Any) -> int:
        reply = await api.admin.request("POST", f"/artifacts/revisions/{revision_id}/install", json=body)
        return reply.status

    assert await status(package) == 400
    assert await status(image, agents="none") == 400
    assert await status(image, image="not a name") == 400
    assert (await api.admin.request("PATCH", "/artifacts/Team%2FTool", json={"viewers": []})).status == 200
    assert await status(image) == 409, "an image is for everyone"
    assert api.agent.image_jobs == []
