"""Tests of networks and ports of workloads, a part of :mod:`ai.backend.plugin.testing.runtime.contract`."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from typing import ClassVar
from uuid import uuid4

import pytest

from ai.backend.common.errors import BackendError, Unavailable
from ai.backend.common.ids import SessionId
from ai.backend.common.structs import replace
from ai.backend.common.wire.link import ByteStream
from ai.backend.plugin.runtime import AbstractRuntime, Overlay, PortExposure
from ai.backend.plugin.testing.runtime.suite import RuntimeSuite


async def _send_all(stream: ByteStream, data: bytes) -> None:
    await stream.write(data)
    await stream.write_eof()


async def _read_all(stream: ByteStream) -> bytes:
    received = bytearray()
    while piece := await stream.read():
        received += piece
    return bytes(received)


class RuntimeConnectionContract(RuntimeSuite):
    """Tests networks of sessions and ports of workloads."""

    async def test_kernels_of_a_session_reach_each_other_by_name(self, runtime: AbstractRuntime) -> None:
        self.need(runtime, "session-networks")
        self.need(runtime, "exec")
        session, hosts = SessionId(uuid4()), ("main1", "sub1")
        network = await runtime.create_network(session, hosts)
        assert await runtime.create_network(session, hosts) == network, "idempotent"
        assert set(network.addresses) == set(hosts)
        assert session in await runtime.list_networks()
        specs = [replace(self.spec(hostname=host, network=network), session_id=session) for host in hosts]
        main, sub = await asyncio.gather(*(self.start(runtime, spec) for spec in specs))
        await sub.channel.send({"t": "run", "id": "r1", "mode": "query", "code": self.listen})
        await sub.until(lambda frame: "listening" in sub.text(), "listening")
        await main.run(self.call, "r2")
        assert main.text("r2").split() == ["sub1", "main1", "hello"], main.frames

    async def test_a_network_over_several_nodes_is_as_it_was_settled(self, runtime: AbstractRuntime) -> None:
        self.need(runtime, "multi-node-networks")
        session, number = SessionId(uuid4()), 1 + uuid4().int % 0xFFFFFF
        prefix = f"10.214.{number % 256}"
        first = Overlay(
            vni=number,
            subnet=f"{prefix}.0/28",
            addresses={"main1": f"{prefix}.3", "sub1": f"{prefix}.4"},
            gateway=f"{prefix}.1",
            mtu=1400,
            local=("127.0.0.1", 4789),
            peers={"sub1": ("192.0.2.1", 4789)},
        )
        second = replace(first, vni=1 + number % 0xFFFFFF, peers={"sub1": ("192.0.2.2", 4790)})
        for overlay in (first, second, second):  # again, and of a later placement
            view = await runtime.create_network(session, tuple(overlay.addresses), overlay)
            assert dict(view.addresses) == dict(overlay.addresses)
            assert list(await runtime.list_networks()) == [session]
            assert not await runtime.broken_networks()
        await runtime.remove_network(session)
        assert not await runtime.list_networks()
        elsewhere = replace(first, local=("192.0.2.9", 4789))
        with pytest.raises(BackendError):  # that address is not here
            await runtime.create_network(session, tuple(first.addresses), elsewhere)
        await runtime.remove_network(session)
        assert not await runtime.list_networks()

    async def test_a_network_is_removed_and_found_after_a_restart(self, runtime: AbstractRuntime) -> None:
        self.need(runtime, "session-networks")
        one, other = SessionId(uuid4()), SessionId(uuid4())
        await runtime.remove_network(one)  # safe without any
        view, _ = [await runtime.create_network(session, ("main1", "sub1")) for session in (one, other)]
        again = await self.reopen(runtime)
        try:
            assert {one, other} <= set(await again.list_networks())
            assert await again.create_network(one, ("main1", "sub1")) == view
            for session in (one, one, other):
                await again.remove_network(session)
            assert not {one, other} & set(await again.list_networks())
        finally:
            await again.shutdown()

    listen: ClassVar[str] = (
        "import socket\n"
        "server = socket.create_server(('', 4321))\n"
        "print('listening', flush=True)\n"
        "peer, _ = server.accept()\n"
        "peer.sendall(b'main1 hello' if peer.recv(64) == b'sub1?' else b'what')\n"
        "peer.close()\n"
    )
    call: ClassVar[str] = (
        "import socket\n"
        "line = socket.create_connection(('sub1', 4321), 10)\n"
        "line.sendall(b'sub1?')\n"
        "print('sub1', line.recv(64).decode())\n"
    )
    """What two kernels run to talk to each other; the second prints ``sub1 main1 hello``."""

    async def test_a_port_inside_is_connected_to_until_the_workload_ends(self, runtime: AbstractRuntime) -> None:
        self.need(runtime, "ports")
        self.need(runtime, "exec")
        conversation = await self.start(runtime)
        with socket.create_server(("127.0.0.1", 0)) as outside:
            assert await runtime.port_exposure(conversation.key) in PortExposure
            with pytest.raises(Unavailable):  # what listens on the host is nobody's service
                await runtime.open_port(conversation.key, outside.getsockname()[1])
        await conversation.run(self.echo)
        port = int(conversation.text())
        sent = bytes(range(256)) * 8192
        first, held = [await runtime.open_port(conversation.key, port) for _ in range(2)]
        async with asyncio.timeout(self.patience_s):
            writing = asyncio.create_task(_send_all(first, sent))
            assert await _read_all(first) == sent
            await writing
            await held.write(b"held")
            assert await held.read() == b"held"
            await first.close()
            with pytest.raises(Unavailable):
                await first.read()
            await runtime.stop(conversation.key, grace_s=0.0)
            with suppress(Unavailable):  # reset, if it was in the middle of something
                assert await held.read() == b""
        with pytest.raises(Unavailable):
            await runtime.open_port(conversation.key, port)
        await held.close()

    echo: ClassVar[str] = (
        "import socketserver, threading\n"
        "class Echo(socketserver.BaseRequestHandler):\n"
        "    def handle(self):\n"
        "        while data := self.request.recv(65536):\n"
        "            self.request.sendall(data)\n"
        "server = socketserver.ThreadingTCPServer(('127.0.0.1', 0), Echo)\n"
        "threading.Thread(target=server.serve_forever, daemon=True).start()\n"
        "print(server.server_address[1])\n"
    )
    """What a workload runs to send back what it gets; it prints its port."""
