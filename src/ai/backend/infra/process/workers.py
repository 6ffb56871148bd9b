"""Keeps processes running: further processes of one daemon on its port (decisions 0093, 0190), or other daemons."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Mapping, Sequence
from pathlib import Path

from ai.backend.infra.loop import cancel_all
from ai.backend.infra.retry import Backoff

log = logging.getLogger(__name__)
_MAX_DELAY_S = 30.0
_END_TIMEOUT_S = 20.0


class ProcessSupervisor:
    """Starts processes by name, restarts processes that end, and ends all processes in reverse order.

    Without ``logs`` the processes are workers: each reads a pipe as its standard input, and ends when that is closed or
    this process dies. With ``logs`` they are daemons that write to files there, in sessions of their own, so that a
    Ctrl-C in the terminal does not reach them. The delay before a restart doubles while a process ends early.
    """

    def __init__(
        self, commands: Mapping[str, Sequence[str]], *, logs: Path | None = None, first_delay_s: float = 1.0
    ) -> None:
        self._commands = dict(commands)
        self._logs = logs
        self._first_delay_s = first_delay_s
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._processes: dict[str, Process] = {}

    def start(self) -> None:
        for name in self._commands:
            self._tasks[name] = asyncio.create_task(self._keep_running(name), name=f"supervise {name}")

    def hang_up(self) -> None:
        """Sends SIGHUP to all processes that run."""
        for process in self._processes.values():
            if process.returncode is None:
                process.send_signal(signal.SIGHUP)

    async def stop(self) -> None:
        """Ends workers after their current requests, and daemons by SIGTERM. Safe without ``start`` and twice."""
        tasks = list(reversed(self._tasks.values()))
        for task_group in [tasks] if self._logs is None else [[task] for task in tasks]:
            await cancel_all(*task_group)

    async def _keep_running(self, name: str) -> None:
        clock_s, backoff = asyncio.get_running_loop().time, Backoff(self._first_delay_s, _MAX_DELAY_S)
        while True:
            started_s = clock_s()
            try:
                process = await self._start(name)
            except OSError as error:  # too many processes, or no memory
                log.error("the process %s cannot be started: %s", name, error)
            else:
                self._processes[name] = process
                try:
                    exit_status = await process.wait()
                except asyncio.CancelledError:
                    await _end_process(process)
                    raise
                log.error("%s (process %d) has ended with %d and is restarted", name, process.pid, exit_status)
            if clock_s() - started_s > _MAX_DELAY_S:
                backoff.reset()
            await backoff.wait()

    async def _start(self, name: str) -> Process:
        command = self._commands[name]
        if self._logs is None:
            return await asyncio.create_subprocess_exec(*command, stdin=PIPE)
        environ = {**os.environ, "BACKENDAI_SUPERVISOR": str(os.getpid())}
        with (self._logs / f"{name}.out").open("ab") as output_file:
            return await asyncio.create_subprocess_exec(
                *command, stdin=DEVNULL, stdout=output_file, stderr=output_file, start_new_session=True, env=environ
            )


async def _end_process(process: Process) -> None:
    if process.stdin is not None:
        process.stdin.close()
    else:
        process.terminate()
    try:
        await asyncio.wait_for(process.wait(), _END_TIMEOUT_S)
    except TimeoutError:
        process.kill()
        await process.wait()


async def wait_for_first_process() -> None:
    """Waits, in a worker process, until the first process of the daemon has ended or has closed its pipe."""
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    await reader.read(1)
