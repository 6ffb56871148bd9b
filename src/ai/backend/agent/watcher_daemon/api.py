"""Starts, stops and restarts the agent over HTTP, with a token (spec 03-02): ``backend.ai ag watcher``."""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeVar

from aiohttp import web

from ai.backend.agent.config.settings import AgentSettings, WatcherSettings
from ai.backend.agent.directory.directory import DataDirectory
from ai.backend.agent.runtimes import end_workloads, load_runtime
from ai.backend.common.errors import BackendError, Conflict, Forbidden, InvalidInput, NotSupported, Unavailable
from ai.backend.infra.http.errors import problem_response
from ai.backend.infra.http.server import make_runner, serve_on, tls_of

log = logging.getLogger(__name__)
TOKEN_HEADER = "X-BackendAI-Watcher-Token"
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
ACTIONS = ("start", "stop", "restart")
_ACTION_TIMEOUT_S = 60.0
T = TypeVar("T")


class Watcher:
    """Serves ``GET /`` (the agent's status), ``POST /agent/{action}``, and ``POST /soft-reset`` if it is available.

    A soft reset ends all sessions of the node by ``end_sessions``, which returns their number, while the agent is
    stopped.
    """

    def __init__(self, settings: WatcherSettings, end_sessions: Callable[[], Awaitable[int]] | None = None) -> None:
        if not settings.token:
            raise InvalidInput("watcher.token is needed: without one nobody could be let in", data={"token": "missing"})
        self._settings = settings
        self._token = settings.token
        self._end_sessions = end_sessions if settings.soft_reset_available else None
        self._running: asyncio.Task[Any] | None = None

    def application(self) -> web.Application:
        app = web.Application(client_max_size=4096)
        app.on_shutdown.append(self.finish)
        app.router.add_get("/", self._with_token_check(self._handle_status))
        app.router.add_post("/agent/{action}", self._with_token_check(self._handle_action))
        app.router.add_post("/soft-reset", self._with_token_check(self._handle_reset))
        return app

    def _with_token_check(self, handler: Handler) -> Handler:
        async def handle(request: web.Request) -> web.StreamResponse:
            try:
                token = request.headers.get(TOKEN_HEADER, "")
                # aiohttp decodes bytes that are no UTF-8 to surrogates
                if not hmac.compare_digest(token.encode(errors="surrogateescape"), self._token.encode()):
                    raise Forbidden("The watcher does not know you.")
                answer: web.StreamResponse = await handler(request)
            except BackendError as e:
                return problem_response(e, request_id=request.headers.get("X-Request-ID", "")[:64])
            return answer

        return handle

    async def _handle_status(self, _: web.Request) -> web.Response:
        exit_code, output = await self._run_command("is-active")
        return web.json_response({"agent-status": output.strip()[:64] or ("active" if exit_code == 0 else "unknown")})

    async def _handle_action(self, request: web.Request) -> web.Response:
        action = request.match_info["action"]
        if action not in ACTIONS:
            raise InvalidInput(f"no such action; there are {', '.join(ACTIONS)}", data={"action": "unknown"})
        await self._run_alone(self._do_action(action))
        return web.json_response({"result": "ok"})

    async def _handle_reset(self, _: web.Request) -> web.Response:
        if self._end_sessions is None:
            raise NotSupported("There are no soft resets here: watcher.soft-reset-available is false.")
        ended_count = await self._run_alone(self._do_reset(self._end_sessions))
        return web.json_response({"result": "ok", "ended": ended_count})

    async def _do_reset(self, end_sessions: Callable[[], Awaitable[int]]) -> int:
        try:
            await self._do_action("stop")
            ended_count = await end_sessions()
        finally:
            await self._do_action("start")
        log.info("%d sessions were ended by a soft reset", ended_count)
        return ended_count

    async def _run_alone(self, action: Coroutine[Any, Any, T]) -> T:
        """Runs an action on the agent to its end, even if the HTTP client disconnects.

        Raises Conflict if another action is under way.
        """
        if self._running is not None and not self._running.done():
            action.close()
            raise Conflict("Something is being done to the agent already.")
        task = self._running = asyncio.create_task(action)
        task.add_done_callback(_log_failure)
        return await asyncio.shield(task)

    async def finish(self, _: web.Application | None = None) -> None:
        """Waits for the end of the action under way."""
        if self._running is not None:
            await asyncio.wait([self._running])

    async def _do_action(self, action: str) -> None:
        exit_code, output = await self._run_command(action)
        if exit_code != 0:
            raise Unavailable(f"The agent could not {action}: {output.strip()[-500:]}")
        log.info("the agent was asked to %s", action)

    async def _run_command(self, action: str) -> tuple[int, str]:
        systemd_unit = self._settings.target_service
        configured_command = self._settings.command
        command: Sequence[str] = (
            [*configured_command, action] if configured_command else ["systemctl", action, systemd_unit]
        )
        try:
            process = await asyncio.create_subprocess_exec(
                *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
            )
        except OSError as e:
            raise Unavailable(f"{command[0]} cannot be run: {e.strerror}") from None
        try:
            async with asyncio.timeout(_ACTION_TIMEOUT_S):
                output, _ = await process.communicate()
        except TimeoutError:
            raise Unavailable(f"{command[0]} takes longer than {_ACTION_TIMEOUT_S:.0f} s") from None
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        return process.returncode or 0, output.decode(errors="replace")


def _log_failure(task: asyncio.Task[Any]) -> None:
    """Logs the failure of an action, since the caller may have gone away."""
    if not task.cancelled() and (error := task.exception()) is not None:
        log.warning("what was asked of the agent failed: %s", error)


async def serve(settings: AgentSettings, stop: asyncio.Event) -> None:
    """Runs the watcher until ``stop`` is set. Raises OSError, InvalidInput without a token or usable certificate."""
    watcher_settings = settings.watcher
    tls_context = (
        tls_of(watcher_settings.ssl_cert, watcher_settings.ssl_privkey)
        if watcher_settings.ssl_enabled and watcher_settings.ssl_cert and watcher_settings.ssl_privkey
        else None
    )

    async def end_sessions() -> int:
        directory = DataDirectory(settings.data_dir)
        directory.open()
        try:
            return await end_workloads(load_runtime(settings), grace_s=settings.kernel_lifecycles.stop_grace)
        finally:
            directory.close()

    runner = make_runner(Watcher(watcher_settings, end_sessions).application())
    try:
        host, port = await serve_on(
            runner, (watcher_settings.service_addr.host, watcher_settings.service_addr.port), tls=tls_context
        )
        scheme = "https" if tls_context else "http"
        log.info("the watcher of %s listens on %s://%s:%d", watcher_settings.target_service, scheme, host, port)
        await stop.wait()
    finally:
        await runner.cleanup()
