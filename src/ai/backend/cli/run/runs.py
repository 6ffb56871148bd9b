"""Runs one case of `run`, from the creation of its session to its removal, without an event loop."""

from __future__ import annotations

import signal
import sys
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ai.backend.cli.framework.invoke import report_error, run_in_event_loop
from ai.backend.cli.framework.output import MutedScreen, OutputMode, Screen
from ai.backend.cli.framework.prompt import read_line
from ai.backend.cli.framework.values import format_cell
from ai.backend.cli.run.cases import Case, Plan
from ai.backend.cli.run.renderer import Renderer
from ai.backend.cli.session.options import random_name
from ai.backend.cli.session.progress import SessionNotStarted, create_running, describe_stats, print_start
from ai.backend.client.exceptions import BackendAPIError, BackendError

if TYPE_CHECKING:
    from ai.backend.client.func.session import AsyncComputeSession
    from ai.backend.client.session import AsyncSession

PLATFORM_FAILURE = 125
TIMED_OUT = 124
INTERRUPTED = 130
ERROR_SCREEN = Screen(OutputMode.CONSOLE)


@dataclass(slots=True)
class Outcome:
    """Holds the result of one case of `run`: status, exit code, console output, files and error.

    ``exit_code`` is that of the command if it is the only case.
    """

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


async def run_plan(api: AsyncSession, screen: Screen, plan: Plan) -> int:
    """Runs every case; the exit code is that of the first case that failed, or zero."""
    progress_screen = MutedScreen(screen.mode) if plan.quiet else screen
    if len(plan.cases) == 1 and not plan.files:
        outcomes = [await CaseRun(api, progress_screen, plan, plan.cases[0]).run()]
    else:
        from ai.backend.cli.run.parallel import run_cases

        outcomes = await run_in_event_loop(api, lambda api: run_cases(api, progress_screen, plan))
    failed_outcomes = [outcome for outcome in outcomes if outcome.exit_code]
    if screen.is_json:
        documents = [outcome.document() for outcome in outcomes]
        screen.print_json(documents[0] if len(documents) == 1 else documents)
    elif len(outcomes) > 1:
        progress_screen.inform(f"{len(outcomes) - len(failed_outcomes)} of {len(outcomes)} cases succeeded")
    if not plan.remove and not plan.enqueue_only:
        _print_remaining_sessions(progress_screen, outcomes)
    return failed_outcomes[0].exit_code if failed_outcomes else 0


