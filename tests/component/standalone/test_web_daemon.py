"""The web server of the embedded cluster: there when somebody asks, nothing before."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

import aiohttp

from ai.backend.standalone.instance import ClusterFile, listen
from ai.backend.standalone.layout import Layout
from ai.backend.standalone.passwords import forget_password, hash_of_random, make_password, stored_password
from ai.backend.standalone.web_daemon import WebDaemon


async def test_the_first_connection_starts_the_server(tmp_path: Path) -> None:
    sock = listen("127.0.0.1", 0)
    cluster = ClusterFile(port=1, storage_port=2, web_port=sock.getsockname()[1])
    daemon = WebDaemon(Layout(tmp_path), cluster, sock)
    await daemon.start()
    await asyncio.sleep(0)
    assert not (tmp_path / "web").exists()
    async with aiohttp.ClientSession() as http:
        for _ in range(2):
            async with http.get(f"{cluster.web_url}/livez") as response:
                assert response.status == 200
        body = {"username": "user@local", "password": "x"}
        async with http.post(f"{cluster.web_url}/server/login", json=body) as response:
            assert response.status == 502 or (await response.json())["authenticated"] is False, "no manager is there"
    await daemon.stop()
    assert sock.fileno() < 0


async def test_a_server_that_nobody_asked_stops(tmp_path: Path) -> None:
    daemon = WebDaemon(Layout(tmp_path), ClusterFile(web_port=0))
    await daemon.start()
    await daemon.stop()


async def test_settings_that_cannot_be_used_stop_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "webserver.toml").write_text("[service]\nno-such-key = 1\n[session]\nmax-age = 0\n")
    sock = listen("127.0.0.1", 0)
    daemon = WebDaemon(Layout(tmp_path), ClusterFile(port=1, web_port=sock.getsockname()[1]), sock)
    await daemon.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", sock.getsockname()[1])
    with suppress(ConnectionResetError):
        assert await asyncio.wait_for(reader.read(), 10) == b""
    assert sock.fileno() < 0
    writer.close()
    await daemon.stop()


def test_printed_passwords_are_kept_until_others_are_chosen(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    layout.make()
    assert stored_password(layout, "user@local") is None
    password = make_password(layout, "user@local")
    assert make_password(layout, "user@local") == password == stored_password(layout, "user@local")
    assert make_password(layout, "admin@local") != password
    assert (layout.keys / "user.password").stat().st_mode & 0o777 == 0o600
    assert password not in hash_of_random(password)
    forget_password(layout, "user@local")
    assert stored_password(layout, "user@local") is None
