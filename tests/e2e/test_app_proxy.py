"""Apps of sessions in a browser: from the command's address to the app, until the session ends (issue 15 A)."""

from __future__ import annotations

import asyncio
import http.cookiejar
import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import pytest

from tests.support.cluster import Cluster, free_port, running_cluster, wait_until

RESOURCES = ("-r", "cpu=1", "-r", "mem=256m")


class Browser:
    """Follows redirects and keeps cookies, as a browser does."""

    def __init__(self) -> None:
        self.cookies = http.cookiejar.CookieJar()
        self._opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(self.cookies))

    def get(self, url: str) -> tuple[int, str, str]:
        """The status, the body and the address in the end."""
        request = urllib.request.Request(url, headers={"Accept": "text/html"})
        try:
            with self._opener.open(request, timeout=30) as reply:
                return reply.status, reply.read().decode(), reply.url
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode(), error.url or url


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    first = free_port(then=9)
    folder = tmp_path_factory.mktemp("cluster")
    consent = folder / "agent.toml"  # for hosts where sessions have no networks of their own
    consent.write_text("[services]\nshared-network = true\n")
    options = ("--app-ports", f"{first}-{first + 9}", "--agent-config", str(consent))
    with running_cluster(folder / "data", *options) as cluster:
        yield cluster


def start(cluster: Cluster, name: str) -> str:
    cluster.run("start", "-t", name, *RESOURCES, "python", check=True)
    return name


def address_of(cluster: Cluster, session: str, app: str, *options: str) -> str:
    return str(cluster.json("app", session, app, "--browser", *options)["url"])


def coordinator_of(cluster: Cluster) -> str:
    return f"http://127.0.0.1:{json.loads((cluster.data_dir / 'cluster.json').read_text())['coordinator_port']}"


def test_an_app_opens_at_the_printed_address_and_ends_with_its_session(cluster: Cluster) -> None:
    session = start(cluster, "terminal")
    address = address_of(cluster, session, "ttyd")
    browser = Browser()
    status, page, url = browser.get(address)
    assert status == 200, page
    assert "<html" in page
    assert "code=" not in url, "the address of the app is clean"
    assert address.startswith(coordinator_of(cluster))
    assert browser.get(url)[0] == 200, "the permit lasts"
    assert Browser().get(url)[0] == 401, "another browser has none"
    assert Browser().get(address)[0] == 401, "the printed address is used up"
    (permit,) = browser.cookies
    asyncio.run(_type_and_end(cluster, session, url, f"{permit.name}={permit.value}"))
    _wait_until_gone(browser, url)
    status, text, _ = Browser().get(address.partition("?")[0] + "?app=ttyd")
    assert status == 401, text


async def _type_and_end(cluster: Cluster, session: str, url: str, cookie: str) -> None:
    """A terminal's WebSocket passes the proxy, and is cut when the session ends."""
    origin = f"http://{urlsplit(url).netloc}"
    async with (
        aiohttp.ClientSession() as http,
        http.ws_connect(f"{origin}/ws?key={'k' * 20}", origin=origin, headers={"Cookie": cookie}) as socket,
    ):
        await socket.send_bytes(b"0echo mark-$((1+1))\n")
        seen = b""
        async with asyncio.timeout(30):
            while b"mark-2" not in seen:
                seen += bytes((await socket.receive()).data or b"")
        removal = asyncio.create_task(asyncio.to_thread(cluster.run, "rm", "--forced", session))
        async with asyncio.timeout(60):
            async for _ in socket:
                pass
        await removal


def _wait_until_gone(browser: Browser, url: str) -> None:
    def is_gone() -> bool:
        try:
            return browser.get(url)[0] != 200
        except (urllib.error.URLError, ConnectionError):
            return True

    wait_until(is_gone, what="the end of the circuit")


def test_a_plain_service_of_a_session_opens(cluster: Cluster) -> None:
    session = start(cluster, "pages")
    cluster.run("exec", session, "sh", "-c", "echo my page > index.html", check=True)
    status, page, url = Browser().get(address_of(cluster, session, "http"))
    assert status == 200, page
    assert page == "my page\n"
    public = address_of(cluster, session, "http", "--public")
    assert Browser().get(public)[0] == 200
    assert Browser().get(url)[1] == "my page\n", "anybody may use it now"
    cluster.run("rm", "--forced", session)


def test_the_circuit_of_a_session_that_ended_while_everything_was_killed_goes(tmp_path: Path) -> None:
    first = free_port(then=9)
    cluster = Cluster(tmp_path / "data", "--app-ports", f"{first}-{first + 9}")
    cluster.start()
    try:
        session = start(cluster, "killed")
        browser = Browser()
        _, _, url = browser.get(address_of(cluster, session, "ttyd"))
        cluster.kill()
        cluster.start()
        wait_until(lambda: _status(browser, url) == 200, what="the circuit after the kill")
        cluster.run("rm", "--forced", session, check=True)
        cluster.kill()
        cluster.start()
        wait_until(lambda: _status(browser, url) != 200, what="the end of the circuit after the kill")
    finally:
        cluster.stop()


def _status(browser: Browser, url: str) -> int:
    try:
        return browser.get(url)[0]
    except (urllib.error.URLError, ConnectionError):
        return 0


def test_an_unknown_app_is_one_line(cluster: Cluster) -> None:
    session = start(cluster, "nothing")
    done = cluster.run("app", session, "no-such-app", "--browser")
    assert done.returncode == 1
    assert "has no service 'no-such-app'" in done.stderr
    assert cluster.run("app", session, "ttyd", "--public").returncode == 2
    cluster.run("rm", "--forced", session)
