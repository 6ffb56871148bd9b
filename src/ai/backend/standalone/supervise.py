"""Starts daemons in processes of their own, and restarts them when they die."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from ai.backend.infra.retry import Backoff

log = logging.getLogger(__name__)

_FIRST_BACKOFF_S = 0.2
_MAX_BACKOFF_S = 10.0
_HEALTHY_AFTER_S = 10.0
_STOP_GRACE_S = 15.0


class Supervisor:
    """Keeps one process per daemon alive.

    A daemon that dies is started again after a pause that grows while it keeps dying early. Daemons get a session of
    their own, so a Ctrl-C in the terminal reaches only the supervisor, which stops them in reverse order.
    """

    def __init__(self, commands: Mapping[str, Sequence[str]], *, logs: Path) -> None:
        self._commands = dict(commands)
        self._logs = logs
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._processes: dict[str, asyncio.subprocess.Process] = {}

    @property
    def pids(self) -> Mapping[str, int]:
        """The process id of each running daemon."""
        return {name: p.pid for name, p in self._processes.items() if p.returncode is None}

    def start(self) -> None:
        for name in self._commands:
            self._tasks[name] = asyncio.create_task(self._keep(name), name=f"supervise {name}")

    async def stop(self) -> None:
        """Sends SIGTERM to each, the last started first, and SIGKILL after the grace."""
        for name in reversed(self._commands):
            if (task := self._tasks.pop(name, None)) is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
            process = self._processes.pop(name, None)
            if process is not None and process.returncode is None:
                await _end(process)

    async def _keep(self, name: str) -> None:
        loop = asyncio.get_running_loop()
        backoff = Backoff(_FIRST_BACKOFF_S, _MAX_BACKOFF_S)
        while True:
            began = loop.time()
            with (self._logs / f"{name}.out").open("ab") as output:
                process = await asyncio.create_subprocess_exec(
                    *self._commands[name],
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                    env={**os.environ, "BACKENDAI_SUPERVISOR": str(os.getpid())},
                )
            self._processes[name] = process
            code = await process.wait()
            if loop.time() - began > _HEALTHY_AFTER_S:
                backoff.reset()
            delay_s = backoff.next_s()
            log.warning("%s (process %d) ended with %s; starting it again in %.1f s", name, process.pid, code, delay_s)
            await asyncio.sleep(delay_s)


async def _end(process: asyncio.subprocess.Process) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        async with asyncio.timeout(_STOP_GRACE_S):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()


def daemon_command(data_dir: Path, daemon: str, *arguments: str) -> list[str]:
    """Returns the command that starts a daemon of the embedded cluster by itself."""
    return [sys.executable, "-m", "ai.backend.standalone.daemon", str(data_dir), daemon, *arguments]
