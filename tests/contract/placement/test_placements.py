"""The suite on a plugin of its own, and what becomes of plugins that break the contract."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from ai.backend.common.ids import AgentId
from ai.backend.common.slots import ResourceSlot
from ai.backend.core.scheduling.decide import decide
from ai.backend.core.scheduling.policy import Policy
from ai.backend.core.scheduling.snapshot import Snapshot
from ai.backend.manager.resource_groups.placement_plugins import adapt_placement
from ai.backend.plugin.placement import Candidate, Dice, PlacementPlugin
from ai.backend.plugin.testing.placement import PlacementContract
from tests.unit.core.scheduling.builders import NOW, agent, session, slots


class FewestKernels:
    def choose(self, request: ResourceSlot, candidates: Sequence[Candidate], dice: Dice) -> AgentId:
        return min(candidates, key=lambda c: (c.kernels, c.agent_id)).agent_id


class Drawn:
    def choose(self, request: ResourceSlot, candidates: Sequence[Candidate], dice: Dice) -> AgentId:
        return candidates[int(dice.random() * len(candidates))].agent_id


class Liar:
    def choose(self, request: ResourceSlot, candidates: Sequence[Candidate], dice: Dice) -> AgentId:
        return AgentId("i-nowhere")


class Broken:
    def choose(self, request: ResourceSlot, candidates: Sequence[Candidate], dice: Dice) -> AgentId:
        raise RuntimeError("no")


class Forgetful:
    """Answers differently each time."""

    def __init__(self) -> None:
        self.asked = 0

    def choose(self, request: ResourceSlot, candidates: Sequence[Candidate], dice: Dice) -> AgentId:
        self.asked += 1
        return candidates[self.asked % len(candidates)].agent_id


class TestFewestKernels(PlacementContract):
    def make(self) -> PlacementPlugin:
        return FewestKernels()


class TestDrawn(PlacementContract):
    def make(self) -> PlacementPlugin:
        return Drawn()


@pytest.mark.parametrize(
    ("plugin", "check"),
    [
        (Liar, "test_it_chooses_one_of_the_candidates"),
        (Forgetful, "test_equal_arguments_give_an_equal_answer_whatever_was_asked_before"),
        (Broken, "test_it_can_be_asked_again_without_the_agent_that_it_chose"),
    ],
)
def test_the_suite_can_fail(plugin: type[PlacementPlugin], check: str) -> None:
    suite = PlacementContract()
    suite.make = plugin  # type: ignore[method-assign]  # in place of a subclass
    with pytest.raises((AssertionError, RuntimeError)):
        getattr(suite, check)()


@pytest.mark.parametrize("plugin", [FewestKernels, Drawn, Liar, Broken, Forgetful])
def test_every_session_gets_its_place_even_if_the_plugin_is_broken(plugin: type[PlacementPlugin]) -> None:
    agents = tuple(agent(f"i-{n}") for n in range(3))
    pending = tuple(session(str(n), slots(cpu=2), age_s=9 - n) for n in range(6))
    policy = Policy(placement="mine", plugged=adapt_placement("mine", plugin()))
    made = decide(Snapshot(resource_group="g", agents=agents, pending=pending), policy, now=NOW, rng=random.Random(1))
    assert len(made.placements) == 6


def test_the_fewest_kernels() -> None:
    agents = tuple(agent(f"i-{n}", cpu=64) for n in range(3))
    pending = tuple(session(str(n), slots(cpu=1), age_s=9 - n) for n in range(4))
    policy = Policy(placement="mine", plugged=adapt_placement("mine", FewestKernels()))
    made = decide(Snapshot(resource_group="g", agents=agents, pending=pending), policy, now=NOW, rng=random.Random(1))
    assert [p.kernels[0].agent_id for p in made.placements] == ["i-0", "i-1", "i-2", "i-0"]
