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
from ai.backend.pluginhost.process import describe_status, host_environment

_MAX_OUTPUT_LENGTH = 300
_MAX_LINE_BYTES = 1 << 20
_MAX_START_S = 30.0
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
    """Runs all checks of a job in another process, and returns the report.

    A process that dies in one of them, or is silent for longer than ``patience_s``, fails it, and the rest goes on in a
    new process. ``environment`` names variables that the process gets besides the usual ones. ``on_begun`` gets the
    number and name of each check as it begins.
    """
    report = Report()

    def record_outcome(outcome: Outcome) -> None:
        report.outcomes.append(outcome)
        on_outcome(outcome)

    while remaining_checks := _remaining_checks(report):
        check_names = tuple(check.name for check in remaining_checks if check is not LOADING_CHECK)
        crash = await _run_in_one_process(
            replace(job, checks=check_names),
            report,
            record_outcome,
            lambda name: on_begun(len(report.outcomes) + 1, name),
            patience_s,
            host_environment(environment),
        )
        if crash is None:
            break
        check_name, reason = crash
        if report.outcomes and check_name == LOADING_CHECK.name:
            check_name = remaining_checks[0].name
        record_outcome(Outcome(check_name, Result.FAILED, reason))
    failed_check = next(
        (earlier_outcome.check for earlier_outcome in report.outcomes if earlier_outcome.result is Result.FAILED), ""
    )
    for check in _checks_without_outcome(report):
        record_outcome(Outcome(check.name, Result.NOT_RUN, f"{failed_check} has failed"))
    return report


def _checks_without_outcome(report: Report) -> list[Check]:
    checked_names = {outcome.check for outcome in report.outcomes}
    return [check for check in ALL_CHECKS if check.name not in checked_names]


def _remaining_checks(report: Report) -> list[Check]:
    """Returns the checks that have not run yet, or none if a basic check has failed."""
    failed_names = {outcome.check for outcome in report.outcomes if outcome.result is Result.FAILED}
    return (
        []
        if any(check.is_basic and check.name in failed_names for check in ALL_CHECKS)
        else _checks_without_outcome(report)
    )


async def _run_in_one_process(
    job: Job,
    report: Report,
    record_outcome: Callable[[Outcome], None],
    on_begun: Callable[[str], None],
    patience_s: float,
    environment: dict[str, str],
) -> tuple[str, str] | None:
    """Runs checks in one new process until the process ends.

    If it dies, returns the check during which it died, and the reason.
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
        running_check, timeout_reason, limit_s = LOADING_CHECK.name, "", patience_s + _MAX_START_S
        try:
            while True:
                async with asyncio.timeout(limit_s):
                    line_bytes = await reader.readline()
                limit_s = patience_s
                if not line_bytes:
                    break
                line = msgspec.json.decode(line_bytes, type=Line)
                if line.begun is not None:
                    running_check = line.begun
                    on_begun(running_check)
                report.description = line.description or report.description
                if line.outcome is not None and line.outcome.check not in {
                    earlier_outcome.check for earlier_outcome in report.outcomes
                }:
                    record_outcome(line.outcome)
        except TimeoutError:
            timeout_reason = f"it took longer than {patience_s:g} s, or blocked its process"
        finally:
            transport.close()
            if process.returncode is None and timeout_reason:
                _kill_process_group(process.pid)
            exit_code = await process.wait()
            _kill_process_group(process.pid)
        if not timeout_reason and exit_code == 0:
            return None
        return (
            running_check,
            timeout_reason or f"its process ended: {describe_status(exit_code)}{_last_output(output_file)}",
        )


def _kill_process_group(leader_pid: int) -> None:
    """Kills a process of checks with its process group."""
    try:
        os.killpg(leader_pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return


def _last_output(output_file: IO[bytes]) -> str:
    output_file.seek(0, os.SEEK_END)
    output_file.seek(max(0, output_file.tell() - 4096))
    output_lines = [line.strip() for line in output_file.read().decode(errors="replace").splitlines() if line.strip()]
    return f" ({output_lines[-1][:_MAX_OUTPUT_LENGTH]})" if output_lines else ""
