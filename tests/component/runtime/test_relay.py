"""The first process of a container, outside of one: it waits for the agent, relays, and leaves what nobody heard."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ai.backend.common.errors import Unavailable
from ai.backend.node.workload.channel import RelayChannel, RelayConnection
from ai.backend.node.workload.connect import SocketStream, _request_connection
from ai.backend.node.workload.runner_files import copy_runner, find_relay, find_runner
from ai.backend.plugin.testing.runtime.suite import Talk
from ai.backend.runtime.docker.channel import is_relaying, read_left_messages

OLD = [path for minor in (8, 9, 10) if (path := shutil.which(f"python3.{minor}"))]
"""Older interpreters, where the machine has one."""


def works(python: str) -> bool:
    return subprocess.run([python, "-c", ""], capture_output=True, check=False).returncode == 0


@pytest.fixture(params=[sys.executable, *OLD[:1]], ids=["ours", "old"][: 1 + len(OLD[:1])])
def relay(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    python: str = request.param
    if not works(python):
        pytest.skip(f"capability: {python} is not set up here")
    copy = copy_runner(find_runner(), tmp_path, find_relay())
    channel, home = tmp_path / "channel", tmp_path / "home"
    channel.mkdir()
    home.mkdir()
    command = [python, "-I", "-S", str(copy / "relay" / "main.py"), "--directory", str(channel)]
    command += ["--replay-bytes", "1000000", "--runtime", "python", "--home", str(home)]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True)
    yield process, channel
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


async def reach(channel: Path) -> None:
    async with asyncio.timeout(30):
        while not (channel / "shim.sock").exists():  # noqa: ASYNC110  # another process makes it
            await asyncio.sleep(0.02)


async def begin(channel: Path) -> int:
    connection = await RelayConnection.open(channel)
    await connection.send({"t": "begin"})
    answer = await connection.receive()
    await connection.close()
    assert answer is not None
    assert answer["t"] == "begun"
    return int(answer["pid"])


async def test_it_begins_once_and_leaves_what_nobody_heard(relay: tuple[subprocess.Popen[bytes], Path]) -> None:
    process, channel = relay
    await reach(channel)
    assert await begin(channel) == await begin(channel)
    talk = Talk(await RelayChannel.attach(channel, epoch=1, last_seq=0), 20.0)
    ready = await talk.kind("ready")
    await talk.channel.ack(ready["seq"])
    await talk.run("print('heard by nobody')")
    await talk.channel.send({"t": "shutdown"})
    assert await asyncio.to_thread(process.wait, 20) == 0
    await talk.close()
    left = read_left_messages(channel / "left", 1 << 20)
    assert left[0] == {"t": "left", "reason": ""}
    assert [frame["t"] for frame in left[1:]][-1] == "finished"
    assert min(frame["seq"] for frame in left[1:]) == ready["seq"] + 1


async def test_it_ends_at_once_where_nothing_has_begun(relay: tuple[subprocess.Popen[bytes], Path]) -> None:
    process, channel = relay
    await reach(channel)
    process.terminate()
    assert await asyncio.to_thread(process.wait, 20) == 0


async def test_the_death_of_the_runner_is_told_as_a_shell_tells_it(relay: tuple[subprocess.Popen[bytes], Path]) -> None:
    process, channel = relay
    await reach(channel)
    os.kill(await begin(channel), signal.SIGKILL)
    assert await asyncio.to_thread(process.wait, 20) == 128 + signal.SIGKILL


def test_what_a_container_puts_in_the_place_of_the_left_file_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/etc/passwd")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "noise").write_bytes(os.urandom(1000))
    for name in ("link", "pipe", "noise", "none"):
        assert all(frame["t"] == "malformed" for frame in read_left_messages(tmp_path / name, 1 << 20))


async def test_it_carries_connections_for_an_agent_that_gets_no_socket(
    relay: tuple[subprocess.Popen[bytes], Path],
) -> None:
    process, channel = relay
    await reach(channel)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        carried = SocketStream(await asyncio.to_thread(_request_connection, channel, port))
        service, _ = server.accept()
        service.sendall(b"the service speaks first")
        assert await carried.read() == b"the service speaks first"
        await carried.write(b"question")
        await carried.write_eof()
        assert service.recv(100) == b"question"
        assert service.recv(100) == b"", "the end goes through, and the other direction goes on"
        service.sendall(b"answer")
        assert await carried.read() == b"answer"
        service.close()
        assert await carried.read() == b""
        await carried.close()
    with pytest.raises(Unavailable, match=f"nothing listens on port {port}"):
        await asyncio.to_thread(_request_connection, channel, port)
    assert await begin(channel), "and the relay goes on"
    assert await is_relaying(channel)
    process.kill()
    process.wait()
    assert not await is_relaying(channel)


async def test_a_relay_that_does_not_answer_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ai.backend.runtime.docker.channel._ANSWER_TIMEOUT_S", 0.1)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:  # accepts, as gVisor does for a dead relay
        listener.bind(str(tmp_path / "shim.sock"))
        listener.listen()
        assert not await is_relaying(tmp_path)
