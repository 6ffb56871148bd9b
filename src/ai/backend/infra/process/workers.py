"""Additional processes of one daemon on the same port (docs/decisions/0093, 0190)."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Sequence

from ai.backend.infra.retry import Backoff

log = logging.getLogger(__name__)
_AGAIN_S, _AGAIN_MAX_S = 1.0, 30.0
_END_S = 20.0


class Workers:
    """Starts worker processes, restarts those that die, and ends them.

    Each holds the other end of a pipe as its standard input: it ends when the first process does, however that does.

    Args:
        command: of the one of this number, which counts from 1.
        count: how many there are.
        again_s: pause before one is started again; it doubles up to half a minute while it ends at once.
    """

    def __init__(self, command: Callable[[int], Sequence[str]], count: int, *, again_s: float = _AGAIN_S) -> None:
        self._command = command
        self._count = count
        self._again_s = again_s
        self._keepers: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._keepers = [asyncio.create_task(self._keep(number)) for number in range(1, self._count + 1)]

    async def _keep(self, number: int) -> None:
        clock, backoff = asyncio.get_running_loop().time, Backoff(self._again_s, _AGAIN_MAX_S)
        while True:
            since = clock()
            try:
                process = await asyncio.create_subprocess_exec(*self._command(number), stdin=asyncio.subprocess.PIPE)
            except OSError as error:  # too many processes, or no memory
                log.error("process %d cannot be started: %s", number, error)
            else:
                try:
                    status = await process.wait()
                except asyncio.CancelledError:
                    await _end(process)
                    raise
                log.error("process %d has ended with %d; another one takes its place", number, status)
            if clock() - since > _AGAIN_MAX_S:
                backoff.reset()
            await backoff.wait()

    async def stop(self) -> None:
        """Ends all workers after their current requests. Safe without ``start`` and twice."""
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
    """Returns, in a worker, when the first process has ended or asks this one to end."""
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    await reader.read(1)
