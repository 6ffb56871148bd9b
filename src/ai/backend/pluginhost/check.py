"""Checks a plugin in a process of its own, so that a crash, a hang or an exit harms nothing else."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import IO

import msgspec

from ai.backend.plugin.testing.accelerator.checks import Check, Outcome, Result
from ai.backend.pluginhost.check_process import ALL, LOADING, Description, Job, Line
from ai.backend.pluginhost.process import described_status, host_environment

_LAST_WORDS = 300
_LINE = 1 << 20
_START_S = 30.0
"""For the process to come so far that the plugin is imported."""


@dataclass(slots=True)
class Report:
    """Collects the results of the checks of a plugin."""

    description: Description | None = None
    outcomes: list[Outcome] = field(default_factory=list)

    @property
    def is_good(self) -> bool:
        return all(outcome.result in (Result.PASSED, Result.SKIPPED) for outcome in self.outcomes)

    def count(self, result: Result) -> int:
        return sum(outcome.result is result for outcome in self.outcomes)


async def check_outside(
    job: Job,
    *,
    patience_s: float = 30.0,
    environment: Sequence[str] = (),
    on_outcome: Callable[[Outcome], None] = lambda _: None,
) -> Report:
    """Runs all checks of a job. A process that dies in one of them, or is silent for longer than ``patience_s``, fails
    it, and the rest goes on. ``environment`` names variables that the process gets besides the usual ones."""
    report = Report()

    def record(outcome: Outcome) -> None:
        report.outcomes.append(outcome)
        on_outcome(outcome)

    while remaining := _remaining_checks(report):
        names = tuple(check.name for check in remaining if check is not LOADING)
        died_in = await _one_process(
            msgspec.structs.replace(job, checks=names), report, record, patience_s, host_environment(environment)
        )
        if died_in is None:
            break
        name, reason = died_in
        if report.outcomes and name == LOADING.name:
            name = remaining[0].name
        record(Outcome(name, Result.FAILED, reason))
    broken = next((o.check for o in report.outcomes if o.result is Result.FAILED), "")
    for check in _missing(report):
        record(Outcome(check.name, Result.NOT_RUN, f"{broken} has failed"))
    return report


def _missing(report: Report) -> list[Check]:
    checked = {outcome.check for outcome in report.outcomes}
    return [check for check in ALL if check.name not in checked]


def _remaining_checks(report: Report) -> list[Check]:
    """Lists the checks that a new process should run: none once a basic check has failed."""
    failed = {outcome.check for outcome in report.outcomes if outcome.result is Result.FAILED}
    return [] if any(check.is_basic and check.name in failed for check in ALL) else _missing(report)


async def _one_process(
    job: Job, report: Report, record: Callable[[Outcome], None], patience_s: float, environment: dict[str, str]
) -> tuple[str, str] | None:
    """Runs checks until the end or a death; then returns the check that it died in, and why."""
    ours, theirs = os.pipe()
    with tempfile.TemporaryFile() as output:
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "ai.backend.pluginhost.check_process", str(theirs), str(os.getpid())),
                stdin=asyncio.subprocess.PIPE,
                stdout=output,
                stderr=output,
                pass_fds=(theirs,),
                env=environment,
                start_new_session=True,
            )
        finally:
            os.close(theirs)
        reader = asyncio.StreamReader(limit=_LINE)
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(ours, "rb")
        )
        assert process.stdin is not None
        process.stdin.write(msgspec.json.encode(job))
        process.stdin.close()
        begun, reason, limit_s = LOADING.name, "", patience_s + _START_S
        try:
            while True:
                async with asyncio.timeout(limit_s):
                    data = await reader.readline()
                limit_s = patience_s
                if not data:
                    break
                line = msgspec.json.decode(data, type=Line)
                begun = line.begun or begun
                report.description = line.description or report.description
                if line.outcome is not None and line.outcome.check not in {o.check for o in report.outcomes}:
                    record(line.outcome)
        except TimeoutError:
            reason = f"it took longer than {patience_s:g} s, or blocked its process"
        finally:
            transport.close()
            if process.returncode is None and reason:
                _kill(process.pid)
            code = await process.wait()
            _kill(process.pid)
        if not reason and code == 0:
            return None
        return begun, reason or f"its process ended: {described_status(code)}{_last_output(output)}"


def _kill(leader: int) -> None:
    """Ends the process, or its remaining process group."""
    try:
        os.killpg(leader, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return


def _last_output(output: IO[bytes]) -> str:
    output.seek(0, os.SEEK_END)
    output.seek(max(0, output.tell() - 4096))
    lines = [line.strip() for line in output.read().decode(errors="replace").splitlines() if line.strip()]
    return f" ({lines[-1][:_LAST_WORDS]})" if lines else ""
