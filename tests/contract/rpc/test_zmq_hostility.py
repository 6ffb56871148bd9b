"""What strangers and broken peers can do to the ZeroMQ link: nothing."""

from __future__ import annotations

import asyncio
import os
import shlex
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio
import zmq
import zmq.asyncio

from ai.backend.common.errors import InvalidInput, Unavailable
from ai.backend.common.wire.agent import DestroyKernel
from ai.backend.infra.rpc.frames import Hello, Kind, decode, encode
from ai.backend.infra.rpc.zmq.key_files import ReplacedFile, load_public_keys
from ai.backend.infra.rpc.zmq.keys import AgentKeyDirectory, KeyPair, generate_keypair, load_keypair
from tests.contract.rpc.conftest import Pair, ZmqAdapter
from tests.contract.rpc.test_link import DESTROY, report

LIMIT = 1 << 20


@pytest_asyncio.fixture
async def zmq_pair(zmq_adapter: ZmqAdapter) -> AsyncIterator[Pair]:
    made = Pair(zmq_adapter)
    await made.manager.start(made.reports)
    yield made
    await made.close()


class RawPeer:
    """A DEALER that speaks as it likes."""

    def __init__(self, adapter: ZmqAdapter, keys: KeyPair | None) -> None:
        self.context = zmq.asyncio.Context()
        self.socket = self.context.socket(zmq.DEALER)
        self.socket.linger = 0
        if keys is not None:
            self.socket.curve_serverkey = adapter.manager_keys.public.encode()
            self.socket.curve_secretkey = keys.secret.encode()
            self.socket.curve_publickey = keys.public.encode()
        self.socket.connect(adapter.address)

    async def ask(self, *parts: bytes) -> Any:
        await self.socket.send_multipart(list(parts))
        async with asyncio.timeout(30):
            return decode((await self.socket.recv_multipart())[-1])

    async def is_ignored(self, message: bytes) -> bool:
        await self.socket.send(message)
        return not await self.socket.poll(300)

    def close(self) -> None:
        self.socket.close(0)
        self.context.term()


@pytest.fixture
def allowed(zmq_adapter: ZmqAdapter) -> KeyPair:
    keys = generate_keypair()
    zmq_adapter.agent_keys.allow("i-raw", keys.public)
    return keys


def hello(agent_id: str) -> bytes:
    return encode(Kind.HELLO, body=Hello(agent_id, "x"), limit=LIMIT)


async def test_garbage_is_survived(zmq_pair: Pair, zmq_adapter: ZmqAdapter, allowed: KeyPair) -> None:
    await zmq_pair.join()
    peer = RawPeer(zmq_adapter, allowed)
    try:
        assert (await peer.ask(hello("i-raw"))).kind == Kind.WELCOME
        for garbage in (b"", b"\xc1", os.urandom(1000), msgspec.msgpack.encode({"kind": 4}), b"\x94\x04\x01\xa1x\xc0"):
            await peer.socket.send(garbage)
        await peer.socket.send_multipart([b"many", b"parts", b""])
        for kind in (0, 4, 5, 6, 7, 8, 9, 10, 99):
            await peer.socket.send(msgspec.msgpack.encode([kind, 1, "heartbeat", {"nonsense": True}]))
        for number in range(2, 4):
            await peer.socket.send(encode(Kind.REPLY, number, "", "unasked", limit=LIMIT))
        await zmq_pair.manager.agents["i-1"].destroy_kernel(DESTROY)
        assert (await peer.ask(hello("i-raw"))).kind in (Kind.WELCOME, Kind.ERROR)
    finally:
        peer.close()


async def test_an_agent_whose_key_is_not_allowed_says_how_to_allow_it(
    zmq_pair: Pair, zmq_adapter: ZmqAdapter, caplog: pytest.LogCaptureFixture
) -> None:
    keys = generate_keypair()
    agent = zmq_pair.also(zmq_adapter.agent_with("i-new", keys))
    await agent.start(zmq_pair.commands)
    command = f"backend.ai mgr allow-agent i-new {shlex.quote(keys.public)}"
    async with asyncio.timeout(30):
        while command not in caplog.text:  # noqa: ASYNC110  # a log has no event
            await asyncio.sleep(0.01)
    with pytest.raises(Unavailable, match="the key is allowed for no agent"):
        await agent.reports.heartbeat(report("i-new"))
    zmq_adapter.agent_keys.allow("i-new", keys.public)
    await zmq_pair.met("i-new")
    await zmq_pair.call_until_up(lambda: agent.reports.heartbeat(report("i-new")))


async def test_unknown_methods_and_bad_requests_are_answered(
    zmq_pair: Pair, zmq_adapter: ZmqAdapter, allowed: KeyPair
) -> None:
    peer = RawPeer(zmq_adapter, allowed)
    try:
        assert (await peer.ask(hello("i-raw"))).kind == Kind.WELCOME
        for method in ("create_kernels", "__class__", "nonsense"):
            answer = await peer.ask(encode(Kind.CALL, 7, method, report("i-raw"), limit=LIMIT))
            assert (answer.kind, answer.id) == (Kind.ERROR, 7)
            assert msgspec.msgpack.decode(answer.body)["code"] == "invalid-api-params"
        answer = await peer.ask(encode(Kind.CALL, 8, "heartbeat", {"agent_id": 5}, limit=LIMIT))
        assert (answer.kind, answer.id) == (Kind.ERROR, 8)
    finally:
        peer.close()


