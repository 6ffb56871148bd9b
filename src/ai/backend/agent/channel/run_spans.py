"""Makes a span of each run that is traced, with the phases below it that the runner reports.

The runner is in the user's reach, so nothing that it says is trusted: the names come from a list, the number of phases
is bounded, and no time lies outside what the agent has seen of the run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime

from ai.backend.agent.channel.model import RunRecord
from ai.backend.infra.telemetry.tracing import record_span

PHASES = frozenset({"clean", "build", "compile", "exec", "code"})
"""The parts of a run: the steps of a batch run, and the compilation or the code of a snippet."""
_MAX_PHASES = 8
_LAST_EXIT_CODE = 255


def record_run(
    record: RunRecord, ended_at: float, attributes: Mapping[str, str], *, exit_code: object, phases: object
) -> None:
    """Records one span for a run that ended, and one span for each phase of the run. Records nothing for a run without
    a trace.
    """
    if record.trace is None:
        return
    span_attributes: dict[str, str | int] = {**attributes, "backendai.run_id": record.run_id}
    if isinstance(exit_code, int) and -1 <= exit_code <= _LAST_EXIT_CODE:
        span_attributes["process.exit.code"] = exit_code
    start_time, end_time = _to_datetime(record.asked_at), _to_datetime(max(record.asked_at, ended_at))
    run_span = record_span("run", start_time, end_time, parent=record.trace, attributes=span_attributes)
    for name, phase_start, phase_end in read_phases(phases, record.asked_at, ended_at):
        record_span(f"run {name}", _to_datetime(phase_start), _to_datetime(phase_end), parent=run_span)


def read_phases(reported_phases: object, run_start: float, run_end: float) -> list[tuple[str, float, float]]:
    """Returns the name, the start and the end of each phase that a runner reported for a run.

    The times are moved into the interval of the run that the agent saw.
    """
    phases: list[tuple[str, float, float]] = []
    for entry in reported_phases[:_MAX_PHASES] if isinstance(reported_phases, list) else ():
        if not isinstance(entry, list) or len(entry) != 3 or not isinstance(entry[0], str) or entry[0] not in PHASES:
            continue
        if not all(_is_time(value) for value in entry[1:]):
            continue
        phase_start, phase_end = (min(max(run_start, value), max(run_start, run_end)) for value in entry[1:])
        phases.append((entry[0], phase_start, max(phase_start, phase_end)))
    return phases


def _is_time(value: object) -> bool:
    return isinstance(value, float) and math.isfinite(value)


def _to_datetime(unix_time: float) -> datetime:
    return datetime.fromtimestamp(unix_time, UTC)
