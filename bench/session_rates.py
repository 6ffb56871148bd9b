"""Measures how many interactive sessions a second are created and destroyed, some at once, and what each costs."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from ai.backend.node.linux.syscalls import become_subreaper
from bench.cluster import lift_rate_limits, small_image_cluster
from bench.figures import Figure, benchmark, spread
from bench.jobs import spent_seconds
from bench.processes import busy_seconds
from bench.sleepers import AT_ONCE, Users, for_all

SESSIONS, ROUNDS = 48, 5
RATE_TARGET = 25.0


@benchmark("session-rates", f"interactive sessions created and destroyed per second, {AT_ONCE} at once")
def session_rates() -> Sequence[Figure]:
    become_subreaper()
    samples: dict[str, list[float]] = {"created": [], "destroyed": []}
    costs: dict[str, list[float]] = {"created": [], "destroyed": []}
    daemon_costs: dict[str, list[float]] = {"created": [], "destroyed": []}
    with small_image_cluster() as cluster:
        lift_rate_limits(cluster)
        users = Users(cluster)
        for number in range(ROUNDS + 1):  # the first only warms up
            names = [f"rate-{number}-{position:02}" for position in range(SESSIONS)]
            for step, action in (("created", users.create), ("destroyed", users.destroy)):
                spent, daemon_spent = spent_seconds(), busy_seconds([cluster.pid])
                _, taken_s = for_all(names, action)
                if number:
                    samples[step].append(SESSIONS / taken_s)
                    costs[step].append(1000 * (spent_seconds() - spent) / SESSIONS)
                    daemon_costs[step].append(1000 * (busy_seconds([cluster.pid]) - daemon_spent) / SESSIONS)
    return [
        Figure(
            name=f"sessions-{step}",
            value=(rate := statistics.median(rates)),
            unit="sessions/s",
            target=f">= {RATE_TARGET:g}",
            holds=rate >= RATE_TARGET,
            detail=spread(rates)
            | {
                "ms_of_processor": statistics.median(costs[step]),
                "of_the_daemon": statistics.median(daemon_costs[step]),
            },
        )
        for step, rates in samples.items()
    ]
