"""Starts, stops and restarts the agent when it is asked to (spec 03-02): ``backend.ai ag watcher``.

Requests carry the token of the settings. The agent's sessions outlive what is done to it.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

from aiohttp import web

from ai.backend.agent.config.published import WatcherSettings
from ai.backend.common.errors import BackendError, Conflict, Forbidden, InvalidInput, NotSupported, Unavailable
from ai.backend.infra.http.errors import problem_response

log = logging.getLogger(__name__)
TOKEN_HEADER = "X-BackendAI-Watcher-Token"
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
ACTIONS = ("start", "stop", "restart")
_ACTION_S = 60.0


class Watcher:
    """The HTTP face of the unit of the agent: ``GET /`` tells its state, ``POST /agent/{action}`` does something.

    ``POST /soft-reset`` ends all sessions of the node between a stop and a start, where that is available.

    Args:
        end_sessions: while the agent is stopped; tells how many there were.
    """

    def __init__(self, settings: WatcherSettings, end_sessions: Callable[[], Awaitable[int]] | None = None) -> None:
        if not settings.token:
            raise InvalidInput("watcher.token is needed: without one nobody could be let in", data={"token": "missing"})
        self._settings = settings
        self._token = settings.token
        self._end_sessions = end_sessions if settings.soft_reset_available else None
        self._busy = asyncio.Lock()

    def application(self) -> web.Application:
        app = web.Application(client_max_size=4096)
        app.router.add_get("/", self._guarded(self._status))
        app.router.add_post("/agent/{action}", self._guarded(self._act))
        app.router.add_post("/soft-reset", self._guarded(self._reset))
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
        async with self._alone():
            await self._do(action)
        return web.json_response({"result": "ok"})

    async def _reset(self, _: web.Request) -> web.Response:
        if self._end_sessions is None:
            raise NotSupported("There are no soft resets here: watcher.soft-reset-available is false.")
        async with self._alone():
            await self._do("stop")
            try:
                ended = await self._end_sessions()
            finally:
                await self._do("start")
        log.info("%d sessions were ended by a soft reset", ended)
        return web.json_response({"result": "ok", "ended": ended})

    @asynccontextmanager
    async def _alone(self) -> AsyncIterator[None]:
        if self._busy.locked():
            raise Conflict("Something is being done to the agent already.")
        async with self._busy:
            yield

    async def _do(self, action: str) -> None:
        code, said = await self._run(action)
        if code != 0:
            raise Unavailable(f"The agent could not {action}: {said.strip()[-500:]}")
        log.info("the agent was asked to %s", action)

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
