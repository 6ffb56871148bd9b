"""The two processes of a pod, outside of one, and the listener that they dial: streams, take-over, strangers."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

import pytest

from ai.backend.common.errors import AuthenticationFailed, NotFound, Unavailable
from ai.backend.node.relay.framing import FrameReader, ProtocolViolation, encode
from ai.backend.node.relay.pod import _read_role
from ai.backend.node.relay.tls import SERVER_NAME
from ai.backend.node.workload.runner_files import copy_runner, find_relay, find_runner
from ai.backend.plugin.runtime import WorkloadExit, WorkloadExited
from ai.backend.plugin.testing.runtime.suite import Talk
from ai.backend.runtime.kubernetes.certificates import listener_context, make_certificate
from ai.backend.runtime.kubernetes.channel import PodChannel
from ai.backend.runtime.kubernetes.handles import Handle
from ai.backend.runtime.kubernetes.listener import MAX_HELLO_BYTES, Hello, RelayListener
from ai.backend.runtime.kubernetes.records import PodRecord
from ai.backend.runtime.kubernetes.streams import PodStream
from ai.backend.runtime.kubernetes.tokens import PodIdentity

PATIENCE_S = 20.0
POD, TOKEN = "sessions/k-1", "the-token"


@dataclass
class Pod:
    """The processes of one pod, and the agent's side of it."""

    folder: Path
    port: int
    handle: Handle
    listener: RelayListener
    streams: dict[str, asyncio.Future[PodStream]] = field(default_factory=dict)
    relay: subprocess.Popen[bytes] | None = None
    reaper: subprocess.Popen[bytes] | None = None
    exits: list[WorkloadExit] = field(default_factory=list)

    async def begin(self, **environ: str) -> None:
        assert await self.handle.wait_until(lambda: self.handle.is_waiting, PATIENCE_S)
        assert self.handle.link is not None
        await self.handle.link.send({"t": "begin", "environ": environ, "stats_interval": 0.2})
        assert await self.handle.wait_until(lambda: bool(self.handle.has_begun), PATIENCE_S)

    async def talk(self, epoch: int = 1, last_seq: int = 0) -> Talk:
        assert self.handle.link is not None

        async def read_exit() -> WorkloadExit | None:
            return self.handle.exit

        channel = PodChannel(self.handle.link, read_exit)
        previous, self.handle.channel = self.handle.channel, channel
        if previous is not None:
            previous.cut()
        await channel.attach(epoch=epoch, last_seq=last_seq)
        if self.handle.reported_end is not None:
            channel.on_ended(self.handle.reported_end.last_seq)
        return Talk(channel, PATIENCE_S)

    async def dial(self, port: int) -> PodStream:
        assert self.handle.link is not None
        dial: asyncio.Future[PodStream] = asyncio.get_running_loop().create_future()
        self.handle.stream_futures["s1"] = dial
        await self.handle.link.send({"t": "dial", "id": "s1", "port": port})
        async with asyncio.timeout(PATIENCE_S):
            return await dial


@pytest.fixture
async def pod(tmp_path: Path) -> AsyncIterator[Pod]:
    context, authority = listener_context(*make_certificate(tmp_path / "pki"))
    exits: list[WorkloadExit] = []

    def on_exit(_node: str, event: WorkloadExited) -> None:
        exits.append(event.exit)

    record = PodRecord(kernel_id=UUID(int=1), attempt=1, session_id=UUID(int=2), node="n")
    handle = Handle(record, "uid-1", None, on_exit)

    async def verify(token: str) -> PodIdentity:
        if token != TOKEN:
            raise AuthenticationFailed("this is no token")
        return PodIdentity("sessions", "k-1", "uid-1")

    async def admit(hello: Hello, _identity: PodIdentity) -> asyncio.Protocol:
        if hello.role == "relay":
            return handle.connect_relay(hello)
        dial = handle.stream_futures.get(hello.id)
        if dial is None or dial.done():
            raise NotFound("nobody awaits this stream")
        stream = PodStream()
        dial.set_result(stream)
        return stream

    listener = RelayListener(context, verify, admit)
    port = await listener.start("127.0.0.1:0")
    pod = Pod(tmp_path, port, handle, listener, exits=exits)
    copy = copy_runner(find_runner(), tmp_path, find_relay())
    for name in ("channel", "home"):
        (tmp_path / name).mkdir()
    (tmp_path / "token").write_text(TOKEN)
    script = [sys.executable, "-I", "-S", str(copy / "relay" / "main.py")]
    setup = {"channel": str(tmp_path / "channel"), "token": str(tmp_path / "token"), "places": {}}
    environ = {
        "RELAY_TARGET": f"127.0.0.1:{port}",
        "RELAY_AUTHORITY": authority,
        "RELAY_POD": POD,
        "RELAY_SETUP": json.dumps({**setup, "replay_bytes": 1_000_000, "keep_s": 30}),
    }
    pod.relay = await asyncio.to_thread(_launch, [*script, "pod"], environ)
    own = json.dumps({"channel": str(tmp_path / "channel"), "home": str(tmp_path / "home")})
    command = [*script, "reaper", "--here", "--setup", own]
    pod.reaper = await asyncio.to_thread(_launch, command, {})
    yield pod
    for process in (pod.reaper, pod.relay):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if handle.link is not None:
        handle.link.close()
    await listener.close()


