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

from ai.backend.common.structs import replace
from ai.backend.plugin.testing.accelerator.checks import Check, Outcome, Result
from ai.backend.pluginhost.check_process import ALL_CHECKS, LOADING_CHECK, Description, Job, Line
from ai.backend.pluginhost.process import described_status, host_environment

_MAX_OUTPUT_LENGTH = 300
_MAX_LINE_BYTES = 1 << 20
_START_S = 30.0
"""The seconds that a new process may take until it has imported the plugin."""


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
    on_begun: Callable[[int, str], None] = lambda _, __: None,
) -> Report:
    """Runs all checks of a job. A process that dies in one of them, or is silent for longer than ``patience_s``, fails
    it, and the rest goes on. ``environment`` names variables that the process gets besides the usual ones. ``on_begun``
    gets the number and name of each check as it begins."""
    report = Report()

    def record(outcome: Outcome) -> None:
        report.outcomes.append(outcome)
        on_outcome(outcome)

    while remaining_checks := _remaining_checks(report):
        check_names = tuple(check.name for check in remaining_checks if check is not LOADING_CHECK)
        death = await _run_in_one_process(
            replace(job, checks=check_names),
            report,
            record,
            lambda name: on_begun(len(report.outcomes) + 1, name),
            patience_s,
            host_environment(environment),
        )
        if death is None:
            break
        name, reason = death
        if report.outcomes and name == LOADING_CHECK.name:
            name = remaining_checks[0].name
        record(Outcome(name, Result.FAILED, reason))
    broken = next((past_outcome.check for past_outcome in report.outcomes if past_outcome.result is Result.FAILED), "")
    for check in _unchecked(report):
        record(Outcome(check.name, Result.NOT_RUN, f"{broken} has failed"))
    return report


def _unchecked(report: Report) -> list[Check]:
    checked = {outcome.check for outcome in report.outcomes}
    return [check for check in ALL_CHECKS if check.name not in checked]


def _remaining_checks(report: Report) -> list[Check]:
    """Returns the checks that have not run yet, or none if a basic check has failed."""
    failed = {outcome.check for outcome in report.outcomes if outcome.result is Result.FAILED}
    return [] if any(check.is_basic and check.name in failed for check in ALL_CHECKS) else _unchecked(report)


async def _run_in_one_process(
    job: Job,
    report: Report,
    record: Callable[[Outcome], None],
    on_begun: Callable[[str], None],
    patience_s: float,
    environment: dict[str, str],
) -> tuple[str, str] | None:
    """Runs checks in one process until the process ends. If it dies, returns the check during which it died, and the
    reason.
    """
    report_read_fd, report_write_fd = os.pipe()
    with tempfile.TemporaryFile() as output_file:
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "ai.backend.pluginhost.check_process", str(report_write_fd), str(os.getpid())),
                stdin=asyncio.subprocess.PIPE,
                stdout=output_file,
                stderr=output_file,
                pass_fds=(report_write_fd,),
                env=environment,
                start_new_session=True,
            )
        finally:
            os.close(report_write_fd)
        reader = asyncio.StreamReader(limit=_MAX_LINE_BYTES)
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(report_read_fd, "rb")
        )
        assert process.stdin is not None
        process.stdin.write(msgspec.json.encode(job))
        process.stdin.close()
        begun, reason, limit_s = LOADING_CHECK.name, "", patience_s + _START_S
        try:
            while True:
                async with asyncio.timeout(limit_s):
                    data = await reader.readline()
                limit_s = patience_s
                if not data:
                    break
                line = msgspec.json.decode(data, type=Line)
                if line.begun is not None:
                    begun = line.begun
                    on_begun(begun)
                report.description = line.description or report.description
                if line.outcome is not None and line.outcome.check not in {o.check for o in report.outcomes}:
                    record(line.outcome)
        except TimeoutError:
            reason = f"it took longer than {patience_s:g} s, or blocked its process"
        finally:
            transport.close()
            if process.returncode is None and reason:
                _kill_process_group(process.pid)
            code = await process.wait()
            _kill_process_group(process.pid)
        if not reason and code == 0:
            return None
        return begun, reason or f"its process ended: {described_status(code)}{_last_output(output_file)}"


def _kill_process_group(leader_pid: int) -> None:
    """Kills a process of checks with its process group."""
    try:
        os.killpg(leader_pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return


def _last_output(output: IO[bytes]) -> str:
    output.seek(0, os.SEEK_END)
    output.seek(max(0, output.tell() - 4096))
    lines = [line.strip() for line in output.read().decode(errors="replace").splitlines() if line.strip()]
    return f" ({lines[-1][:_MAX_OUTPUT_LENGTH]})" if lines else ""
