"""Starts, stops and restarts the agent when it is asked to (spec 03-02): ``backend.ai ag watcher``.

Requests carry the token of the settings. The agent's sessions outlive what is done to it.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import click
from aiohttp import web

from ai.backend.agent.config.published import WatcherSettings
from ai.backend.agent.config.settings import AgentSettings
from ai.backend.common.errors import BackendError, Conflict, Forbidden, InvalidInput, Unavailable
from ai.backend.infra.daemon import config_option, log_level_option, run_daemon
from ai.backend.infra.http.errors import problem_response
from ai.backend.infra.http.server import make_runner, serve_on

log = logging.getLogger(__name__)
TOKEN_HEADER = "X-BackendAI-Watcher-Token"
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
ACTIONS = ("start", "stop", "restart")
_ACTION_S = 60.0


class Watcher:
    """The HTTP face of the unit of the agent: ``GET /`` tells its state, ``POST /agent/{action}`` does something."""

    def __init__(self, settings: WatcherSettings) -> None:
        if not settings.token:
            raise InvalidInput("watcher.token is needed: without one nobody could be let in", data={"token": "missing"})
        self._settings = settings
        self._token = settings.token
        self._busy = asyncio.Lock()

    def application(self) -> web.Application:
        app = web.Application(client_max_size=4096)
        app.router.add_get("/", self._guarded(self._status))
        app.router.add_post("/agent/{action}", self._guarded(self._act))
        return app

    def _guarded(self, work: Handler) -> Handler:
        async def handle(request: web.Request) -> web.StreamResponse:
            try:
                given = request.headers.get(TOKEN_HEADER, "")
                if not hmac.compare_digest(given.encode(), self._token.encode()):
                    raise Forbidden("The watcher does not know you.")
                answer: web.StreamResponse = await work(request)
            except BackendError as e:
                return problem_response(e, request_id=request.headers.get("X-Request-ID", "")[:64])
            return answer

        return handle

    async def _status(self, _: web.Request) -> web.Response:
        code, said = await self._run("is-active")
        return web.json_response({"agent-status": said.strip()[:64] or ("active" if code == 0 else "unknown")})

    async def _act(self, request: web.Request) -> web.Response:
        action = request.match_info["action"]
        if action not in ACTIONS:
            raise InvalidInput(f"no such action; there are {', '.join(ACTIONS)}", data={"action": "unknown"})
        if self._busy.locked():
            raise Conflict("Something is being done to the agent already.")
        async with self._busy:
            code, said = await self._run(action)
        if code != 0:
            raise Unavailable(f"The agent could not {action}: {said.strip()[-500:]}")
        log.info("the agent was asked to %s", action)
        return web.json_response({"result": "ok"})

    async def _run(self, action: str) -> tuple[int, str]:
        unit = self._settings.target_service
        own = self._settings.command
        command: Sequence[str] = [*own, action] if own else ["systemctl", action, unit]
        try:
            process = await asyncio.create_subprocess_exec(
                *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
            )
        except OSError as e:
            raise Unavailable(f"{command[0]} cannot be run: {e.strerror}") from None
        try:
            async with asyncio.timeout(_ACTION_S):
                out, _ = await process.communicate()
        except TimeoutError:
            process.kill()
            await process.wait()
            raise Unavailable(f"{command[0]} takes longer than {_ACTION_S:.0f} s") from None
        return process.returncode or 0, out.decode(errors="replace")


async def serve(settings: WatcherSettings, stop: asyncio.Event) -> None:
    """Listen until ``stop`` is set.

    Raises:
        InvalidInput: there is no token. OSError: the address cannot be bound.
    """
    runner = make_runner(Watcher(settings).application())
    try:
        host, port = await serve_on(runner, (settings.service_addr.host, settings.service_addr.port))
        log.info("the watcher of %s listens on http://%s:%d", settings.target_service, host, port)
        await stop.wait()
    finally:
        await runner.cleanup()


@click.command("watcher")
@config_option("agent")
@log_level_option
def watcher(config: Path | None, log_level: str | None) -> None:
    """Start, stop and restart the agent of this node on request."""
    from ai.backend.infra.settings import load_settings
    from ai.backend.infra.telemetry import log_as_configured

    async def work(stop: asyncio.Event) -> None:
        settings = load_settings(AgentSettings, name="agent", path=config, env_prefix="BACKEND_AGENT_")
        own_file = settings.logging.file.model_copy(update={"filename": "watcher.log"})
        logs = settings.logging.model_copy(update={"file": own_file})
        log_as_configured("watcher", logs, level=log_level)
        await serve(settings.watcher, stop)

    run_daemon(work)
