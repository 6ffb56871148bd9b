"""``callback_url``: told what becomes of a session, whatever happens to the manager, and never sent inside."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from ai.backend.infra.bus import Bus
from ai.backend.infra.database import Database
from ai.backend.infra.rpc.memory import MemoryLink
from ai.backend.manager.composition.manager import Manager
from ai.backend.manager.config.settings import ManagerSettings
from ai.backend.manager.events.settings import WebhookSettings
from ai.backend.manager.events.webhook_client import HttpCallbackSender
from ai.backend.manager.events.webhook_gateway import WebhookFailed
from ai.backend.manager.events.webhook_loop import WebhookLoop
from ai.backend.manager.sessions.changes import Webhook
from ai.backend.manager.sessions.memory import MemorySessionStore
from ai.backend.manager.sessions.model import CreateSession
from ai.backend.manager.sessions.settings import SessionSettings
from tests.component.manager.conftest import kill
from tests.component.manager.fakes import FakeAgent
from tests.contract.store.builders import NOW, event, make_session

DEFAULT = WebhookSettings().refused_networks


@dataclass
class Receiver:
    """Somebody who wants to be called; ``status`` is what they say."""

    port: int = 0
    status: int = 200
    heard: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    hold: asyncio.Event = field(default_factory=asyncio.Event)
    called: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.hold.set()

    async def take(self, request: web.Request) -> web.Response:
        self.heard.append((request.headers["X-BackendAI-Callback-Id"], json.loads(await request.text())))
        self.called.set()
        await self.hold.wait()
        return web.Response(status=self.status, headers={"Location": "/elsewhere"}, body=b"x" * 100_000)

    @property
    def events(self) -> list[str]:
        return [body["event"] for _, body in self.heard]

    async def until(self, *events: str) -> None:
        async with asyncio.timeout(30):
            while self.events != list(events):
                self.called.clear()
                await self.called.wait()


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    receiver = Receiver()
    app = web.Application()
    app.router.add_post("/hook", receiver.take)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    receiver.port = runner.addresses[0][1]
    yield receiver
    receiver.hold.set()
    await runner.cleanup()


LIFE = ("enqueued", "scheduled", "preparing", "creating", "started")


@pytest.mark.parametrize("is_killed", [False, True])
async def test_a_session_is_followed_through_a_restart_of_the_manager(
    tmp_path: Path, receiver: Receiver, is_killed: bool
) -> None:
    """The receiver is away while the session ends; the next manager tells it the rest."""
    settings = ManagerSettings(
        sessions=SessionSettings(destroy_wait_s=5.0), callbacks=WebhookSettings(refused_networks=[])
    )
    link, database = MemoryLink(), Database(f"sqlite:///{tmp_path / 'manager.db'}")
    manager = Manager(settings, database, Bus(), link.manager, hash_password=lambda p: p)
    await manager.start()
    await link.manager.start(manager.reports)
    made = await manager.bootstrap.run()
    assert made.user is not None
    credentials = await manager.services.identity.credentials(made.user.access_key)
    assert credentials is not None
    agent = FakeAgent()
    endpoint = link.agent_endpoint(agent.agent_id)
    await endpoint.start(agent)
    agent.reports = endpoint.reports
    await agent.beat()
    url = f"http://127.0.0.1:{receiver.port}/hook?key=secret"
    sessions = manager.services.sessions
    reply = await sessions.create(credentials.caller, CreateSession(image="python", callback_url=url))
    await receiver.until(*LIFE)
    assert receiver.heard[0][1].keys() == {"type", "event", "session_id", "when", "reason"}
    assert {(b["type"], b["session_id"]) for _, b in receiver.heard} == {("session_lifecycle", str(reply.session.id))}

    receiver.hold.clear()  # it takes the call and does not answer
    end = await sessions.destroy(credentials.caller, str(reply.session.id))
    assert end.session.status == "TERMINATED", "nobody waits for the receiver"
    await receiver.until(*LIFE, "terminating")
    if is_killed:  # nothing of the manager runs on, and nothing of it says good-bye
        await kill(manager)
    else:
        await manager.stop()
    receiver.hold.set()
    second = Manager(settings, database, Bus(), MemoryLink().manager)
    await second.start()
    await receiver.until(*LIFE, "terminating", "terminating", "terminated")
    assert receiver.heard[-2][0] == receiver.heard[-3][0], "a repetition has the same id"
    assert receiver.heard[-1][1]["reason"] == "user-requested"
    await second.loops.webhooks.drain()
    assert await second.stores.sessions.due_callbacks(datetime.now(UTC) + timedelta(days=1), limit=9) == []
    await second.stop()
    if is_killed:
        await manager.stop()
    await link.manager.stop()
    await agent.close()
    await database.close()


@pytest.mark.parametrize(
    "host",
    [
        *("127.0.0.1", "localhost", "2130706433", "[::1]", "[::ffff:127.0.0.1]", "0.0.0.0", "0177.0.0.1", "127.1"),
        *("①②⑦.0.0.1", "127。0。0。1"),
    ],
)
async def test_this_machine_is_not_called(receiver: Receiver, host: str) -> None:
    sender = HttpCallbackSender(WebhookSettings(refused_networks=DEFAULT, timeout_s=5))
    try:
        with pytest.raises(WebhookFailed, match=r"refused-networks|InvalidUrl"):
            await sender.send(f"http://{host}:{receiver.port}/hook", 1, {})
    finally:
        await sender.close()
    assert receiver.heard == []


@pytest.mark.parametrize("host", ["169.254.169.254", "[fe80::1]", "[fd00:ec2::254]", "100.100.100.200", "224.0.0.1"])
async def test_metadata_services_and_the_link_are_not_called(host: str) -> None:
    sender = HttpCallbackSender(WebhookSettings(refused_networks=DEFAULT, timeout_s=5))
    with pytest.raises(WebhookFailed, match="refused-networks"):
        await sender.send(f"http://{host}/hook", 1, {})
    await sender.close()


async def test_what_counts_as_taken(receiver: Receiver) -> None:
    sender = HttpCallbackSender(WebhookSettings(refused_networks=[], timeout_s=0.5))
    url = f"http://127.0.0.1:{receiver.port}/hook?key=secret"
    try:
        await sender.send(url, 7, {"a": 1})
        assert receiver.heard == [("7", {"a": 1})]
        for status in (302, 404, 500):
            receiver.status = status
            with pytest.raises(WebhookFailed, match=f"status {status}"):
                await sender.send(url, 8, {})
        assert len(receiver.heard) == 4, "a redirect is not followed"
        receiver.hold.clear()
        for bad in (url, "http://nowhere.invalid/", "http://127.0.0.1:1/?key=secret", "http://[::1", "http://x:99999/"):
            with pytest.raises(WebhookFailed) as caught:
                await sender.send(bad, 9, {})
            assert "secret" not in str(caught.value)
    finally:
        await sender.close()


class _Clock:
    def __init__(self) -> None:
        self.time = NOW

    def now(self) -> datetime:
        return self.time

    def monotonic(self) -> float:
        return 0.0


@dataclass
class _Sender:
    failure: WebhookFailed | None = None
    sent: list[tuple[str, str]] = field(default_factory=list)
    hold: asyncio.Event = field(default_factory=asyncio.Event)
    most: int = 0
    now: int = 0

    async def send(self, url: str, callback_id: int, body: Any) -> None:
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            await self.hold.wait()
        finally:
            self.now -= 1
        self.sent.append((url, body["event"]))
        if self.failure is not None:
            raise self.failure

    async def close(self) -> None: ...


async def test_tries_are_counted_and_grow_apart(caplog: pytest.LogCaptureFixture) -> None:
    store, sender, clock = MemorySessionStore(), _Sender(WebhookFailed("status 500")), _Clock()
    sender.hold.set()
    loop = WebhookLoop(store, sender, clock, WebhookSettings(attempts=4))
    session = make_session(callback_url="http://host/?key=secret")
    await store.insert(session, events=[event(session, "session_enqueued")])
    pauses = []
    for _ in range(20):
        before = len(sender.sent)
        await loop.once()
        await loop.drain()
        if len(sender.sent) > before:
            pauses.append((clock.time - NOW).total_seconds())
        clock.time += timedelta(seconds=1)
    assert pauses == [0, 1, 3, 7]
    assert "gave up a callback to host for session" in caplog.text
    assert "secret" not in caplog.text
    assert await store.due_callbacks(clock.time, limit=9) == []


async def test_what_was_told_while_the_store_was_read_is_not_told_again() -> None:
    class Slow(MemorySessionStore):
        has_read, go_on = asyncio.Event(), asyncio.Event()

        async def due_callbacks(self, now: datetime, *, limit: int) -> list[Webhook]:
            found = await super().due_callbacks(now, limit=limit)
            self.has_read.set()
            await self.go_on.wait()
            return found

    store, sender = Slow(), _Sender()
    loop = WebhookLoop(store, sender, _Clock(), WebhookSettings())
    session = make_session(callback_url="http://host/")
    await store.insert(session, events=[event(session, "session_enqueued")])
    store.go_on.set()
    await loop.once()
    store.has_read.clear()
    store.go_on.clear()
    reading = asyncio.create_task(loop.once())
    await store.has_read.wait()
    sender.hold.set()
    await loop.drain()
    store.go_on.set()
    await reading
    await loop.drain()
    assert [told for _, told in sender.sent] == ["enqueued"]


async def test_a_refused_address_is_tried_once() -> None:
    store, sender = MemorySessionStore(), _Sender(WebhookFailed("refused", can_retry=False))
    sender.hold.set()
    loop = WebhookLoop(store, sender, _Clock(), WebhookSettings())
    session = make_session(callback_url="http://127.0.0.1/")
    await store.insert(session, events=[event(session, "session_enqueued")])
    for _ in range(3):
        await loop.once()
        await loop.drain()
    assert len(sender.sent) == 1


async def test_one_owner_does_not_take_all_the_room() -> None:
    store, sender = MemorySessionStore(), _Sender()
    loop = WebhookLoop(store, sender, _Clock(), WebhookSettings())
    for i in range(40):
        session = make_session(f"s-{i}", callback_url="http://slow/")
        await store.insert(session, events=[event(session, "session_enqueued"), event(session, "session_started")])
    theirs = make_session("theirs", access_key="AKIAOTHER", callback_url="http://quick/")
    await store.insert(theirs, events=[event(theirs, "session_enqueued")])
    for _ in range(3):
        await loop.once()
        await asyncio.sleep(0)
    assert sender.now == 5
    sender.hold.set()
    while await store.due_callbacks(NOW, limit=1):
        await loop.once()
        await loop.drain()
    assert sender.most == 5
    assert len(sender.sent) == 81
    assert sorted({told for _, told in sender.sent}) == ["enqueued", "started"]