async def test_a_key_speaks_only_for_its_agent(zmq_pair: Pair, zmq_adapter: ZmqAdapter, allowed: KeyPair) -> None:
    await zmq_pair.join("i-1")
    peer = RawPeer(zmq_adapter, allowed)
    try:
        assert (await peer.ask(hello("i-1"))).kind == Kind.REFUSED
        call = encode(Kind.CALL, 1, "heartbeat", report("i-1"), limit=LIMIT)
        assert (await peer.ask(call)).kind == Kind.REFUSED
        assert zmq_pair.reports.heartbeats == []
        await zmq_pair.manager.agents["i-1"].destroy_kernel(DESTROY)
        assert zmq_pair.commands.calls == [("destroy_kernel", DESTROY)]
    finally:
        peer.close()


async def test_strangers_hear_nothing(zmq_pair: Pair, zmq_adapter: ZmqAdapter) -> None:
    for keys in (generate_keypair(), None):
        peer = RawPeer(zmq_adapter, keys)
        try:
            assert await peer.is_ignored(hello("i-1"))
        finally:
            peer.close()
    await zmq_pair.join()


async def test_a_wrong_manager_is_not_talked_to(zmq_pair: Pair, zmq_adapter: ZmqAdapter, allowed: KeyPair) -> None:
    end = zmq_pair.also(zmq_adapter.agent_with("i-raw", allowed, manager_key=generate_keypair().public))
    await end.start(zmq_pair.commands)
    with pytest.raises(Unavailable):
        await end.reports.heartbeat(report("i-raw"))
    assert "i-raw" not in zmq_pair.manager.agents


async def test_a_key_may_be_allowed_later_and_taken_away(zmq_pair: Pair, zmq_adapter: ZmqAdapter) -> None:
    keys = generate_keypair()
    end = zmq_pair.also(zmq_adapter.agent_with("i-late", keys))
    await end.start(zmq_pair.commands)
    with pytest.raises(Unavailable):
        await end.reports.heartbeat(report("i-late"))
    zmq_adapter.agent_keys.allow("i-late", keys.public)
    await zmq_pair.met("i-late")
    zmq_adapter.agent_keys.revoke("i-late")
    await zmq_pair.met("i-late", is_there=False)
    with pytest.raises(Unavailable):
        await zmq_pair.manager.agent("i-late").destroy_kernel(DestroyKernel(kernel_id="k", attempt=1))


async def test_a_silent_agent_is_lost(zmq_pair: Pair, zmq_adapter: ZmqAdapter, allowed: KeyPair) -> None:
    peer = RawPeer(zmq_adapter, allowed)
    try:
        assert (await peer.ask(hello("i-raw"))).kind == Kind.WELCOME
        assert "i-raw" in zmq_pair.manager.agents
        await zmq_pair.met("i-raw", is_there=False)
    finally:
        peer.close()


async def test_the_address_in_use_is_told(zmq_pair: Pair, zmq_adapter: ZmqAdapter, tmp_path: Path) -> None:
    taken = zmq_adapter.manager()
    taken.bind = f"ipc://{tmp_path}/no/such/directory/socket"
    with pytest.raises(Unavailable, match="cannot bind"):
        await taken.start(zmq_pair.reports)
    await taken.stop()


def test_key_files_belong_to_their_owner(tmp_path: Path) -> None:
    pair = generate_keypair(tmp_path / "key")
    assert (tmp_path / "key").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "key.pub").read_text().strip() == pair.public
    assert load_keypair(tmp_path / "key") == pair
    assert pair.secret not in repr(pair)
    (tmp_path / "key").chmod(0o644)
    with pytest.raises(InvalidInput, match="0600"):
        load_keypair(tmp_path / "key")


@pytest.mark.parametrize("content", [b"\xff" * 80, b'"' * 40 + b"\n" + b'"' * 40, b"~" * 40, b"", b"a" * 40])
def test_a_damaged_key_file_leaves_the_key_in_use(tmp_path: Path, content: bytes) -> None:
    pair = generate_keypair(tmp_path / "key")
    (tmp_path / "public").write_text(pair.public)
    own, others = ReplacedFile(tmp_path / "key", load_keypair), ReplacedFile(tmp_path / "public", load_public_keys)
    for name in ("key", "public"):
        (tmp_path / name).write_bytes(content)
    assert own.newest() == pair
    if content != b"a" * 40:
        assert others.newest() == (pair.public,)
    newer = generate_keypair(tmp_path / "key")
    assert own.newest() == newer, "a file that was mended is used"


def test_a_key_of_many_costs_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """5,000 agents that connect at once, or a stranger that tries key after key, do not read 5,000 files each time."""
    folder = tmp_path / "keys"
    folder.mkdir()
    texts = {f"i-{number}": f"{number:040}" for number in range(200)}
    for agent_id, text in texts.items():
        (folder / f"{agent_id}.pub").write_text(text)
    keys, paths, read = AgentKeyDirectory(folder), list[Path](), AgentKeyDirectory._read

    def counted(path: Path) -> list[str]:
        paths.append(path)
        return read(path)

    monkeypatch.setattr(AgentKeyDirectory, "_read", staticmethod(counted))
    assert all(keys.agent_for(text) == agent_id for agent_id, text in texts.items())
    strangers = [keys.agent_for(f"{number:040}") for number in range(1000, 1200)]
    assert set(strangers) == {None}
    assert len(paths) <= 3 * len(texts)


def test_keys_are_bound_to_one_agent(tmp_path: Path) -> None:
    keys = AgentKeyDirectory(tmp_path / "keys")
    first, second = generate_keypair().public, generate_keypair().public
    assert keys.agent_for(first) is None
    keys.allow("i-1", first)
    assert keys.agent_for(first) == "i-1"
    keys.allow("i-1", second)
    assert (keys.agent_for(first), keys.agent_for(second)) == (None, "i-1")
    for bad in ("../i-1", "", "i/1"):
        with pytest.raises(InvalidInput):
            keys.allow(bad, first)
