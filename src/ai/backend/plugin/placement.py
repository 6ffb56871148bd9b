"""The public interface of placement plugins: which of the agents that fit gets a kernel.

A plugin is a class with :class:`PlacementPlugin`'s method, offered under the entry point group
:data:`ENTRY_POINT_GROUP`; a resource group names it as its ``agent_selection_strategy``. It is asked in the middle of a
decision, so it must be pure: no clock, no IO, no randomness but the dice that it is given, and equal arguments give an
equal answer, or dumps could not be replayed. :mod:`ai.backend.plugin.testing.placement` judges an
implementation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from ai.backend.common.ids import AgentId
from ai.backend.common.slots import ResourceSlot

ENTRY_POINT_GROUP = "backendai_placement_v10"


class Dice(Protocol):
    """``random.Random(seed)`` is one."""

    def random(self) -> float: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """An agent that has room for the request as far as sums tell.

    Attributes:
        totals: what its healthy devices have together.
        free: what of that nobody holds.
        kernels: how many it holds.
    """

    agent_id: AgentId
    architecture: str
    totals: ResourceSlot
    free: ResourceSlot
    kernels: int


@runtime_checkable
class PlacementPlugin(Protocol):
    """Chooses an agent among those that fit."""

    def choose(self, request: ResourceSlot, candidates: Sequence[Candidate], dice: Dice) -> AgentId:
        """Returns the agent that gets the request.

        Args:
            request: slot -> quantity, nothing that is zero.
            candidates: at least one, in the order of their ids. All fit the sums; if the devices of the chosen one turn
                out to be too scattered, the plugin is asked again without it.
            dice: the only source of randomness.
        """
        ...
