"""Serves an aiohttp application on a port of this host."""

from __future__ import annotations

from aiohttp import web

from ai.backend.infra.http.server import make_runner, serve_on


async def serve(app: web.Application, host: str, port: int) -> tuple[web.AppRunner, int]:
    """Serves on the host, and returns the runner, which the caller cleans up, with the port; 0 is any."""
    runner = make_runner(app)
    return runner, (await serve_on(runner, (host, port)))[1]
