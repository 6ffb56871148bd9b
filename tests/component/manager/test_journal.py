"""Events that can be resumed, background tasks, the audit trail, and keypairs that are revoked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any
from uuid import uuid4

import pytest

from ai.backend.common.errors import Forbidden, InvalidInput, LimitExceeded, NotFound, SessionNotFound
from ai.backend.common.ids import TaskId
from ai.backend.common.slots import ResourceSlot
from ai.backend.common.states import RunMode, UserRole
from ai.backend.common.structs import replace
from ai.backend.common.wire.execution import FileBlob
from ai.backend.manager.events.service import EventFilter
from ai.backend.manager.execution.service import RunRequest
from ai.backend.manager.query.model import ListQuery
from ai.backend.manager.resources.model import ResourcePreset
from ai.backend.manager.sessions.changes import Event
from ai.backend.manager.sessions.model import CreateSession
from ai.backend.manager.tasks.model import TaskStatus
from ai.backend.manager.tasks.service import TaskProgress
from tests.component.manager.conftest import Cluster
from tests.component.manager.fakes import FakeAgent


async def take(events: AsyncIterator[Any], count: int) -> list[Any]:
    async with asyncio.timeout(30):
        return [await anext(events) for _ in range(count)]


async def test_events_come_live_and_can_be_resumed(cluster: Cluster, agent: FakeAgent) -> None:
    services = cluster.manager.services
    stream = services.events.subscribe(cluster.user, EventFilter(scope="session"))
    async with aclosing(stream):  # type: ignore[type-var]  # it is an async generator
        first = asyncio.create_task(take(stream, 5))
        await asyncio.sleep(0.05)
        reply = await services.sessions.create(cluster.user, CreateSession(image="python", name="told"))
        live: list[Event] = await first
    assert [e.name for e in live] == [
        "session_enqueued", "session_scheduled", "session_preparing", "session_creating", "session_started",
    ]  # fmt: skip
    assert live[0].payload["sessionId"] == str(reply.session.id)
    again = services.events.subscribe(cluster.user, EventFilter(session_ref="told", after_id=live[2].id))
    resumed = await take(again, 3)
    assert [e.id for e in resumed] == sorted(e.id for e in resumed)
    assert min(e.id for e in resumed) > live[2].id
    assert "kernel_started" in [e.name for e in resumed]


async def test_events_of_others_are_not_told(cluster: Cluster, agent: FakeAgent) -> None:
    services = cluster.manager.services
    await services.sessions.create(cluster.admin, CreateSession(image="python", name="secret"))
    await services.sessions.create(cluster.user, CreateSession(image="python", name="mine"))
    seen = await take(services.events.subscribe(cluster.user, EventFilter(after_id=0)), 8)
    assert {e.payload["sessionName"] for e in seen} == {"mine"}
    with pytest.raises(SessionNotFound):
        await take(services.events.subscribe(cluster.user, EventFilter(session_ref="secret")), 1)


async def test_tasks_tell_progress_and_outcome(cluster: Cluster) -> None:
    tasks = cluster.manager.services.tasks
    go = asyncio.Event()

    async def work(progress: TaskProgress) -> str:
        await go.wait()
        await progress.update(1, 2, "half")
        return "all"

    task_id = await tasks.start(cluster.user, "work", work)
    stream = tasks.subscribe(cluster.user, task_id)
    assert (await take(stream, 1))[0].status is TaskStatus.STARTED
    go.set()
    rest = [task async for task in stream]
    assert (rest[-1].status, rest[-1].message, rest[-1].current_progress) == (TaskStatus.DONE, "all", 1)

    async def fails(_: TaskProgress) -> str:
        raise LimitExceeded("too much")

    failed = [t async for t in tasks.subscribe(cluster.user, await tasks.start(cluster.user, "fails", fails))]
    assert (failed[-1].status, failed[-1].message) == (TaskStatus.FAILED, "too much")

    async def endless(_: TaskProgress) -> str:
        await asyncio.Event().wait()
        return ""

    endless_id = await tasks.start(cluster.user, "endless", endless)
    await asyncio.sleep(0)
    await tasks.cancel(cluster.user, endless_id)
    ended = [t async for t in tasks.subscribe(cluster.user, endless_id)]
    assert ended[-1].status is TaskStatus.CANCELLED
    other = replace(cluster.user, user_id=cluster.admin.user_id)
    with pytest.raises(NotFound):
        await tasks.get(other, task_id)
    with pytest.raises(NotFound):
        await tasks.get(cluster.user, TaskId(uuid4()))


async def test_the_audit_trail_is_for_superadmins(cluster: Cluster) -> None:
    audit = cluster.manager.services.audit
    await audit.record(
        cluster.user, "sessions.create", request_id="r1", object_type="session", object_id="s", outcome="ok"
    )
    kept = await audit.recent(cluster.admin)
    assert [(r.operation, r.user_id, r.outcome) for r in kept] == [("sessions.create", cluster.user.user_id, "ok")]
    with pytest.raises(Forbidden):
        await audit.recent(cluster.user)


async def test_a_revoked_keypair_is_refused_at_once(cluster: Cluster) -> None:
    identity = cluster.manager.services.identity
    key = cluster.user.access_key
    before = await identity.credentials(key)
    assert before is not None
    assert before.is_active
    with pytest.raises(Forbidden):
        await cluster.manager.services.users.modify_keypair(cluster.user, key, {"is_active": True})
    await cluster.manager.services.users.modify_keypair(cluster.admin, key, {"is_active": False})
    after = await identity.credentials(key)
    assert after is not None
    assert not after.is_active
    await cluster.manager.stores.identities.change_keypair(key, is_active=True)
    await asyncio.sleep(1.05)
    elsewhere = await identity.credentials(key)
    assert elsewhere is not None
    assert elsewhere.is_active, "a change by another process is seen within a second"
    assert await identity.credentials("AKIANOBODY") is None


async def test_roles_bound_owners_and_people(cluster: Cluster) -> None:
    identity = cluster.manager.services.identity
    people = cluster.manager.services.users
    user, pair = await people.create_user(cluster.admin, "boss@local", "long enough", {"role": UserRole.ADMIN})
    found = await identity.credentials(pair.access_key)
    assert found is not None
    boss = found.caller
    assert (await identity.resolve_owner(boss, cluster.user.access_key)).user_id == cluster.user.user_id
    for who, key in ((cluster.user, pair.access_key), (boss, cluster.admin.access_key), (boss, "AKIANOBODY")):
        with pytest.raises(Forbidden):
            await identity.resolve_owner(who, key)
    elsewhere = replace(boss, domain_name=type(boss.domain_name)("elsewhere"))
    with pytest.raises(Forbidden):
        await identity.resolve_owner(elsewhere, cluster.user.access_key)
    with pytest.raises(NotFound):
        await identity.user(cluster.user, email=user.email)
    with pytest.raises(Forbidden):
        await identity.users(cluster.user, ListQuery())
    assert [k.user_email for k in (await identity.keypairs(cluster.user, ListQuery())).items] == ["user@local"]
    assert (await identity.keypairs(boss, ListQuery())).total_count == 3
    for bad in ({"email": "nobody"}, {"password": "short"}, {"username": "-"}):
        values = {"email": "x@local", "password": "long enough", "username": None, **bad}
        with pytest.raises(InvalidInput):
            await people.create_user(
                cluster.admin, str(values["email"]), str(values["password"]), {"username": values["username"]}
            )


async def test_uses_of_a_keypair_are_counted(cluster: Cluster, agent: FakeAgent) -> None:
    services = cluster.manager.services
    for _ in range(3):
        services.identity.touch(cluster.user.access_key)
    await services.identity.flush()
    await services.sessions.create(cluster.user, CreateSession(image="python", name="runs"))
    keypair = await services.identity.keypair(cluster.user)
    assert (keypair.num_queries, keypair.concurrency_used) == (3, 1)
    assert keypair.last_used is not None
    await services.execution.execute(cluster.user, "runs", RunRequest(mode=RunMode.QUERY))
    assert (await services.sessions.get(cluster.user, "runs")).num_queries == 1
    await cluster.manager.services.stats.flush()
    assert (await services.sessions.get(cluster.user, "runs")).num_queries == 1


async def test_transfers_are_bounded(cluster: Cluster, agent: FakeAgent) -> None:
    services = cluster.manager.services
    await services.sessions.create(cluster.user, CreateSession(image="python", name="files"))
    await services.execution.upload(cluster.user, "files", [FileBlob(path="d/x", data=b"x" * 1_048_576)])
    assert agent.uploads[0].files[0].path == "d/x"
    for files in ([FileBlob(path="x", data=b"x" * 1_048_577)], [FileBlob(path="x", data=b"")] * 21):
        with pytest.raises(LimitExceeded):
            await services.execution.upload(cluster.user, "files", files)
    with pytest.raises(InvalidInput):
        await services.execution.upload(cluster.user, "files", [FileBlob(path="../x", data=b"")])
    for count in (0, 6):
        with pytest.raises(LimitExceeded):
            await services.execution.download(cluster.user, "files", ["x"] * count)
    with pytest.raises(InvalidInput):
        await services.execution.execute(cluster.user, "files", RunRequest(mode=RunMode.CONTINUE))


async def test_presets_tell_what_fits_now(cluster: Cluster, agent: FakeAgent) -> None:
    for name, cpu in (("small", "1"), ("huge", "64")):
        await cluster.manager.stores.presets.put_preset(
            ResourcePreset(name=name, resource_slots=ResourceSlot.parse({"cpu": cpu}))
        )
    await cluster.manager.services.sessions.create(cluster.user, CreateSession(image="python", resources={"cpu": 2}))
    check = await cluster.manager.services.resources.check_presets(cluster.user)
    assert {preset.name: fits for preset, fits in check.presets} == {"small": True, "huge": False}
    assert check.quotas["keypair"].using["cpu"] == 2
    assert check.quotas["keypair"].limits["cpu"].is_infinite()
    using, remaining = check.scaling_groups["default"]
    assert using["cpu"] == 2
    assert remaining["cpu"] == 6
