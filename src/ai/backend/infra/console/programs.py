"""Runs the programs of a build, and writes their output to the build's log."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

_TAIL_BYTES = 64 << 10
_STOP_S = 5.0
_NETWORK_PATTERN = re.compile(
    r"ENOTFOUND|EAI_AGAIN|ECONNREFUSED|ECONNRESET|ETIMEDOUT|ENETUNREACH|EHOSTUNREACH|ERR_SOCKET_TIMEOUT"
    r"|NewConnectionError|Temporary failure in name resolution|Could not fetch URL|Read timed out"
    r"|No matching distribution found|network is unreachable",
    re.IGNORECASE,
)
_DISK_PATTERN = re.compile(r"ENOSPC|No space left on device|EDQUOT|Disk quota exceeded", re.IGNORECASE)
_MESSAGE_PATTERN = re.compile(r"^(?:npm (?:error|ERR!)|ERROR:|error|Error:|.*error TS\d+:)(?!.*complete log)", re.M)


class BuildFailed(Exception):
    """Raised when no bundle can be made. The text is one line that says why and what to do."""


def run_program(
    command: Sequence[str], *, folder: Path, env: Mapping[str, str], log: Path, step: str, timeout_s: float
) -> None:
    """Runs a program to its end; its output is appended to the log. Raises BuildFailed.

    The program and what it started end with this call, also when it is interrupted.
    """
    log_offset = log.stat().st_size if log.exists() else 0
    try:
        with log.open("ab") as output:
            output.write(f"$ {' '.join(command)}\n".encode())
            output.flush()
            process = subprocess.Popen(
                command,
                cwd=folder,
                env=dict(env),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
    except OSError as e:
        raise BuildFailed(f"{step}: {command[0]} cannot be started: {e.strerror}.") from None
    try:
        exit_status = process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        raise BuildFailed(f"{step} did not end within {timeout_s:.0f} s; see {log}.") from None
    finally:
        _end_group(process)
    if exit_status != 0:
        raise BuildFailed(explain_failure(step, exit_status, _read_tail(log, log_offset), log))


def explain_failure(step: str, exit_status: int, output: str, log: Path) -> str:
    """Returns one line that explains why a program of a build failed, from the program's output."""
    if _DISK_PATTERN.search(output):
        return f"{step}: the disk is full, or its quota is; a build needs about 700 MB below {log.parent}."
    if _NETWORK_PATTERN.search(output):
        return f"{step}: the package registry cannot be reached; everything but the console works without it."
    if exit_status < 0:
        return f"{step} was killed by signal {-exit_status}; see {log}."
    lines = [line.strip() for line in output.splitlines() if _MESSAGE_PATTERN.match(line)]
    reason = f": {lines[0][:200]}" if lines else f" with status {exit_status}"
    return f"{step} failed{reason}; see {log}."


def _read_tail(log: Path, log_offset: int) -> str:
    with log.open("rb") as file:
        file.seek(max(log_offset, log.stat().st_size - _TAIL_BYTES))
        return file.read().decode(errors="replace")


def _end_group(process: subprocess.Popen[bytes]) -> None:
    for signal_number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, signal_number)
        except ProcessLookupError:
            return
        if process.poll() is None:
            try:
                process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                continue
