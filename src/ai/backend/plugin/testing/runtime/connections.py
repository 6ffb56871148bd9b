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
    received_bytes = bytearray()
    while piece := await stream.read():
        received_bytes += piece
    return bytes(received_bytes)


class RuntimeConnectionContract(RuntimeSuite):
    """Tests networks of sessions and ports of workloads."""

    async def test_kernels_of_a_session_reach_each_other_by_name(self, runtime: AbstractRuntime) -> None:
        self.need(runtime, "session-networks")
        self.need(runtime, "exec")
        session, host_names = SessionId(uuid4()), ("main1", "sub1")
        network = await runtime.create_network(session, host_names)
        assert await runtime.create_network(session, host_names) == network, "idempotent"
        assert set(network.addresses) == set(host_names)
        assert session in await runtime.list_networks()
        specs = [replace(self.spec(hostname=host, network=network), session_id=session) for host in host_names]
        main_dialogue, sub_dialogue = await asyncio.gather(*(self.start(runtime, spec) for spec in specs))
        await sub_dialogue.channel.send({"t": "run", "id": "r1", "mode": "query", "code": self.listen})
        await sub_dialogue.until(lambda frame: "listening" in sub_dialogue.text(), "listening")
        await main_dialogue.run(self.call, "r2")
        assert main_dialogue.text("r2").split() == ["sub1", "main1", "hello"], main_dialogue.frames

    async def test_a_network_over_several_nodes_is_as_it_was_settled(self, runtime: AbstractRuntime) -> None:
        self.need(runtime, "multi-node-networks")
        session, vni = SessionId(uuid4()), 1 + uuid4().int % 0xFFFFFF
        address_prefix = f"10.214.{vni % 256}"
        first_overlay = Overlay(
            vni=vni,
            subnet=f"{address_prefix}.0/28",
            addresses={"main1": f"{address_prefix}.3", "sub1": f"{address_prefix}.4"},
            gateway=f"{address_prefix}.1",
            mtu=1400,
            local=("127.0.0.1", 4789),
            peers={"sub1": ("192.0.2.1", 4789)},
        )
        second_overlay = replace(first_overlay, vni=1 + vni % 0xFFFFFF, peers={"sub1": ("192.0.2.2", 4790)})
        for overlay in (first_overlay, second_overlay, second_overlay):  # again, and of a later placement
            view = await runtime.create_network(session, tuple(overlay.addresses), overlay)
            assert dict(view.addresses) == dict(overlay.addresses)
            assert list(await runtime.list_networks()) == [session]
            assert not await runtime.broken_networks()
        await runtime.remove_network(session)
        assert not await runtime.list_networks()
        other_overlay = replace(first_overlay, local=("192.0.2.9", 4789))
        with pytest.raises(BackendError):  # that address is not here
            await runtime.create_network(session, tuple(first_overlay.addresses), other_overlay)
        await runtime.remove_network(session)
        assert not await runtime.list_networks()

    async def test_a_network_is_removed_and_found_after_a_restart(self, runtime: AbstractRuntime) -> None:
        self.need(runtime, "session-networks")
        removed_session, other_session = SessionId(uuid4()), SessionId(uuid4())
        await runtime.remove_network(removed_session)  # safe without any
        view, _ = [
            await runtime.create_network(session, ("main1", "sub1")) for session in (removed_session, other_session)
        ]
        second_runtime = await self.reopen(runtime)
        try:
            assert {removed_session, other_session} <= set(await second_runtime.list_networks())
            assert await second_runtime.create_network(removed_session, ("main1", "sub1")) == view
            for session in (removed_session, removed_session, other_session):
                await second_runtime.remove_network(session)
            assert not {removed_session, other_session} & set(await second_runtime.list_networks())
        finally:
            await second_runtime.shutdown()

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
        dialogue = await self.start(runtime)
        with socket.create_server(("127.0.0.1", 0)) as host_server:
            assert await runtime.port_exposure(dialogue.key) in PortExposure
            with pytest.raises(Unavailable):  # what listens on the host is nobody's service
                await runtime.open_port(dialogue.key, host_server.getsockname()[1])
        await dialogue.run(self.echo)
        port = int(dialogue.text())
        sent_bytes = bytes(range(256)) * 8192
        first_stream, open_stream = [await runtime.open_port(dialogue.key, port) for _ in range(2)]
        async with asyncio.timeout(self.patience_s):
            write_task = asyncio.create_task(_send_all(first_stream, sent_bytes))
            assert await _read_all(first_stream) == sent_bytes
            await write_task
            await open_stream.write(b"held")
            assert await open_stream.read() == b"held"
            await first_stream.close()
            with pytest.raises(Unavailable):
                await first_stream.read()
            await runtime.stop(dialogue.key, grace_s=0.0)
            with suppress(Unavailable):  # reset, if it was in the middle of something
                assert await open_stream.read() == b""
        with pytest.raises(Unavailable):
            await runtime.open_port(dialogue.key, port)
        await open_stream.close()

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
