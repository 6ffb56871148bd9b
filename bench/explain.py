"""Measures the explanation of a request: a pass of the scheduler over 1,000 agents, and smaller requests."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Sequence
from uuid import UUID

from ai.backend.common.ids import KernelId, SessionId
from ai.backend.common.slots import ResourceSlot
from ai.backend.common.structs import replace
from ai.backend.core.scheduling.policy import Policy
from ai.backend.core.scheduling.snapshot import PendingSession, Snapshot
from ai.backend.core.scheduling.trial import Outcome, TrialScheduler
from ai.backend.infra.process.memory import collector_paused
from bench import loads
from bench.figures import Figure, benchmark, spread

AGENTS, QUESTIONS = 1_000, 200
TARGET_MS = 50.0


def _question(number: int, like: PendingSession) -> PendingSession:
    """A request as the queue has them, with an amount of its own, so that no answer is a cached one."""
    slots = ResourceSlot({**like.kernels[0].slots, "mem": like.kernels[0].slots["mem"] + number})
    kernel = replace(like.kernels[0], kernel_id=KernelId(UUID(int=2**100 + number)), slots=slots)
    return replace(like, session_id=SessionId(UUID(int=2**101 + number)), kernels=(kernel,), enqueued_at=loads.NOW)


def _measure(name: str, snapshot: Snapshot) -> Figure:
    trials, policy = TrialScheduler(), Policy()
    trials.run(snapshot, policy, now=loads.NOW, rng=random.Random(1))
    likes = list(snapshot.pending[:QUESTIONS]) or [loads.snapshot(agents=1, pending=1, accelerators=8).pending[0]]
    samples: list[float] = []
    outcomes: list[Outcome] = []
    for number in range(QUESTIONS):
        asked = _question(number, likes[number % len(likes)])
        started = time.perf_counter()
        with collector_paused():
            trial = trials.run(snapshot, policy, now=loads.NOW, rng=random.Random(1), tried=(asked,))
            for proposal in trial.proposals:
                kernel = replace(asked.kernels[0], slots=proposal.slots)
                trials.run(
                    snapshot, policy, now=loads.NOW, rng=random.Random(1), tried=(replace(asked, kernels=(kernel,)),)
                )
        samples.append((time.perf_counter() - started) * 1_000)
        outcomes.append(trial.outcome)
    value = statistics.median(samples)
    return Figure(
        name=f"explain, {name}",
        value=value,
        unit="ms",
        target=f"<= {TARGET_MS:g}",
        holds=value <= TARGET_MS,
        detail={**spread(samples), "start now": outcomes.count(Outcome.NOW) / len(outcomes)},
    )


@benchmark("explain", "a verdict on a request at 1,000 agents, with the smaller requests that would start")
def explain() -> Sequence[Figure]:
    free = loads.snapshot(agents=AGENTS, pending=100, accelerators=8)
    full = loads.full(agents=AGENTS, pending=1_000)
    return [_measure("free cluster", free), _measure(f"full cluster, {len(full.pending):,} waiting", full)]
