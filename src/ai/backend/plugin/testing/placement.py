"""Tests what every placement plugin must satisfy. A subclass of the contract makes the plugin::

class TestMine(PlacementContract):
    def make(self) -> PlacementPlugin:
        return Mine()
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from decimal import Decimal

import pytest

from ai.backend.common.ids import AgentId
from ai.backend.common.slots import ResourceSlot
from ai.backend.plugin.placement import Candidate, PlacementPlugin


def random_candidates(seed: int, candidate_count: int) -> list[Candidate]:
    """Returns random agents of different sizes that each have at least 2 cores, 2 GiB and one ``cuda.device`` free."""
    rng = random.Random(seed)
    result = []
    for agent_number in range(candidate_count):
        totals = {"cpu": rng.choice((8, 64)), "mem": rng.choice((2**34, 2**38)), "cuda.device": rng.choice((1, 4, 8))}
        least_free = {"cpu": 2, "mem": 2**31, "cuda.device": 1}
        free_amounts = {
            slot: Decimal(rng.randint(least_free[slot], total_amount)) for slot, total_amount in totals.items()
        }
        result.append(
            Candidate(
                agent_id=AgentId(f"i-{agent_number:03}"),
                architecture="x86_64",
                totals=ResourceSlot({slot: Decimal(amount) for slot, amount in totals.items()}),
                free=ResourceSlot(free_amounts),
                kernels=rng.randint(0, 9),
            )
        )
    return result


REQUESTS = (
    ResourceSlot(),
    ResourceSlot({"cpu": Decimal(1)}),
    ResourceSlot({"cpu": Decimal(2), "mem": Decimal(2**30), "cuda.device": Decimal(1)}),
)


class PlacementContract:
    """Tests a placement plugin that a subclass makes."""

    def make(self) -> PlacementPlugin:
        pytest.fail("override make()")

    @staticmethod
    def _ask(plugin: PlacementPlugin, request: ResourceSlot, agents: Sequence[Candidate], seed: int) -> AgentId:
        return plugin.choose(request, agents, random.Random(seed))

    def test_it_chooses_one_of_the_candidates(self) -> None:
        plugin = self.make()
        for seed in range(50):
            agents = random_candidates(seed, 1 + seed % 17)
            for request in REQUESTS:
                assert self._ask(plugin, request, agents, seed) in {agent.agent_id for agent in agents}

    def test_equal_arguments_give_an_equal_answer_whatever_was_asked_before(self) -> None:
        plugin, other_plugin = self.make(), self.make()
        for seed in range(50):
            agents = random_candidates(seed, 9)
            first_answer = self._ask(plugin, REQUESTS[2], agents, seed)
            assert (
                first_answer
                == self._ask(plugin, REQUESTS[2], agents, seed)
                == self._ask(other_plugin, REQUESTS[2], agents, seed)
            )

    def test_it_changes_none_of_its_arguments(self) -> None:
        agents = random_candidates(1, 9)
        agents_before = list(agents)
        self._ask(self.make(), REQUESTS[2], agents, 1)
        assert agents == agents_before

    def test_it_can_be_asked_again_without_the_agent_that_it_chose(self) -> None:
        plugin, agents = self.make(), random_candidates(2, 6)
        chosen_ids = []
        while agents:
            chosen_ids.append(self._ask(plugin, REQUESTS[1], agents, 2))
            agents = [agent for agent in agents if agent.agent_id != chosen_ids[-1]]
        assert len(set(chosen_ids)) == 6
