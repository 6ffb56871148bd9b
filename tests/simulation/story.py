"""The stories of the simulation: which world belongs to which seed."""

from __future__ import annotations

import gc
from functools import cache

from ai.backend.common.states import SessionStatus
from ai.backend.core.scheduling.policy import ORDERS, PLACEMENTS, Policy
from ai.backend.simulator.cluster import Cluster, Plan
from ai.backend.simulator.running import run
from ai.backend.simulator.world import Faults

POLICIES = [
    Policy(order=order, placement=placement, preempts=preempts)
    for order in ORDERS
    for placement in PLACEMENTS
    for preempts in (False, True)
]
_COLLECT_EVERY = 10


def cluster_of(seed: int) -> Cluster:
    """The world of a seed; every tenth is followed for longer."""
    long = seed // 8 % 10 == 0
    plan = Plan(
        policy=POLICIES[seed % len(POLICIES)],
        agents=2 + seed // 2 % 2 + long,
        busy_s=120.0 if long else 45.0,
        requests=20 if long else 8,
        claims=2 if seed % 4 == 1 else 0,
    )
    return Cluster(seed, Faults(), plan)


def partitioned_cluster_of(seed: int) -> Cluster:
    """The world of a seed in which devices are cut for sessions and joined again."""
    policy, claims = POLICIES[seed % len(POLICIES)], seed % 2 * 2
    plan = Plan(policy=policy, agents=2, busy_s=45.0, requests=10, claims=claims, has_gpus=True)
    return Cluster(seed, Faults(), plan)


@cache
def _freeze_imports() -> None:
    """Exempts what is imported from the collections of garbage, which would look at it after every few seeds."""
    gc.collect()
    gc.freeze()


def tell(seed: int, cluster: Cluster | None = None) -> tuple[str, set[SessionStatus]]:
    """The digest of one seed's trace, and the statuses in which its sessions came to rest.

    Some garbage is left over, which is collected after every few seeds unless collection is disabled.

    Raises:
        AssertionError: something did not hold; it says with which seed.
    """
    if collects := gc.isenabled():
        _freeze_imports()
    cluster = cluster or cluster_of(seed)
    try:
        digest = run(cluster)
    except Exception as e:
        e.add_note(f"the seed is {seed}; once more: python -m tests.simulation --seed {seed}")
        raise
    finally:
        if collects and seed % _COLLECT_EVERY == 0:
            gc.collect()
    return digest, cluster.rested


def fault_of(seed: int) -> tuple[int, str | None]:
    """The seed, and what did not hold."""
    try:
        tell(seed)
    except Exception as e:  # noqa: BLE001  # whatever is wrong, the other seeds go on
        return seed, f"{type(e).__name__}: {e}"
    return seed, None
