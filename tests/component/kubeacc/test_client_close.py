"""A client of the API server that is closed leaves no transport open, whatever was under way."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from ai.backend.common.errors import BackendError
from ai.backend.infra.loop import cancel_all
from ai.backend.infra.retry import Backoff
from ai.backend.node.kube_api.client import KubeApi
from ai.backend.node.kube_api.configuration import ClusterAddress, Token
from tests.support.certificates import self_signed


@pytest.fixture
async def address(tmp_path: Path) -> AsyncIterator[ClusterAddress]:
    """A server that answers ``/quick`` and never ends ``/watch``."""
    certificate, key = self_signed(tmp_path)

    async def watch(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)
        await answer.write(b"\n")
        await asyncio.Event().wait()
        return answer

    async def quick(_request: web.Request) -> web.Response:
        return web.json_response({})

    app = web.Application()
    app.router.add_get("/watch", watch)
    app.router.add_get("/quick", quick)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
    await site.start()
    (host, port) = runner.addresses[0][:2]
    yield ClusterAddress(server=f"https://{host}:{port}", authority=certificate.read_text(), token=Token(""))
    await runner.cleanup()


@pytest.mark.parametrize("turns", [1, 8, 40])
async def test_no_transport_outlives_the_client(
    address: ClusterAddress, turns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop: Any = asyncio.get_running_loop()
    opened: list[Any] = []
    make = loop._make_socket_transport

    def record(*arguments: Any, **options: Any) -> Any:
        opened.append(make(*arguments, **options))
        return opened[-1]

    api = KubeApi(address, lambda: Backoff(1.0, 1.0))
    await api.request("GET", "/quick")

    async def follow() -> None:
        async with api.stream("/watch", {}, silence_s=30) as chunks:
            async for _ in chunks:
                pass

    monkeypatch.setattr(loop, "_make_socket_transport", record)
    watch, cut = asyncio.ensure_future(follow()), [asyncio.ensure_future(follow()) for _ in range(4)]
    waiting = asyncio.ensure_future(api.request("GET", "/watch"))
    await asyncio.sleep(0.1)
    ended = asyncio.ensure_future(follow())
    for _ in range(turns):  # so that the watch is cut while it connects, shakes hands, or is open
        await asyncio.sleep(0)
    await cancel_all(ended, waiting, *cut)
    await api.close()
    # The server's own transports belong to it.
    assert [transport for transport in opened if transport._sock is not None and transport._server is None] == []
    with pytest.raises(BackendError):
        async with asyncio.timeout(5):
            await watch
