"""`backend.ai admin explain`: all that the platform knows about one session."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from ai.backend.cli.framework.lazy import LeafCommand, Outcome, screen_of
from ai.backend.cli.session.commands import find_session, owner_option

if TYPE_CHECKING:
    from ai.backend.client.session import AsyncSession


def report_lines(report: Mapping[str, Any]) -> Iterator[str]:
    """Yields the report as text; a part that is empty is left out."""
    yield f"{report['name']}  {report['id']}"
    yield f"{report['status']} ({report['reason']}), of {report['owner']}"
    if report.get("trace_id"):
        yield f"trace {report['trace_id']}"
    yield from _section_lines(
        "Life", (f"{step['at'][:23]}  {step['name']}{_describe_details(step)}" for step in report["life"])
    )
    decision = report["decision"]
    decision_text = decision.get("message") or decision.get("reason")
    yield from _section_lines("Decision of the scheduler", [str(decision_text)] if decision_text else [])
    yield from _section_lines("Errors", report["errors"])
    yield from _section_lines(
        "Kernels",
        (
            f"{kernel['host']}  {kernel['status']}  on {kernel['agent'] or 'no agent'}, attempt {kernel['attempt']}"
            f"{'' if kernel['exit_code'] is None else ', exit code ' + str(kernel['exit_code'])}  {kernel['id']}"
            for kernel in report["kernels"]
        ),
    )
    yield from _section_lines("Logs of daemons", (_format_log_line(line) for line in report["logs"]))
    if report["unreachable"]:
        yield ""
        yield f"These agents did not tell their logs: {', '.join(report['unreachable'])}"


def _section_lines(title: str, lines: Any) -> Iterator[str]:
    line_texts = list(lines)
    if line_texts:
        yield ""
        yield title
        yield from (f"  {line_text}" for line_text in line_texts)


def _describe_details(step: Mapping[str, Any]) -> str:
    details = {name: value for name, value in step["details"].items() if name not in ("kernelId", "clusterIdx")}
    return "  " + " ".join(f"{name}={value}" for name, value in details.items()) if details else ""


def _format_log_line(line: Mapping[str, Any]) -> str:
    time_text = datetime.fromtimestamp(line["at"], UTC).isoformat(timespec="milliseconds")[:23]
    return f"{time_text}  {line['daemon']}  {line['level']}  {line['message']}"


@click.command(cls=LeafCommand)
@click.argument("session")
@owner_option
async def explain(api: AsyncSession, session: str, owner: str | None) -> Outcome:
    """Tell all about SESSION: its life, decisions, errors, and what the manager and its agents logged of it.

    Logs are those in the memory of the manager that answers and of the session's agents; a collector has them for
    longer. `backend.ai explain` tells a user why a session waits.
    """
    report = await (await find_session(api, session, owner)).report()
    screen_of().print_result(report, "\n".join(report_lines(report)))
    return None
