"""The expression that names agents (spec 03-09, ``target_agents``). Pure."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase

from ai.backend.common.errors import InvalidInput
from ai.backend.manager.agents.model import Agent

_GROUP = ("group:", "scaling-group:", "sgroup:")


def chosen_agents(agents: Iterable[Agent], expression: str) -> list[Agent]:
    """Those that a comma-separated expression names, in their order.

    A term is an agent's id, a pattern of ids with ``*`` and ``?``, or ``group:NAME`` for a resource group, which may be
    a pattern, too. ``!TERM`` takes away what the terms before it have named; with nothing before it, from all.

    >>> chosen_agents([], "*,!i-gpu-*")
    []

    Raises:
        InvalidInput: it is empty, or a term names no agent.
    """
    terms = [term.strip() for term in expression.split(",") if term.strip()]
    if not terms or len(expression) > 4096:
        raise InvalidInput("No agents are named: '*', an id, or group:NAME.", data={"target_agents": "malformed"})
    known = list(agents)
    chosen: set[str] = {a.id for a in known} if terms[0].startswith("!") else set()
    for term in terms:
        named = {a.id for a in known if _is_named(a, term.removeprefix("!"))}
        if not named and known:
            raise InvalidInput(f"{term[:64]!r} names no agent that is alive.", data={"target_agents": "unknown"})
        chosen = chosen - named if term.startswith("!") else chosen | named
    return [a for a in known if a.id in chosen]


def _is_named(agent: Agent, term: str) -> bool:
    for prefix in _GROUP:
        if term.startswith(prefix):
            return fnmatchcase(agent.scaling_group, term.removeprefix(prefix))
    return fnmatchcase(agent.id, term)
