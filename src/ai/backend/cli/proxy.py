"""`backend.ai proxy`: a local port whose requests reach the API signed (spec 03-13:166)."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

import click

from ai.backend.cli.framework.lazy import LeafCommand, screen_of

if TYPE_CHECKING:
    from aiohttp import web

    from ai.backend.client.session import AsyncSession

_MAX_BODY_BYTES = 64 << 20
_LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
_PASSED_HEADERS = ("Content-Type", "Content-Disposition", "Cache-Control", "ETag", "Location", "Retry-After")
_PIECE_BYTES = 65_536


@click.command(cls=LeafCommand, needs_loop=True)
@click.option("-b", "--bind", default="localhost", show_default=True, help="Address to listen on.")
@click.option(
    "-p", "--port", type=click.IntRange(0, 65_535), default=8084, show_default=True, help="Port to listen on."
)
async def proxy(api: AsyncSession, bind: str, port: int) -> int:
    """Sign the requests of a local port with your keypair and pass them on, until Ctrl-C.

    Whoever reaches the port acts as you. Pages of other sites are refused: the origin of a request, if it has one, must
    be the proxy, and where the proxy listens on this computer only, so must be its host. WebSockets are not passed on.
    """
    from aiohttp import web

    screen = screen_of()
    allowed_hosts = _LOOPBACK_NAMES if bind in _LOOPBACK_NAMES else frozenset()

    async def handle_request(request: web.Request) -> web.StreamResponse:
        return await _pass_request_on(api, allowed_hosts, request)

    app = web.Application(client_max_size=_MAX_BODY_BYTES)
    app.router.add_route("*", "/{path:.*}", handle_request)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, bind, port).start()
        except OSError as error:
            raise click.ClickException(f"cannot listen on {bind}:{port}: {error.strerror or error}") from None
        host, chosen_port = runner.addresses[0][:2]
        url_host = f"[{host}]" if ":" in host else host
        url = f"http://{url_host}:{chosen_port}"
        screen.print_result({"url": url}, f"{url} is {api.config.endpoint} with your keypair, until you press Ctrl-C")
        sys.stdout.flush()
        await asyncio.Event().wait()
    finally:
        await runner.cleanup()
    return 0


async def _pass_request_on(
    api: AsyncSession, allowed_hosts: frozenset[str], request: web.Request
) -> web.StreamResponse:
    """Sends a request to the API and streams the reply; errors of the network become 502.

    An empty ``allowed_hosts`` allows any host.
    """
    from aiohttp import ClientError, web

    from ai.backend.client.exceptions import BackendAPIError, BackendClientError
    from ai.backend.client.wire import Call

    origin = request.headers.get("Origin")
    if (allowed_hosts and request.url.host not in allowed_hosts) or (
        origin is not None and origin != str(request.url.origin())
    ):
        return _problem_reply(403, "forbidden", "the proxy serves its own address only, and no pages of other sites")
    if request.headers.get("Upgrade", "").lower() == "websocket":
        return _problem_reply(501, "not-implemented", "the proxy passes no WebSockets on")
    content = await request.read() if request.can_read_body else None
    api_call = Call(
        method=request.method,
        path=request.rel_url.raw_path_qs,
        content=content,
        content_type=request.headers.get("Content-Type"),
    )
    reply: web.StreamResponse | None = None
    try:
        async with api.transport.stream(api_call) as api_answer:
            headers = {name: api_answer.headers[name] for name in _PASSED_HEADERS if name in api_answer.headers}
            reply = web.StreamResponse(status=api_answer.status, headers=headers)
            await reply.prepare(request)
            async for piece in api_answer.content.iter_chunked(_PIECE_BYTES):
                await reply.write(piece)
            await reply.write_eof()
            return reply
    except BackendAPIError as error:
        return web.json_response(error.data, status=error.status, content_type="application/problem+json")
    except (BackendClientError, ClientError, TimeoutError) as error:
        if reply is not None:
            raise  # the answer has begun: cutting it is the only way to say that it is not whole
        return _problem_reply(502, "bad-gateway", str(error))


def _problem_reply(status: int, code: str, message: str) -> web.Response:
    from aiohttp import web

    document = {"type": f"https://api.backend.ai/probs/{code}", "title": message, "msg": message}
    return web.json_response(document, status=status, content_type="application/problem+json")
