"""The same change, sent twice, is done once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from ai.backend.common.errors import Conflict, Unavailable
from ai.backend.common.structs import replace
from ai.backend.infra.http.client_tokens import MAX_BODY_BYTES, ClientTokens
from ai.backend.infra.http.multipart import read_files
from ai.backend.infra.http.routes import Call, OwnerKey, Reply, Schema, endpoints_of, route
from ai.backend.infra.http.server import HttpServer
from ai.backend.infra.http.signature import Authenticator
from ai.backend.infra.telemetry import Metrics
from ai.backend.manager.idempotency.sql import SqlAnswerStore
from ai.backend.simulator.database import InlineDatabase
from tests.component.infra.http.conftest import ACCESS, SECRET, Keys, Trail
from tests.support.serving import serve
from tests.support.signed_http import RawClient, RawReply

START = datetime(2026, 1, 1, tzinfo=UTC)


class Order(Schema, frozen=True):
    how: str = "ok"


@dataclass
class Counter:
    """Counts what is done; ``how`` says how it ends."""

    done: list[str] = field(default_factory=list)
    made: set[UUID | None] = field(default_factory=set)
    entered: asyncio.Event = field(default_factory=asyncio.Event)
    hold: asyncio.Event = field(default_factory=asyncio.Event)

    @route("POST", "/jobs/{w}", body=Order, owner_key=OwnerKey.NAMED)
    async def work(self, call: Call[Order]) -> Reply:
        """Work."""
        self.done.append(call.params["w"])
        how = call.body.how
        if how == "wait":
            self.entered.set()
            await self.hold.wait()
        if how == "refuse":
            raise Conflict("not now", data={"n": len(self.done)})
        if how == "fail":
            raise Unavailable("somebody is away")
        if how == "bug":
            raise RuntimeError("bug")
        text = "x" * MAX_BODY_BYTES if how == "big" else how
        return Reply({"n": len(self.done), "text": text}, 202, {"X-Extra": "1"})

    @route("POST", "/jobs/{w}/again", repeatable=True)
    async def again(self, call: Call) -> dict[str, int | str]:
        """Harmless to repeat: what it makes has the id of the call."""
        self.done.append("again")
        self.made.add(call.call_id)
        if call.params["w"] == "fail" and len(self.done) == 1:
            raise Unavailable("somebody is away")
        return {"n": len(self.done), "id": str(call.call_id)}

    @route("GET", "/jobs")
    async def read(self, call: Call) -> dict[str, int]:
        """Read."""
        self.done.append("read")
        return {"n": len(self.done)}

    @route("DELETE", "/jobs/{w}")
    async def drop(self, call: Call) -> None:
        """Drop."""
        self.done.append("drop")

    @route("POST", "/files", kind="upload", max_body=4096)
    async def upload(self, call: Call) -> dict[str, Any]:
        """Upload."""
        files = await read_files(call, max_files=2, max_file_bytes=64)
        self.done.append(files[0].name)
        return {f.name: f.data.decode() for f in files}


@dataclass
class Served:
    api: Counter
    trail: Trail
    store: SqlAnswerStore
    port: int
    now: list[datetime]
    authenticator: Authenticator

    async def send(
        self, target: str = "/jobs/a", how: str = "ok", *, token: str | None = "t", key: str = ACCESS, **more: Any
    ) -> RawReply:
        client = RawClient(port=self.port, access_key=key, secret_key=SECRET)
        headers = {"X-BackendAI-Client-Token": token} if token is not None else {}
        more = {"json": {"how": how}, **more}
        return await client.request(more.pop("method", "POST"), target, headers=headers, **more)


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    api, keys, trail, now = Counter(), Keys(), Trail(), [START]
    store = SqlAnswerStore(InlineDatabase(frozenset({"kept_answers"})))
    keys.put()
    keys.put("AKOTHER")
    server = HttpServer(
        endpoints_of(api),
        metrics=Metrics("tokens"),
        authenticator=(authenticator := Authenticator(keys)),
        audit=trail,
        client_tokens=ClientTokens(store, window=timedelta(hours=1), clock=lambda: now[0]),
    )
    runner, port = await serve(server.application(), "127.0.0.1", 0)
    try:
        yield Served(api, trail, store, port, now, authenticator)
    finally:
        api.hold.set()
        await runner.cleanup()


async def test_a_repeated_call_gets_the_first_answer(served: Served) -> None:
    first, second = await served.send(), await served.send()
    assert (first.status, first.json()) == (second.status, second.json()) == (202, {"n": 1, "text": "ok"})
    assert second.headers["x-extra"] == "1"
    assert (first.headers.get("x-backendai-replayed"), second.headers["x-backendai-replayed"]) == (None, "true")
    assert first.headers["x-request-id"] != second.headers["x-request-id"]
    assert served.api.done == ["a"]
    assert [outcome for _, outcome, _ in served.trail.notes] == ["ok", "replayed"]


async def test_an_empty_answer_is_repeated_too(served: Served) -> None:
    replies = [await served.send(method="DELETE", json=None) for _ in range(2)]
    assert [(r.status, r.body) for r in replies] == [(204, b"")] * 2
    assert served.api.done == ["drop"]


async def test_without_a_token_and_for_reads_every_call_counts(served: Served) -> None:
    for _ in range(2):
        await served.send(token=None)
        await served.send("/jobs", method="GET", json=None)
    assert served.api.done == ["a", "read", "a", "read"]


async def test_the_second_waits_for_the_first(served: Served) -> None:
    first = asyncio.create_task(served.send(how="wait"))
    await served.api.entered.wait()
    others = [asyncio.create_task(served.send(how="wait")) for _ in range(5)]
    clash = await served.send("/jobs/b", how="wait")
    assert (clash.status, clash.problem) == (422, "client-token-reused")
    assert not any(task.done() for task in others)
    served.api.hold.set()
    replies = await asyncio.gather(first, *others)
    assert {(r.status, r.body) for r in replies} == {(202, b'{"n":1,"text":"wait"}')}
    assert served.api.done == ["a"]


async def test_whoever_gave_up_has_not_stopped_the_work(served: Served) -> None:
    client = RawClient(port=served.port, access_key=ACCESS, secret_key=SECRET)
    body = b'{"how": "wait"}'
    headers = {"X-BackendAI-Client-Token": "t"}
    head = client.head("POST", "/jobs/a", body=body, content_type="application/json", headers=headers)
    _, writer = await client.send(head + body)
    await served.api.entered.wait()
    writer.close()
    second = asyncio.create_task(served.send(body=body, json=None, content_type="application/json"))
    served.api.hold.set()
    assert (await second).json() == {"n": 1, "text": "wait"}
    assert served.api.done == ["a"]


@pytest.mark.parametrize(
    "other",
    [
        {"how": "else"},
        {"target": "/jobs/b"},
        {"target": "/jobs/a?owner_access_key=AKOTHER"},
        {"method": "DELETE", "json": None},
    ],
)
async def test_a_token_names_one_request(served: Served, other: dict[str, Any]) -> None:
    await served.send()
    clash = await served.send(**other)
    assert (clash.status, clash.problem) == (422, "client-token-reused")
    assert served.api.done == ["a"]


async def test_versions_of_the_api_name_the_same_request(served: Served) -> None:
    await served.send("/jobs/a")
    assert (await served.send("/v7/jobs/a")).headers["x-backendai-replayed"] == "true"


async def test_a_token_belongs_to_its_key(served: Served) -> None:
    await served.send()
    assert (await served.send(key="AKOTHER")).json()["n"] == 2


async def test_refusals_are_answers_and_faults_are_not(served: Served) -> None:
    refusals = [await served.send(how="refuse", token="r") for _ in range(2)]
    assert [(r.status, r.problem, r.json()["data"]) for r in refusals] == [(409, "conflict", {"n": 1})] * 2
    for how, status in (("fail", 503), ("bug", 500)):
        before = len(served.api.done)
        assert [(await served.send(how=how, token=how)).status for _ in range(2)] == [status] * 2
        assert len(served.api.done) == before + 2


async def test_what_could_not_be_read_is_not_remembered(served: Served) -> None:
    assert (await served.send(json={"nonsense": 1})).status == 400
    assert (await served.send()).status == 202


async def test_a_call_that_was_cut_off(served: Served) -> None:
    """As after SIGKILL: it has begun, and no answer was kept."""
    client_tokens = served.store
    first = await served.send(how="ok")
    since = START - timedelta(hours=1)
    known = await client_tokens.begin(ACCESS, "t", "", call_id=uuid4(), now=START, since=since)
    assert known is not None
    await client_tokens.begin(ACCESS, "cut", known.fingerprint, call_id=uuid4(), now=START, since=since)
    cut = await served.send(token="cut")
    assert (cut.status, cut.problem) == (409, "outcome-unknown")
    assert first.status == 202
    assert served.api.done == ["a"]

    await served.send("/jobs/a/again", json=None, token="u")
    call_id = uuid4()
    known = await client_tokens.begin(ACCESS, "u", "", call_id=uuid4(), now=START, since=since)
    assert known is not None
    await client_tokens.begin(ACCESS, "cut2", known.fingerprint, call_id=call_id, now=START, since=since)
    replies = [await served.send("/jobs/a/again", json=None, token="cut2") for _ in range(2)]
    assert [r.json() for r in replies] == [{"n": 3, "id": str(call_id)}] * 2


@pytest.mark.parametrize("keeps", [True, False])
async def test_repetitions_of_a_repeatable_call_have_one_id(
    served: Served, monkeypatch: pytest.MonkeyPatch, keeps: bool
) -> None:
    """After a fault, and after a death between the change and its answer: what the call made is found again."""

    async def die(*_: object) -> None:
        raise RuntimeError("killed")

    if not keeps:
        monkeypatch.setattr(served.store, "finish", die)
    target = "/jobs/fail/again" if keeps else "/jobs/a/again"
    assert (await served.send(target, json=None)).status == (503 if keeps else 200)
    monkeypatch.undo()
    replies = [await served.send(target, json=None) for _ in range(2)]
    assert [r.json()["n"] for r in replies] == [2, 2]
    assert {str(one) for one in served.api.made} == {replies[0].json()["id"]}


async def test_two_servers_at_once_give_a_repeatable_call_one_id(served: Served) -> None:
    """Neither sees the other's work, but both see the row that the faster one has written."""
    other = HttpServer(
        endpoints_of(served.api),
        metrics=Metrics("other"),
        authenticator=served.authenticator,
        client_tokens=ClientTokens(served.store, window=timedelta(hours=1), clock=lambda: START),
    )
    runner, port = await serve(other.application(), "127.0.0.1", 0)
    second = replace(served, port=port)
    try:
        replies = await asyncio.gather(*(one.send("/jobs/a/again", json=None) for one in (served, second) * 3))
    finally:
        await runner.cleanup()
    assert {reply.status for reply in replies} == {200}
    assert len(served.api.made) == 1


