"""Forty agents over the real wire: nothing is lost or doubled while agents vanish and the leading manager is killed."""

from __future__ import annotations

import pytest

from bench.swarm import agents_vanish, end_all, fill, kill_leader, run_batch, running_swarm, wait_for_agents

pytestmark = [pytest.mark.needs("postgres", "redis", "etcd"), pytest.mark.timeout(300)]


def test_agents_vanish_and_the_leader_dies() -> None:
    with running_swarm(40) as swarm:
        fill(swarm, 60)
        run_batch(swarm, 60)
        agents_vanish(swarm, 20)
        taken_over_s = kill_leader(swarm)
        wait_for_agents(swarm)
        swarm.wait_for("status = 'RUNNING'", 60 + 1)  # those of before, and the one after the leader's death
        assert end_all(swarm) == (0, 0, 0), "lost, doubled, agents with slots"
    assert taken_over_s < 30
