"""The asynchronous SDK against an API that verifies signatures."""

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from ai.backend.client.config import APIConfig
from ai.backend.client.exceptions import BackendAPIError, BackendClientError, EndpointUnreachable, MissingCredentials
from ai.backend.client.request import Request
from ai.backend.client.session import AsyncSession, Session
from tests.support.fake_api import ACCESS_KEY, SECRET_KEY, FakeApi


async def test_a_session_is_created_and_destroyed(client: AsyncSession, api: FakeApi) -> None:
    session = await client.ComputeSession.get_or_create("python", resources={"cpu": 1, "mem": "256m"}, envs={"A": "b"})
    assert session.created
    assert session.status == "RUNNING"
    kept = api.find(str(session.id))
    assert kept.body["config"]["resources"] == {"cpu": "1", "mem": "256m"}
    assert kept.body["config"]["environ"] == {"A": "b"}
    assert kept.body["reuseIfExists"] is True
    await session.destroy()
    assert not api.sessions


async def test_the_same_name_gives_the_same_session(client: AsyncSession) -> None:
    one = await client.ComputeSession.get_or_create("python", client_token="mysession")
    two = await client.ComputeSession.get_or_create("python", name="mysession")
    assert (one.id, two.created) == (two.id, False)
    with pytest.raises(BackendAPIError) as caught:
        await client.ComputeSession.get_or_create("python", name="mysession", no_reuse=True)
    assert caught.value.code == "session-already-exists"


async def test_a_wrong_secret_is_refused_by_the_server(endpoint: str) -> None:
    config = APIConfig(endpoint=endpoint, access_key=ACCESS_KEY, secret_key="wrong")
    async with AsyncSession(config=config) as client:
        assert (await client.System.get_versions())["version"] == "v7.20230615"
        with pytest.raises(BackendAPIError) as caught:
            await client.ComputeSession.get_or_create("python")
    assert caught.value.status == 401


