"""Runs the cases of `run` that need an event loop: several at once, or with files to upload."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncGenerator, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ai.backend.cli.framework.invoke import report_error
from ai.backend.cli.framework.output import Screen
from ai.backend.cli.framework.prompt import read_line
from ai.backend.cli.run.cases import Plan
from ai.backend.cli.run.runs import ERROR_SCREEN, INTERRUPTED, CaseRun, Outcome
from ai.backend.cli.session.progress import SessionNotStarted
from ai.backend.client.exceptions import BackendError

if TYPE_CHECKING:
    from ai.backend.client.func.session import AsyncComputeSession
    from ai.backend.client.session import AsyncSession


async def run_cases(api: AsyncSession, screen: Screen, plan: Plan) -> list[Outcome]:
    """Runs every case and returns the outcomes."""
    case_runs = [
        ParallelCaseRun(api, screen, plan, case, number=case_number) for case_number, case in enumerate(plan.cases, 1)
    ]
    running_limit = asyncio.Semaphore(plan.max_parallel)

    async def run_when_free(run: ParallelCaseRun) -> Outcome:
        async with running_limit:
            return await run.run()

    with _interrupting_on_signals(case_runs):
        return list(await asyncio.gather(*map(run_when_free, case_runs)))


@contextlib.contextmanager
def _interrupting_on_signals(runs: list[ParallelCaseRun]) -> Iterator[None]:
    """Lets the first Ctrl-C interrupt the users' code, and the second Ctrl-C end the command."""

    def interrupt_all() -> None:
        for run in runs:
            run.interrupt()

    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, interrupt_all)
    loop.add_signal_handler(signal.SIGTERM, interrupt_all)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)
        loop.remove_signal_handler(signal.SIGTERM)


class ParallelCaseRun(CaseRun):
    """Runs one of several cases as a task of the event loop, and receives its output on a stream."""

    _task: asyncio.Task[None] | None = None
    _interrupting: asyncio.Task[None] | None = None

    async def run(self) -> Outcome:
        outcome = self._outcome
        if self._was_interrupted():
            outcome.status, outcome.exit_code = "interrupted", INTERRUPTED
            return outcome
        self._task = asyncio.create_task(self._run_case())
        try:
            await self._task
        except (SessionNotStarted, BackendError) as error:
            self._on_error(error)
        except asyncio.CancelledError:
            if not self._was_interrupted():
                raise
            outcome.status, outcome.exit_code = "interrupted", INTERRUPTED
        finally:
            self._renderer.finish()
            await self._clean_up()
        self._print_outcome()
        return outcome

    def _was_interrupted(self) -> bool:
        return self._interrupts > 0

    def interrupt(self) -> None:
        """Interrupts the user's program at the first call, and ends the case at the second call."""
        self._interrupts += 1
        session = self._outcome.session
        if self._interrupts == 1 and self._is_executing and session is not None:
            self._screen.inform(f"{self._label}interrupting (once more to leave at once)")
            self._interrupting = asyncio.ensure_future(self._pass_interrupt(session))
        elif self._task is not None:
            self._task.cancel()

    async def _pass_interrupt(self, session: AsyncComputeSession) -> None:
        try:
            await session.interrupt()
        except BackendError as error:
            report_error(ERROR_SCREEN, error)

    async def _results(
        self, session: AsyncComputeSession, code: str, mode: str, opts: dict[str, object] | None
    ) -> AsyncGenerator[dict[str, Any]]:
        async with session.stream_execute(code, mode=mode, opts=opts) as stream:
            async for result in stream.results():
                yield result
                if result.get("status") == "waiting-input":
                    await stream.send_text(await self._read_input(result.get("options") or {}))

    async def _read_input(self, options: Mapping[str, Any]) -> str:
        return await read_line(is_password=bool(options.get("is_password")))
