"""Expressions that select agents (spec 03-09, ``target_agents``), evaluated without I/O."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase

from ai.backend.common.errors import InvalidInput
from ai.backend.manager.agents.model import Agent

_GROUP = ("group:", "scaling-group:", "sgroup:")


def chosen_agents(agents: Iterable[Agent], expression: str) -> list[Agent]:
    """Returns the agents that a comma-separated expression selects, in their order.

    A term is an agent's id, a pattern of ids with ``*`` and ``?``, or ``group:NAME`` for a resource group, which may be
    a pattern, too. ``!TERM`` removes agents from the selection so far; as the first term, from all agents.

    >>> chosen_agents([], "*,!i-gpu-*")
    []

    Raises:
        InvalidInput: the expression is empty, or a term matches no agent.
    """
    terms = [term.strip() for term in expression.split(",") if term.strip()]
    if not terms or len(expression) > 4096:
        raise InvalidInput("No agents are named: '*', an id, or group:NAME.", data={"target_agents": "malformed"})
    candidates = list(agents)
    chosen: set[str] = {a.id for a in candidates} if terms[0].startswith("!") else set()
    for term in terms:
        named = {a.id for a in candidates if _is_named(a, term.removeprefix("!"))}
        if not named and candidates:
            raise InvalidInput(f"{term[:64]!r} names no agent that is alive.", data={"target_agents": "unknown"})
        chosen = chosen - named if term.startswith("!") else chosen | named
    return [a for a in candidates if a.id in chosen]


def _is_named(agent: Agent, term: str) -> bool:
    for prefix in _GROUP:
        if term.startswith(prefix):
            return fnmatchcase(agent.scaling_group, term.removeprefix(prefix))
    return fnmatchcase(agent.id, term)
