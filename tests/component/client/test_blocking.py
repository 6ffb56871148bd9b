"""The blocking SDK: the same implementation, seen from a program without an event loop."""

import asyncio
import threading
from collections.abc import Iterator

import pytest

from ai.backend.client.config import APIConfig
from ai.backend.client.exceptions import BackendAPIError, BackendClientError
from ai.backend.client.request import Request
from ai.backend.client.session import Session
from tests.support.fake_api import ACCESS_KEY, SECRET_KEY, FakeApi, serving


@pytest.fixture
def config() -> Iterator[APIConfig]:
    """The configuration of an API that runs in a thread of its own."""
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()
    ready = threading.Event()
    found: list[str] = []

    async def serve() -> None:
        async with serving(FakeApi()) as endpoint:
            found.append(endpoint)
            ready.set()
            await stop.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    ready.wait(10)
    yield APIConfig(endpoint=found[0], access_key=ACCESS_KEY, secret_key=SECRET_KEY)
    loop.call_soon_threadsafe(stop.set)
    thread.join()
    loop.close()


def test_a_whole_run(config: APIConfig) -> None:
    with Session(config=config) as api_session:
        session = api_session.ComputeSession.get_or_create("python", resources={"cpu": 1})
        assert session.id is not None
        with session.stream_execute("input()") as stream:
            for result in stream.results():
                if result["status"] == "waiting-input":
                    stream.send_text("sync")
        assert result["console"] == [["stdout", "got sync\n"]]
        assert session.execute(code="print('x')")["console"] == [["stdout", "x"]]
        assert api_session.ComputeSession.paginated_list("RUNNING").total_count == 1
        session.destroy()
        assert api_session.ComputeSession.paginated_list("RUNNING").total_count == 0


def test_errors_arrive_as_they_are(config: APIConfig) -> None:
    with Session(config=config) as api_session:
        with pytest.raises(BackendAPIError) as caught:
            api_session.ComputeSession("nobody").get_info()
        assert caught.value.status == 404
        with pytest.raises(BackendAPIError), api_session.ComputeSession("nobody").stream_execute("1"):
            pass


def test_an_exception_of_the_caller_closes_the_stream(config: APIConfig) -> None:
    with Session(config=config) as api_session:
        session = api_session.ComputeSession.get_or_create("python")
        with pytest.raises(ZeroDivisionError), session.stream_execute("print('x')"):
            raise ZeroDivisionError


def test_many_threads_share_a_session(config: APIConfig) -> None:
    names: list[str] = []

    def work(number: int) -> None:
        names.append(api_session.ComputeSession.get_or_create("python", name=f"thread-{number}").name)

    with Session(config=config) as api_session:
        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(names) == [f"thread-{number}" for number in range(8)]


def test_requests_of_ones_own(config: APIConfig) -> None:
    with pytest.raises(BackendClientError, match="no API session is open"):
        Request("GET", "/").fetch()
    with Session(config=config), Request("GET", "/config/resource-slots").fetch() as response:
        assert response.json()["cpu"] == "count"


def test_a_closed_session_leaves_no_thread(config: APIConfig) -> None:
    before = threading.active_count()
    with Session(config=config) as api_session:
        api_session.System.get_versions()
    assert threading.active_count() == before
