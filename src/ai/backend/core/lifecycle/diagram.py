"""The reference page of the machines, written from their tables."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import TypeVar

from ai.backend.common.artifacts import RevisionStatus
from ai.backend.common.states import FINAL_KERNEL_STATUSES, FINAL_SESSION_STATUSES, KernelStatus, SessionStatus
from ai.backend.core.lifecycle import artifact, kernel, session
from ai.backend.core.lifecycle.outcomes import Outcome

_HEAD = """\
Written from the tables in `src/ai/backend/core/lifecycle` by `python -m tools.docs`; do not edit.
A pair of status and trigger that is not listed changes nothing and is no error."""

_S = TypeVar("_S", bound=StrEnum)
_T = TypeVar("_T", bound=StrEnum)


def arrows(table: Mapping[tuple[_S, _T], _S | Outcome]) -> dict[tuple[_S, _S], list[_T]]:
    """Every (from, to) pair of statuses with the triggers that lead there, in the order of the table."""
    found: dict[tuple[_S, _S], list[_T]] = {}
    for (status, trigger), target in table.items():
        if not isinstance(target, Outcome):
            found.setdefault((status, target), []).append(trigger)
    return found


def mermaid(table: Mapping[tuple[_S, _T], _S | Outcome], *, initial: _S, final: frozenset[_S]) -> str:
    """Draw one table as a Mermaid state diagram."""
    lines = ["stateDiagram-v2", f"    [*] --> {initial}"]
    lines += [f"    {a} --> {b}: {', '.join(triggers)}" for (a, b), triggers in arrows(table).items()]
    lines += [f"    {status} --> [*]" for status in sorted(final)]
    return "\n".join(lines)


def _grid(table: Mapping[tuple[_S, _T], _S | Outcome]) -> str:
    """Write one table out: a row for each status that can move, every trigger that moves or is refused."""
    lines = ["| status | trigger | next |", "|---|---|---|"]
    for (status, trigger), target in table.items():
        if target is not Outcome.IGNORED:
            lines.append(f"| {status} | {trigger} | {'*refused*' if isinstance(target, Outcome) else target} |")
    return "\n".join(lines)


def _rules(doc: str | None) -> str:
    """The part of a machine's docstring that both readers of code and of the page need."""
    return (doc or "").partition("Rules:")[2].strip()


def render() -> str:
    """The text of docs/reference/state-machines.md."""
    parts = [
        "# State machines",
        _HEAD,
        "## Session",
        _rules(session.__doc__),
        f"```mermaid\n{mermaid(session.TRANSITIONS, initial=SessionStatus.PENDING, final=FINAL_SESSION_STATUSES)}\n```",
        _grid(session.TRANSITIONS),
        "## Kernel",
        _rules(kernel.__doc__),
        f"```mermaid\n{mermaid(kernel.TRANSITIONS, initial=KernelStatus.PENDING, final=FINAL_KERNEL_STATUSES)}\n```",
        _grid(kernel.TRANSITIONS),
        "## Revision of an artifact",
        _rules(artifact.__doc__),
        f"```mermaid\n{mermaid(artifact.TRANSITIONS, initial=RevisionStatus.SCANNED, final=frozenset())}\n```",
        _grid(artifact.TRANSITIONS),
    ]
    return "\n\n".join(parts) + "\n"
