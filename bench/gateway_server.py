"""Leads clients to a service: `gateway` is the agent's service gateway, `gateway-haproxy` the same on HAProxy, `relay`
the fewest lines of asyncio.

Reads the authority's certificate from standard input; prints the route as JSON. Ends when its input does.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from ai.backend.agent.config.settings import AgentSettings
from ai.backend.agent.directory.directory import RecordDatabase
from ai.backend.agent.gateway.server import ServiceGateway
from ai.backend.common.wire.link import ByteStream
from ai.backend.infra.process.daemon import quickest_loop
from ai.backend.infra.tls.certificates import create_server_identity
from ai.backend.infra.tls.contexts import server_context
from ai.backend.node.workload.connect import SocketStream

PIECE = 256 * 1024


async def start_gateway(service: int, authority: str, plane: str = "embedded") -> dict[str, Any]:
    async def connect(_kernel_id: str, port: int) -> ByteStream:
        sock = socket.socket()
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
        return SocketStream(sock)

    folder = Path(tempfile.mkdtemp())
    settings = AgentSettings.model_validate(
        {"agent": {"data-dir": str(folder)}, "gateway": {"max-connections-per-route": 16_384, "plane": plane}}
    )
    database = RecordDatabase(folder / "records.db")
    database.open()
    gateway = ServiceGateway(settings, database.table("gateway"), connect)
    await gateway.start(())
    route = await gateway.open("kernel", service, authority)
    return {"name": route.name, "port": route.port, "certificate": route.certificate}


async def start_relay(service: int, authority: str) -> dict[str, Any]:
    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        service_reader, service_writer = await asyncio.open_connection("127.0.0.1", service, limit=PIECE)

        async def copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
            with suppress(OSError):
                while data := await source.read(PIECE):
                    sink.write(data)
                    await sink.drain()

        tasks = [asyncio.create_task(copy(reader, service_writer)), asyncio.create_task(copy(service_reader, writer))]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for each in (service_writer, writer):
            each.close()

    identity = create_server_identity()
    context = server_context(identity, [authority])
    server = await asyncio.start_server(relay, "127.0.0.1", 0, ssl=context, limit=PIECE, backlog=1024)
    asyncio.get_running_loop().server = server  # type: ignore[attr-defined]  # or it is collected
    return {"name": "relay", "port": server.sockets[0].getsockname()[1], "certificate": identity.certificate}


async def main(kind: str, service: int) -> None:
    authority = await asyncio.to_thread(os.read, 0, 1 << 16)
    if kind == "relay":
        route = await start_relay(service, authority.decode())
    else:
        plane = "haproxy" if kind == "gateway-haproxy" else "embedded"
        route = await start_gateway(service, authority.decode(), plane)
    sys.stdout.write(json.dumps(route) + "\n")
    sys.stdout.flush()
    await asyncio.to_thread(os.read, 0, 1)


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=quickest_loop()) as runner:  # as the daemon does
        runner.run(main(sys.argv[1], int(sys.argv[2])))