async def test_without_keys_nothing_is_sent(endpoint: str, api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("BACKEND_ACCESS_KEY", "BACKEND_SECRET_KEY"):
        monkeypatch.delenv(name, raising=False)
    async with AsyncSession(config=APIConfig(endpoint=endpoint)) as client:
        with pytest.raises(MissingCredentials):
            await client.ComputeSession("x").get_info()
    assert not api.requests


@pytest.mark.parametrize("name", ["plain-name", "with space", "ünï/cödé%+&?#"])
async def test_names_of_any_kind_are_signed_as_they_are_sent(client: AsyncSession, name: str) -> None:
    with pytest.raises(BackendAPIError) as caught:
        await client.ComputeSession(name).get_info()
    assert caught.value.code == "session-not-found"


async def test_a_run_in_steps(client: AsyncSession) -> None:
    session = await client.ComputeSession.get_or_create("python")
    run_id, code, mode, console = None, "print('hello')", "query", []
    while True:
        result = await session.execute(run_id, code, mode=mode)
        run_id, code, mode = result["runId"], "", "continued"
        console += result["console"]
        if result["status"] == "finished":
            break
    assert console == [["stdout", "hello"], ["stdout", "\n"], ["stderr", "err\n"]]


async def test_a_run_that_asks(client: AsyncSession) -> None:
    session = await client.ComputeSession.get_or_create("python")
    async with session.stream_execute("input()") as stream:
        results = []
        async for result in stream.results():
            results.append(result)
            if result["status"] == "waiting-input":
                await stream.send_text("Lablup")
    assert results[-1]["console"] == [["stdout", "got Lablup\n"]]


async def test_the_published_way_to_read_a_stream(client: AsyncSession) -> None:
    session = await client.ComputeSession.get_or_create("python")
    async with session.stream_execute("print('x')") as stream:
        kinds = [message.type async for message in stream]
    assert kinds == [aiohttp.WSMsgType.TEXT] * 2


async def test_a_stream_of_an_unknown_session_is_refused(client: AsyncSession) -> None:
    with pytest.raises(BackendAPIError) as caught:
        async with client.ComputeSession("6b7bba6c-0000-4000-8000-000000000000").stream_execute("1"):
            pass
    assert caught.value.status == 404


async def test_a_batch_run(client: AsyncSession) -> None:
    session = await client.ComputeSession.get_or_create("c")
    opts = {"build": "*", "exec": "./main; exit 3"}
    async with session.stream_execute(mode="batch", opts=opts) as stream:
        statuses = [(result["status"], result["exitCode"]) async for result in stream.results()]
    assert statuses == [("build-finished", 0), ("finished", 3)]


async def test_modes_that_there_are_not(client: AsyncSession) -> None:
    with pytest.raises(BackendClientError, match="mode is"):
        await client.ComputeSession("x").execute(code="1", mode="speak")


async def test_files_go_there_and_back(client: AsyncSession, api: FakeApi, tmp_path: Path) -> None:
    names = [f"d{number % 3}/ünï {number}.txt" for number in range(45)]
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    session = await client.ComputeSession.get_or_create("python")
    await session.upload(names, basedir=tmp_path)
    assert set(api.find(session.name).files) == set(names)
    assert {one["filename"] for one in await session.list_files()} == set(names)
    written = await session.download(names[:7], dest=tmp_path / "back")
    assert [path.read_text() for path in written] == names[:7]


async def test_files_outside_of_the_base_are_refused(client: AsyncSession, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "out.txt").write_text("x")
    session = await client.ComputeSession.get_or_create("python")
    with pytest.raises(BackendClientError, match="is not inside"):
        await session.upload([tmp_path / "out.txt"], basedir=tmp_path / "in")
    with pytest.raises(BackendClientError, match="no such file"):
        await session.upload(["missing.txt"], basedir=tmp_path)


async def test_small_calls(client: AsyncSession, api: FakeApi) -> None:
    session = await client.ComputeSession.get_or_create("python", name="small")
    assert await session.complete("pri") == ["print", "printf"]
    assert (await session.status_history())["running"]
    await session.restart()
    assert api.find("small").restarts == 1
    await session.rename("smaller")
    assert api.find("smaller").id == str(session.id)
    await session.execute(code="print('x')")
    assert await session.get_logs() == "ran print('x')\n"
    assert (await session.detail(["status", "image"])) == {"status": "RUNNING", "image": "python"}
    assert await client.ComputeSession("smaller").resolve_id() == session.id


async def test_lists_have_pages(client: AsyncSession) -> None:
    for number in range(25):
        await client.ComputeSession.get_or_create("python", name=f"many-{number}")
    found: list[dict[str, Any]] = []
    while True:
        page = await client.ComputeSession.paginated_list("RUNNING", page_offset=len(found), fields=["name"])
        found += page.items
        if len(found) >= page.total_count:
            break
    assert len(found) == 25
    assert found[0] == {"name": "many-0"}


async def test_graphql_errors_are_errors(client: AsyncSession) -> None:
    with pytest.raises(BackendAPIError) as caught:
        await client.Admin.query("query { nothing { id } }")
    assert caught.value.code == "graphql-error"


async def test_events_resume_where_the_connection_broke(client: AsyncSession, api: FakeApi) -> None:
    api.events = [("session_preparing", {"n": 1}), ("cut", {}), ("session_started", {"n": 3})]
    session = await client.ComputeSession.get_or_create("python")
    told = [event.name async for event in session.events()]
    assert told == ["session_preparing", "cut", "session_started"]
    streams = [one for one in api.requests if one.path == "/events/session"]
    assert [one.headers.get("Last-Event-ID") for one in streams] == ["now", "2"]


async def test_progress_is_told_once_whatever_the_names(client: AsyncSession, api: FakeApi) -> None:
    step = {"current_progress": 1, "total_progress": 2, "message": "half"}
    api.events = [("bgtask_updated", step), ("task_updated", step), ("bgtask_done", step), ("task_done", step)]
    task = client.BackgroundTask("6b7bba6c-0000-4000-8000-000000000000")
    assert [one.state async for one in task.progress()] == ["updated", "done"]
    assert (await task.wait()).message == "half"
    api.events = [("bgtask_failed", {"message": "no"})]
    with pytest.raises(BackendClientError, match="failed: no"):
        await task.wait()


async def test_a_change_is_sent_again_with_the_same_token(client: AsyncSession, api: FakeApi) -> None:
    await client.System.get_versions()
    api.fail_next = 1
    session = await client.ComputeSession.get_or_create("python", name="once")
    tokens = [one.headers["X-BackendAI-Client-Token"] for one in api.requests if one.path == "/session"]
    assert len(tokens) == 2
    assert tokens[0] == tokens[1]
    assert [one.id for one in api.sessions.values()] == [str(session.id)]


async def test_code_is_sent_again_under_the_same_token(client: AsyncSession, api: FakeApi) -> None:
    """By it the server knows the repetition; each step has a token of its own."""
    session = await client.ComputeSession.get_or_create("python")
    await session.execute(code="print(0)")
    api.fail_next = 1
    await session.execute(code="print(1)")
    steps = [one for one in api.requests if one.method == "POST" and one.path != "/session"]
    tokens = [one.headers["X-BackendAI-Client-Token"] for one in steps]
    assert (len(tokens), len(set(tokens)), tokens[1]) == (3, 2, tokens[2])


async def test_another_endpoint_takes_over(endpoint: str) -> None:
    config = APIConfig(endpoint=f"http://127.0.0.1:9,{endpoint}", access_key=ACCESS_KEY, secret_key=SECRET_KEY)
    async with AsyncSession(config=config) as client:
        for _ in range(3):
            assert (await client.System.get_versions())["manager"] == "26.11.0"
            assert (await client.ComputeSession.get_or_create("python", name="fail-over")).status == "RUNNING"


async def test_no_endpoint_at_all() -> None:
    config = APIConfig(endpoint="http://127.0.0.1:9", access_key=ACCESS_KEY, secret_key=SECRET_KEY)
    async with AsyncSession(config=config) as client:
        with pytest.raises(EndpointUnreachable, match=r"127\.0\.0\.1:9"):
            await client.System.get_versions()


async def test_requests_of_ones_own(client: AsyncSession) -> None:
    async with Request("GET", "/config/resource-slots").fetch() as response:
        assert (await response.json())["mem"] == "bytes"
    request = Request("POST", "/admin/gql")
    request.set_json({"query": "query { keypair { access_key } }", "variables": {}})
    async with request.fetch() as response:
        assert (await response.json())["data"]["keypair"]["access_key"] == ACCESS_KEY


async def test_the_announcement_is_handed_over(endpoint: str, api: FakeApi) -> None:
    announced: list[str] = []
    config = APIConfig(
        endpoint=endpoint, access_key=ACCESS_KEY, secret_key=SECRET_KEY, announcement_handler=announced.append
    )
    async with AsyncSession(config=config):
        assert not announced
    api.announcement = "maintenance at noon"
    async with AsyncSession(config=config):
        assert announced == ["maintenance at noon"]
    blocking = Session(config=config)
    await asyncio.to_thread(blocking.open)
    await asyncio.to_thread(blocking.close)
    assert announced == ["maintenance at noon"] * 2
    api.fail_next = 99
    async with AsyncSession(config=config):
        assert len(announced) == 2