def _launch(command: list[str], environ: dict[str, str]) -> subprocess.Popen[bytes]:
    whole = {**os.environ, **environ}
    return subprocess.Popen(command, env=whole, stdout=subprocess.DEVNULL, start_new_session=True)


async def test_the_environment_comes_with_the_order_to_begin(pod: Pod) -> None:
    await pod.begin(BACKENDAI_SESSION_ENVIRON_FLAVOUR="vanilla")
    assert not list((pod.folder / "channel").iterdir()), "the socket is unlinked before any code of the user runs"
    talk = await pod.talk()
    await talk.run("import os; print(os.environ['FLAVOUR'], 'RELAY_AUTHORITY' in os.environ)")
    assert talk.text() == "vanilla False\n"
    assert await pod.handle.wait_until(lambda: pod.handle.last_sample is not None, PATIENCE_S)
    await talk.close()


async def test_a_link_that_is_cut_is_dialled_again_and_loses_nothing(pod: Pod) -> None:
    await pod.begin()
    talk = await pod.talk()
    ready = await talk.kind("ready")
    code = "import time; time.sleep(0.5); print('meanwhile')"
    await talk.channel.send({"t": "run", "id": "r1", "mode": "query", "code": code})
    await talk.kind("started")
    first = pod.handle.link
    assert first is not None
    first.close()
    await talk.over()
    assert await pod.handle.wait_until(lambda: pod.handle.link not in (None, first), PATIENCE_S)
    again = await pod.talk(epoch=1, last_seq=ready["seq"])
    await again.kind("finished")
    assert again.text() == "meanwhile\n"
    assert pod.handle.epoch == 1
    await again.close()


async def test_the_tail_and_the_exit_come_after_the_runner_has_ended(pod: Pod) -> None:
    await pod.begin()
    talk = await pod.talk()
    await talk.run("print('last words')")
    await talk.channel.send({"t": "shutdown"})
    await talk.over()
    assert (await talk.kind("exited"))["code"] == 0
    assert [ended.code for ended in pod.exits] == [0]
    late = await pod.talk(epoch=2)
    await late.over()
    assert late.text() == "last words\n"
    assert late.frames[-1]["t"] == "exited"
    await late.channel.ack(max(frame.get("seq", 0) for frame in late.frames))
    assert pod.relay is not None
    assert await asyncio.to_thread(pod.relay.wait, PATIENCE_S) == 0, "it ends once all was acknowledged"
    await talk.close()


async def test_a_stream_carries_both_directions_and_their_ends(pod: Pod) -> None:
    await pod.begin()
    with socket.create_server(("127.0.0.1", 0)) as server:
        stream = await pod.dial(server.getsockname()[1])
        inner, _ = await asyncio.to_thread(server.accept)
        sent = bytes(range(256)) * 4096
        echo = asyncio.create_task(asyncio.to_thread(_echo, inner, len(sent)))
        await stream.write(sent)
        await stream.write_eof()
        received = bytearray()
        while piece := await stream.read():
            received += piece
        assert bytes(received) == sent
        await echo
        await stream.close()
        port = server.getsockname()[1]
    with pytest.raises(Unavailable, match="refused"):
        await pod.dial(port)


def _echo(sock: socket.socket, size: int) -> None:
    with sock:
        received = bytearray()
        while len(received) < size:
            received += sock.recv(65536)
        sock.sendall(received)
        assert sock.recv(1) == b""


