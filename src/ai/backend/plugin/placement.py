"""Defines the public interface of placement plugins, which choose an agent for a kernel among the agents that fit.

A plugin is a class with :class:`PlacementPlugin`'s method under the entry point group :data:`ENTRY_POINT_GROUP`; the
``agent_selection_strategy`` of a resource group names it. It must be pure: no clock, no IO, no randomness but the given
dice. :mod:`ai.backend.plugin.testing.placement` tests an implementation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from ai.backend.common.ids import AgentId
from ai.backend.common.slots import ResourceSlot

ENTRY_POINT_GROUP = "backendai_placement_v10"


class Dice(Protocol):
    """Generates random numbers, as ``random.Random(seed)`` does."""

    def random(self) -> float: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """Describes an agent whose free resources are enough for a kernel in total.

    ``totals`` and ``free`` are of its healthy devices; ``kernels`` is the number of its kernels.
    """

    agent_id: AgentId
    architecture: str
    totals: ResourceSlot
    free: ResourceSlot
    kernels: int


@runtime_checkable
class PlacementPlugin(Protocol):
    """Chooses one agent among the agents that fit."""

    def choose(self, request: ResourceSlot, candidates: Sequence[Candidate], dice: Dice) -> AgentId:
        """Returns the agent that gets the request.

        The request has no zero quantities. There is at least one candidate, in the order of ids; if the devices of the
        chosen one are too scattered, the plugin is called again without it.
        """
        ...