def _print_remaining_sessions(screen: Screen, outcomes: Sequence[Outcome]) -> None:
    """Prints the command that ends the sessions which this command created."""
    names = [format_cell(outcome.session.name) for outcome in outcomes if outcome.session and outcome.session.created]
    if names:
        sessions_text = f"session {names[0]} stays" if len(names) == 1 else f"{len(names)} sessions stay"
        pronoun = "it" if len(names) == 1 else "them"
        screen.inform(f"{sessions_text}; `backend.ai rm {' '.join(names)}` ends {pronoun}, and --rm does so at once")


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
        self._interrupts = 0
        self._is_executing = False

    async def run(self) -> Outcome:
        """Runs the case and returns its outcome. Failures of the platform are in the outcome and are not raised.

        The first signal interrupts the user's code, the second one ends the command.
        """
        for signal_number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(signal_number, self._on_signal)
        try:
            await self._run_case()
        except KeyboardInterrupt:
            self._outcome.status, self._outcome.exit_code = "interrupted", INTERRUPTED
        except (SessionNotStarted, BackendError) as error:
            self._on_error(error)
        finally:
            self._is_executing = False
            self._renderer.finish()
            await self._clean_up()
        self._print_outcome()
        return self._outcome

    def _on_signal(self, *_: object) -> None:
        self._interrupts += 1
        session = self._outcome.session
        if self._interrupts > 1 or not self._is_executing or session is None:
            raise KeyboardInterrupt
        self._screen.inform(f"{self._label}interrupting (once more to leave at once)")
        from ai.backend.client.func.session import AsyncComputeSession
        from ai.backend.client.plain_transport import PlainTransport, run_plain

        # The waiting request goes on after this handler, whose own request therefore has its own connection.
        transport = PlainTransport(self._api.config)
        try:
            run_plain(AsyncComputeSession(transport, str(session.id), session.owner_access_key).interrupt())
        except BackendError as error:
            report_error(ERROR_SCREEN, error)
        finally:
            run_plain(transport.close())

    def _on_error(self, error: SessionNotStarted | BackendError) -> None:
        outcome = self._outcome
        if isinstance(error, SessionNotStarted):
            outcome.status = "timeout" if error.is_timeout else "failed"
            outcome.exit_code = TIMED_OUT if error.is_timeout else PLATFORM_FAILURE
            self._print_failure(str(error))
        else:
            report_error(ERROR_SCREEN, error)
            outcome.error = str(error)

    def _print_failure(self, message: str) -> None:
        self._outcome.error = message
        ERROR_SCREEN.error(f"{self._label}{message}")

    async def _run_case(self) -> None:
        plan, outcome = self._plan, self._outcome
        create_options = plan.creation | {"envs": self._case.env, "name": self._name}
        if self._is_one_of_many:
            self._screen.inform(f"{self._label}creating session {self._name}")
        if plan.enqueue_only:
            session = await self._api.ComputeSession.get_or_create(
                plan.image, **create_options | {"enqueue_only": True}
            )
            outcome.session, outcome.status, outcome.exit_code = session, "enqueued", 0
            self._screen.print_line(f"{self._label}session {session.name} ({session.id}) is queued; nothing was run")
            return
        outcome.session = session = await create_running(
            self._api, self._screen, plan.image, create_options, max_wait=plan.max_wait, label=self._label
        )
        await print_start(session, self._screen, label=self._label)
        if plan.files:
            from ai.backend.cli.session.files import upload_files

            await upload_files(session, plan.files, plan.basedir)
            self._screen.inform(f"{self._label}  uploaded    {', '.join(plan.file_names)}")
        await self._execute(session)

    async def _execute(self, session: AsyncComputeSession) -> None:
        plan = self._plan
        mode = "batch" if plan.code is None else "query"
        opts = plan.batch_options(self._case) if plan.code is None else None
        self._is_executing = True
        async with aclosing(self._results(session, plan.code or "", mode, opts)) as results:
            async for result in results:
                self._on_result(result)

    def _results(
        self, session: AsyncComputeSession, code: str, mode: str, opts: dict[str, object] | None
    ) -> AsyncGenerator[dict[str, Any]]:
        return session.follow_run(code, mode=mode, opts=opts, answer=self._read_input)

    async def _read_input(self, options: Mapping[str, Any]) -> str:
        sys.stdout.flush()
        return await read_line(is_password=bool(options.get("is_password")), has_loop=False)

    def _on_result(self, result: Mapping[str, Any]) -> None:
        outcome, status = self._outcome, result.get("status")
        if isinstance(error_document := result.get("error"), Mapping):
            raise BackendAPIError(int(error_document.get("status") or 500), "", error_document)
        console_items = list(result.get("console") or [])
        outcome.console += console_items
        outcome.files += list(result.get("files") or [])
        if not self._screen.is_json:
            self._renderer.show(console_items)
        if status == "build-finished" and result.get("exitCode"):
            self._screen.inform(f"{self._label}the build failed with exit code {result['exitCode']}")
        elif status in {"finished", "exec-timeout"}:
            self._is_executing = False
            self._finish(str(status), result)

    def _finish(self, status: str, result: Mapping[str, Any]) -> None:
        outcome = self._outcome
        outcome.status = status
        exit_code = int(result.get("exitCode") or 0)
        outcome.exit_code = exit_code % 256 if exit_code >= 0 else PLATFORM_FAILURE
        result_options = result.get("options") or {}
        if outcome.exit_code == 0 and result_options.get("raised"):
            outcome.exit_code = 1
        for item_kind, count in (result_options.get("dropped") or {}).items():
            self._renderer.finish()
            item_text = f"characters of {item_kind}" if item_kind in {"stdout", "stderr"} else f"pieces of {item_kind}"
            self._screen.inform(f"\n{self._label}[{count} {item_text} were dropped: more than one call may print]")
        if status == "exec-timeout":
            outcome.exit_code = TIMED_OUT
            self._print_failure("the platform ended the run because it took too long")
        if self._interrupts:
            outcome.status, outcome.exit_code = "interrupted", INTERRUPTED

    def _print_outcome(self) -> None:
        outcome = self._outcome
        for file in outcome.files:
            self._screen.inform(f"{self._label}  output file {file.get('name')}")
        if self._is_one_of_many:
            self._screen.inform(f"{self._label}{outcome.status}, exit code {outcome.exit_code}")
        if outcome.stats is not None:
            self._screen.inform(f"{self._label}  used        {describe_stats(outcome.stats)}")

    async def _clean_up(self) -> None:
        """Ends the session of the case if `--rm` was given, even if the creation of the session was interrupted."""
        if not self._plan.remove or self._plan.enqueue_only:
            return
        session = self._outcome.session or self._api.ComputeSession(self._name, self._plan.creation["owner_access_key"])
        try:
            destroy_reply = await session.destroy()
        except BackendError as error:
            is_refused = isinstance(error, BackendAPIError) and error.status != 404
            if is_refused or self._outcome.session is not None:
                report_error(ERROR_SCREEN, error)
            return
        if self._plan.stats:
            self._outcome.stats = dict(destroy_reply.get("stats") or {})
