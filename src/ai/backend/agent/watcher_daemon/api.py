"""Starts, stops and restarts the agent when it is asked to (spec 03-02): ``backend.ai ag watcher``.

Requests carry the token of the settings. The agent's sessions outlive what is done to it.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeVar

from aiohttp import web

from ai.backend.agent.config.published import WatcherSettings
from ai.backend.agent.config.settings import AgentSettings
from ai.backend.agent.directory.directory import DataDirectory
from ai.backend.agent.runtimes import end_workloads, load_runtime
from ai.backend.common.errors import BackendError, Conflict, Forbidden, InvalidInput, NotSupported, Unavailable
from ai.backend.infra.http.errors import problem_response
from ai.backend.infra.http.server import make_runner, serve_on, tls_of

log = logging.getLogger(__name__)
TOKEN_HEADER = "X-BackendAI-Watcher-Token"
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
ACTIONS = ("start", "stop", "restart")
_ACTION_S = 60.0
T = TypeVar("T")


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
        self._under_way: asyncio.Task[Any] | None = None

    def application(self) -> web.Application:
        app = web.Application(client_max_size=4096)
        app.on_shutdown.append(self.finish)
        app.router.add_get("/", self._guarded(self._status))
        app.router.add_post("/agent/{action}", self._guarded(self._act))
        app.router.add_post("/soft-reset", self._guarded(self._reset))
        return app

    def _guarded(self, work: Handler) -> Handler:
        async def handle(request: web.Request) -> web.StreamResponse:
            try:
                token = request.headers.get(TOKEN_HEADER, "")
                # aiohttp decodes bytes that are no UTF-8 to surrogates
                if not hmac.compare_digest(token.encode(errors="surrogateescape"), self._token.encode()):
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
        await self._alone(self._do(action))
        return web.json_response({"result": "ok"})

    async def _reset(self, _: web.Request) -> web.Response:
        if self._end_sessions is None:
            raise NotSupported("There are no soft resets here: watcher.soft-reset-available is false.")
        ended = await self._alone(self._do_reset(self._end_sessions))
        return web.json_response({"result": "ok", "ended": ended})

    async def _do_reset(self, end_sessions: Callable[[], Awaitable[int]]) -> int:
        try:
            await self._do("stop")
            ended = await end_sessions()
        finally:
            await self._do("start")
        log.info("%d sessions were ended by a soft reset", ended)
        return ended

    async def _alone(self, work: Coroutine[Any, Any, T]) -> T:
        """Do it to its end, whether or not the caller waits for it. Raises Conflict: something else is under way."""
        if self._under_way is not None and not self._under_way.done():
            work.close()
            raise Conflict("Something is being done to the agent already.")
        task = self._under_way = asyncio.create_task(work)
        task.add_done_callback(_tell)
        return await asyncio.shield(task)

    async def finish(self, _: web.Application | None = None) -> None:
        """Wait for what is under way."""
        if self._under_way is not None:
            await asyncio.wait([self._under_way])

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
            raise Unavailable(f"{command[0]} takes longer than {_ACTION_S:.0f} s") from None
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        return process.returncode or 0, out.decode(errors="replace")


def _tell(task: asyncio.Task[Any]) -> None:
    """Also where nobody waits for the answer any more."""
    if not task.cancelled() and (error := task.exception()) is not None:
        log.warning("what was asked of the agent failed: %s", error)


async def serve(settings: AgentSettings, stop: asyncio.Event) -> None:
    """Listen until ``stop`` is set.

    Raises:
        InvalidInput: there is no token, or the certificate cannot be used. OSError: the address cannot be bound.
    """
    own = settings.watcher
    tls = tls_of(own.ssl_cert, own.ssl_privkey) if own.ssl_enabled and own.ssl_cert and own.ssl_privkey else None

    async def end_sessions() -> int:
        directory = DataDirectory(settings.data_dir)
        directory.open()
        try:
            return await end_workloads(load_runtime(settings), grace_s=settings.kernel_lifecycles.stop_grace)
        finally:
            directory.close()

    runner = make_runner(Watcher(own, end_sessions).application())
    try:
        host, port = await serve_on(runner, (own.service_addr.host, own.service_addr.port), tls=tls)
        scheme = "https" if tls else "http"
        log.info("the watcher of %s listens on %s://%s:%d", own.target_service, scheme, host, port)
        await stop.wait()
    finally:
        await runner.cleanup()