async def test_an_answer_too_large_to_keep(served: Served) -> None:
    assert (await served.send(how="big")).status == 202
    second = await served.send(how="big")
    assert (second.status, second.problem, second.json()["data"]) == (409, "outcome-not-kept", {"status": 202})
    assert served.api.done == ["a"]


async def test_a_token_is_forgotten_after_its_time(served: Served) -> None:
    await served.send()
    served.now[0] += timedelta(minutes=59)
    assert (await served.send()).json()["n"] == 1
    served.now[0] += timedelta(minutes=2)
    assert (await served.send()).json()["n"] == 2


@pytest.mark.parametrize("token", ["", "x" * 129])
async def test_malformed_tokens(served: Served, token: str) -> None:
    reply = await served.send(token=token)
    assert (reply.status, reply.problem) == (400, "invalid-api-params")
    assert served.api.done == []


async def test_an_upload_has_another_boundary_each_time(served: Served) -> None:
    def form(boundary: str, text: str) -> dict[str, Any]:
        head = 'Content-Disposition: form-data; name="src"; filename="a"'
        body = f"--{boundary}\r\n{head}\r\n\r\n{text}\r\n--{boundary}--\r\n"
        kind = f"multipart/form-data; boundary={boundary}"
        return {"json": None, "body": body.encode(), "content_type": kind}

    first, second = await served.send("/files", **form("one", "hi")), await served.send("/files", **form("two", "hi"))
    assert first.json() == second.json() == {"a": "hi"}
    assert (await served.send("/files", **form("three", "ho"))).problem == "client-token-reused"
    assert served.api.done == ["a"]


async def test_an_answer_is_given_also_if_it_cannot_be_kept(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_: object) -> None:
        raise RuntimeError("disk full")

    monkeypatch.setattr(served.store, "finish", fail)
    assert (await served.send()).status == 202
    assert served.api.done == ["a"]
