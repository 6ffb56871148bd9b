"""Further processes of one proxy, which transfer files beside the first one."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Sequence

log = logging.getLogger(__name__)
_AGAIN_S = 1.0
_END_S = 20.0


class Workers:
    """Starts them, starts again who dies, and ends them.

    Each holds the other end of a pipe as its standard input: it ends when the first process does, however that does.

    Args:
        command: of one.
    """

    def __init__(self, command: Sequence[str], count: int) -> None:
        self._command = command
        self._count = count
        self._keepers: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._keepers = [asyncio.create_task(self._keep()) for _ in range(self._count)]

    async def _keep(self) -> None:
        while True:
            try:
                process = await asyncio.create_subprocess_exec(*self._command, stdin=asyncio.subprocess.PIPE)
            except OSError as error:  # too many processes, or no memory
                log.error("a process for transfers cannot be started: %s", error)
                await asyncio.sleep(_AGAIN_S)
                continue
            try:
                status = await process.wait()
            except asyncio.CancelledError:
                await _end(process)
                raise
            log.error("a process for transfers has ended with %d; another one takes its place", status)
            await asyncio.sleep(_AGAIN_S)

    async def stop(self) -> None:
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.stdin is not None:
        process.stdin.close()
    try:
        await asyncio.wait_for(process.wait(), _END_S)
    except TimeoutError:
        process.kill()
        await process.wait()


async def first_has_ended() -> None:
    """In a worker: returns when the first process is gone, or wants this one to end."""
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    await reader.read(1)
