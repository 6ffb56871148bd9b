"""Loads placement plugins and adapts them to the interface of the scheduler."""

from __future__ import annotations

import logging
from functools import cache
from importlib.metadata import entry_points

from ai.backend.core.scheduling.index.agents import AgentIndex, Demand
from ai.backend.core.scheduling.placement.strategies import PLACEMENTS, Placement, Rng
from ai.backend.plugin.placement import ENTRY_POINT_GROUP, Candidate, PlacementPlugin

log = logging.getLogger(__name__)
FALLBACK_PLACEMENT = "dispersed"


@cache
def load_placement_plugin(name: str) -> Placement | None:
    """Returns the placement of the placement plugin with this name, or None if the plugin cannot be loaded.

    A failure of an installed plugin is logged.
    """
    for entry_point in entry_points(group=ENTRY_POINT_GROUP, name=name):
        try:
            plugin = entry_point.load()()
        except Exception:  # a failing plugin must not stop the others
            log.exception("the placement plugin %s cannot be used", name)
            continue
        if isinstance(plugin, PlacementPlugin):
            return adapt_placement(name, plugin)
        log.error("the placement plugin %s has no method choose", name)
    return None


def adapt_placement(name: str, plugin: PlacementPlugin) -> Placement:
    """Returns a placement of the scheduler that chooses agents by a placement plugin.

    If the plugin fails or chooses no candidate, this is logged and the fallback decides.
    """

    def choose(index: AgentIndex, demand: Demand, agent_mask: int, rng: Rng) -> int:
        agent_mask &= demand.fitting_mask()
        if not agent_mask:
            return -1
        candidates = [
            Candidate(
                agent_id=agent.agent_id,
                architecture=agent.view.architecture,
                totals=agent.totals,
                free=agent.available,
                kernels=agent.count,
            )
            for agent in index.agents_in(agent_mask)
        ]
        try:
            agent_rank = index.ranks.get(plugin.choose(demand.total, candidates, rng))
        except Exception:  # a failing plugin must not stop the scheduler
            log.exception("the placement plugin %s failed; %s decides", name, FALLBACK_PLACEMENT)
            agent_rank = None
        else:
            if agent_rank is None or not agent_mask >> agent_rank & 1:
                log.error("the placement plugin %s chose no candidate; %s decides", name, FALLBACK_PLACEMENT)
                agent_rank = None
        return PLACEMENTS[FALLBACK_PLACEMENT](index, demand, agent_mask, rng) if agent_rank is None else agent_rank

    return choose
