"""Runs the cases of `run`: one session for each, all at once, from its creation to its removal."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ai.backend.cli.framework.invoke import report
from ai.backend.cli.framework.output import MutedScreen, OutputMode, Screen
from ai.backend.cli.framework.prompt import read_line
from ai.backend.cli.run.cases import Case, Plan
from ai.backend.cli.run.renderer import Renderer
from ai.backend.cli.session.files import upload_files
from ai.backend.cli.session.options import random_name
from ai.backend.cli.session.progress import NotStarted, create_running, describe_stats, print_start
from ai.backend.client.early_request import PendingReply
from ai.backend.client.exceptions import BackendAPIError, BackendError
from ai.backend.client.func.session import AsyncComputeSession
from ai.backend.client.session import AsyncSession
from ai.backend.client.streams import ExecuteStream

PLATFORM_FAILURE = 125
TIMED_OUT = 124
INTERRUPTED = 130
_ERROR_SCREEN = Screen(OutputMode.CONSOLE)


@dataclass(slots=True)
class Outcome:
    """The result of a case; ``exit_code`` is that of the command if it is the only case."""

    case: Case
    session: AsyncComputeSession | None = None
    status: str = "failed"
    exit_code: int = PLATFORM_FAILURE
    console: list[list[Any]] = field(default_factory=list)
    files: list[dict[str, Any]] = field(default_factory=list)
    error: str | None = None
    stats: dict[str, Any] | None = None

    def document(self) -> dict[str, Any]:
        document = None
        if self.session is not None and self.session.id is not None:
            document = {"id": str(self.session.id), "name": self.session.name, "created": self.session.created}
        return {
            "session": document,
            "values": dict(self.case.values),
            "status": self.status,
            "exit_code": self.exit_code,
            "console": self.console,
            "files": self.files,
            "error": self.error,
            **({"stats": self.stats} if self.stats is not None else {}),
        }


async def run_plan(api: AsyncSession, screen: Screen, plan: Plan, early: PendingReply | None = None) -> int:
    """Runs every case; the exit code is that of the first case that failed, or zero."""
    progress_screen = MutedScreen(screen.mode) if plan.quiet else screen
    runs = [CaseRun(api, progress_screen, plan, case, number=number) for number, case in enumerate(plan.cases, 1)]
    if early is not None:
        runs[0].begin_with(early)
    running_cases = asyncio.Semaphore(plan.max_parallel)

    async def run_limited(run: CaseRun) -> Outcome:
        async with running_cases:
            return await run.run()

    with _interruptible(runs):
        outcomes = await asyncio.gather(*map(run_limited, runs))
    failed_outcomes = [outcome for outcome in outcomes if outcome.exit_code]
    if screen.is_json:
        documents = [outcome.document() for outcome in outcomes]
        screen.json(documents[0] if len(documents) == 1 else documents)
    elif len(outcomes) > 1:
        progress_screen.inform(f"{len(outcomes) - len(failed_outcomes)} of {len(outcomes)} cases succeeded")
    return failed_outcomes[0].exit_code if failed_outcomes else 0


@contextlib.contextmanager
def _interruptible(runs: list[CaseRun]) -> Iterator[None]:
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


class CaseRun:
    """Runs one case, from the creation of its session to its end."""

    def __init__(self, api: AsyncSession, screen: Screen, plan: Plan, case: Case, *, number: int = 1) -> None:
        self._api = api
        self._screen = screen
        self._plan = plan
        self._case = case
        self._outcome = Outcome(case)
        case_count = len(plan.cases)
        self._is_one_of_many = case_count > 1
        self._label = f"[{number}/{case_count} {case.title}] " if case_count > 1 else ""
        self._renderer = Renderer(prefix=f"[{case.title or number}] " if case_count > 1 else "")
        base_name = plan.name or random_name()
        self._name = f"{base_name}-{number}" if plan.name and case_count > 1 else base_name
        self._early: PendingReply | None = None
        self._interrupts = 0
        self._is_executing = False
        self._task: asyncio.Task[None] | None = None
        self._interrupting: asyncio.Task[None] | None = None

    def begin_with(self, early: PendingReply) -> None:
        """Uses the session of an early request for this case."""
        self._early = early
        self._name = early.call.json["name"]

    async def run(self) -> Outcome:
        """Runs the case and returns its outcome, which also reports failures of the platform: none is raised."""
        outcome = self._outcome
        if self._was_interrupted():
            outcome.status, outcome.exit_code = "interrupted", INTERRUPTED
            return outcome
        self._task = asyncio.create_task(self._work())
        try:
            await self._task
        except NotStarted as error:
            outcome.status = "timeout" if error.is_timeout else "failed"
            outcome.exit_code = TIMED_OUT if error.is_timeout else PLATFORM_FAILURE
            self._fail(str(error))
        except BackendError as error:
            report(_ERROR_SCREEN, error)
            outcome.error = str(error)
        except asyncio.CancelledError:
            if not self._was_interrupted():
                raise
            outcome.status, outcome.exit_code = "interrupted", INTERRUPTED
        finally:
            self._renderer.finish()
            await self._clean_up()
        self._print_end()
        return outcome

    def _was_interrupted(self) -> bool:
        return self._interrupts > 0

    def interrupt(self) -> None:
        """Interrupts the program of this case; the second call ends the case."""
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
            report(_ERROR_SCREEN, error)

    def _fail(self, message: str) -> None:
        self._outcome.error = message
        _ERROR_SCREEN.error(f"{self._label}{message}")

    async def _work(self) -> None:
        plan, outcome = self._plan, self._outcome
        creation = plan.creation | {"envs": self._case.env, "name": self._name}
        if self._is_one_of_many:
            self._screen.inform(f"{self._label}creating session {self._name}")
        if plan.enqueue_only:
            session = await self._api.ComputeSession.get_or_create(plan.image, **creation | {"enqueue_only": True})
            outcome.session, outcome.status, outcome.exit_code = session, "enqueued", 0
            self._screen.say(f"{self._label}session {session.name} ({session.id}) is queued; nothing was run")
            return
        outcome.session = session = await create_running(
            self._api, self._screen, plan.image, creation, max_wait=plan.max_wait, label=self._label, early=self._early
        )
        await print_start(session, self._screen, label=self._label)
        if plan.files:
            await upload_files(session, plan.files, plan.basedir)
            self._screen.inform(f"{self._label}  uploaded    {', '.join(plan.file_names)}")
        await self._execute(session)

    async def _execute(self, session: AsyncComputeSession) -> None:
        plan = self._plan
        mode = "batch" if plan.code is None else "query"
        opts = plan.batch_options(self._case) if plan.code is None else None
        async with session.stream_execute(plan.code or "", mode=mode, opts=opts) as stream:
            self._is_executing = True
            async for result in stream.results():
                await self._on_result(stream, result)

    async def _on_result(self, stream: ExecuteStream, result: Mapping[str, Any]) -> None:
        outcome, status = self._outcome, result.get("status")
        if isinstance(error_document := result.get("error"), Mapping):
            raise BackendAPIError(int(error_document.get("status") or 500), "", error_document)
        console = list(result.get("console") or [])
        outcome.console += console
        outcome.files += list(result.get("files") or [])
        if not self._screen.is_json:
            self._renderer.show(console)
        if status == "waiting-input":
            sys.stdout.flush()
            options = result.get("options") or {}
            await stream.send_text(await read_line(is_password=bool(options.get("is_password"))))
        elif status == "build-finished" and result.get("exitCode"):
            self._screen.inform(f"{self._label}the build failed with exit code {result['exitCode']}")
        elif status in {"finished", "exec-timeout"}:
            self._is_executing = False
            self._finish(str(status), result)

    def _finish(self, status: str, result: Mapping[str, Any]) -> None:
        outcome = self._outcome
        outcome.status = status
        exit_code = int(result.get("exitCode") or 0)
        outcome.exit_code = exit_code % 256 if exit_code >= 0 else PLATFORM_FAILURE
        options = result.get("options") or {}
        if outcome.exit_code == 0 and options.get("raised"):
            outcome.exit_code = 1
        for kind, count in (options.get("dropped") or {}).items():
            self._renderer.finish()
            pieces = f"characters of {kind}" if kind in {"stdout", "stderr"} else f"pieces of {kind}"
            self._screen.inform(f"\n{self._label}[{count} {pieces} were dropped: more than one call may print]")
        if status == "exec-timeout":
            outcome.exit_code = TIMED_OUT
            self._fail("the platform ended the run because it took too long")
        if self._interrupts:
            outcome.status, outcome.exit_code = "interrupted", INTERRUPTED

    def _print_end(self) -> None:
        outcome = self._outcome
        for file in outcome.files:
            self._screen.inform(f"{self._label}  output file {file.get('name')}")
        if self._is_one_of_many:
            self._screen.inform(f"{self._label}{outcome.status}, exit code {outcome.exit_code}")
        if outcome.stats is not None:
            self._screen.inform(f"{self._label}  used        {describe_stats(outcome.stats)}")

    async def _clean_up(self) -> None:
        """Ends the session with --rm, also one whose creation was interrupted."""
        if not self._plan.remove or self._plan.enqueue_only:
            return
        session = self._outcome.session or self._api.ComputeSession(self._name, self._plan.creation["owner_access_key"])
        try:
            destroy_reply = await session.destroy()
        except BackendError as error:
            is_refused = isinstance(error, BackendAPIError) and error.status != 404
            if is_refused or self._outcome.session is not None:
                report(_ERROR_SCREEN, error)
            return
        if self._plan.stats:
            self._outcome.stats = dict(destroy_reply.get("stats") or {})