async def test_the_runner_cannot_pose_as_its_relay(pod: Pod) -> None:
    """What comes over the runner's stream is numbered; the relay's own messages are not."""
    await pod.begin()
    talk = await pod.talk()
    pod.handle._on_frame({"t": "ended", "code": 0, "signal": None, "seq": 99}, 10)
    pod.handle._on_frame({"t": "stats", "mem": 1, "pids": [], "seq": 100}, 10)
    assert pod.handle.reported_end is None
    assert pod.handle.exit is None
    await talk.close()


@pytest.mark.parametrize(
    "first",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        (MAX_HELLO_BYTES + 1).to_bytes(4, "big"),
        encode({"t": "attach", "protocol": 1, "epoch": 9, "last_seq": 0}),
        encode({"t": "hello", "protocol": 1, "role": "relay", "pod": POD, "token": "another"}),
        encode({"t": "hello", "protocol": 1, "role": "relay", "pod": "sessions/k-2", "token": TOKEN}),
        encode({"t": "hello", "protocol": 1, "role": "stream", "pod": POD, "token": TOKEN, "id": "guess"}),
        encode({"t": "hello", "protocol": 2, "role": "relay", "pod": POD, "token": TOKEN}),
    ],
)
async def test_strangers_get_nothing(pod: Pod, first: bytes) -> None:
    await pod.begin()
    link = pod.handle.link
    context = ssl.create_default_context(cafile=str(pod.folder / "pki" / "relay.crt"))
    reader, writer = await asyncio.open_connection("127.0.0.1", pod.port, ssl=context, server_hostname=SERVER_NAME)
    writer.write(first)
    async with asyncio.timeout(PATIENCE_S):
        with suppress(ConnectionError, ssl.SSLError):
            answer = await reader.read(4096)
            assert b"welcome" not in answer
    writer.close()
    assert pod.handle.link is link
    assert link is not None
    assert link.is_open


@pytest.mark.parametrize("hello", [b'{"t":"hello","pod":"\xff"}', b'{"t":' + b"[" * 4_000])
async def test_a_hello_of_nonsense_is_refused_at_once(pod: Pod, monkeypatch: pytest.MonkeyPatch, hello: bytes) -> None:
    monkeypatch.setattr("ai.backend.runtime.kubernetes.listener.HELLO_TIMEOUT_S", 10 * PATIENCE_S)
    await pod.begin()
    context = ssl.create_default_context(cafile=str(pod.folder / "pki" / "relay.crt"))
    reader, writer = await asyncio.open_connection("127.0.0.1", pod.port, ssl=context, server_hostname=SERVER_NAME)
    writer.write(len(hello).to_bytes(4, "big") + hello)
    async with asyncio.timeout(PATIENCE_S):
        assert b"refused" in await reader.read()
    writer.close()


async def test_connections_of_one_address_that_say_nothing_keep_no_other_relay_out(
    pod: Pod, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session reaches this port too; without a handshake a connection must count as well."""
    monkeypatch.setattr("ai.backend.runtime.kubernetes.listener.MAX_PENDING_OF_ADDRESS", 8)
    monkeypatch.setattr("ai.backend.runtime.kubernetes.listener.MAX_PENDING_CONNECTIONS", 16)
    target = ("127.0.0.1", pod.port)
    silent = [
        await asyncio.to_thread(socket.create_connection, target, PATIENCE_S, ("127.0.0.2", 0)) for _ in range(20)
    ]
    try:
        refused = [sock for sock in silent if await asyncio.to_thread(_is_closed, sock)]
        assert len(refused) == 12
        first = pod.handle.link
        if first is not None:
            first.close()
        assert await pod.handle.wait_until(
            lambda: pod.handle.link is not None and pod.handle.link is not first, PATIENCE_S
        ), "the relay at another address is let in"
    finally:
        for sock in silent:
            sock.close()


def _is_closed(sock: socket.socket) -> bool:
    sock.settimeout(0.2)
    try:
        return not sock.recv(1)
    except ConnectionError:
        return True
    except TimeoutError:
        return False


@pytest.mark.parametrize("piece", [b"\0", b"\0\0\0\x10", encode({"t": "reaper"})[:-1]])
def test_a_first_frame_in_pieces_ends_the_connection(piece: bytes) -> None:
    """One that is waited for stays readable, and the relay would not sleep any more."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        theirs.sendall(piece)
        with pytest.raises(ProtocolViolation):
            _read_role(ours, FrameReader())


async def test_without_its_relay_the_session_ends(pod: Pod) -> None:
    await pod.begin()
    assert pod.relay is not None
    assert pod.reaper is not None
    pod.relay.kill()
    assert await asyncio.to_thread(pod.reaper.wait, PATIENCE_S) == 75
