"""Which agents an expression names."""

from __future__ import annotations

import pytest

from ai.backend.common.errors import InvalidInput
from ai.backend.manager.images.preload import select_agents
from tests.contract.store.builders import make_agent

AGENTS = [make_agent("i-gpu-1"), make_agent("i-gpu-2"), make_agent("i-cpu")]


@pytest.mark.parametrize(
    ("expression", "names"),
    [
        ("*", ["i-gpu-1", "i-gpu-2", "i-cpu"]),
        ("i-cpu, i-gpu-1", ["i-gpu-1", "i-cpu"]),
        ("i-gpu-?,!i-gpu-2", ["i-gpu-1"]),
        ("!i-gpu-*", ["i-cpu"]),
        ("group:default", ["i-gpu-1", "i-gpu-2", "i-cpu"]),
        ("*,!sgroup:def*,i-cpu", ["i-cpu"]),
    ],
)
def test_terms(expression: str, names: list[str]) -> None:
    assert [agent.id for agent in select_agents(AGENTS, expression)] == names


@pytest.mark.parametrize("expression", ["", " , ", "nobody", "i-cpu,group:none", "*" * 5000])
def test_what_names_nobody(expression: str) -> None:
    with pytest.raises(InvalidInput):
        select_agents(AGENTS, expression)
