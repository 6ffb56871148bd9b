"""Simulates a trace of sessions on a cluster's snapshot under one scheduling policy.

Sessions arrive and end, agents fail and come back.

Usage: python -m ai.backend.simulator.trace SNAPSHOT.json TRACE.json [--order NAME] [--placement NAME] [--fail HOURS]

A trace is a list of ``{"at": seconds, "runs": seconds, "slots": {slot: quantity}}``, with ``"scope": [domain, project,
user]`` and ``"priority"`` where they matter. The snapshot gives the agents. What an agent ran when it failed is
requested again at once.
"""

from __future__ import annotations

import argparse
import heapq
import json
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec

from ai.backend.common.errors import InvalidInput
from ai.backend.common.ids import AgentId, KernelId, SessionId
from ai.backend.common.slots import ResourceSlot
from ai.backend.common.structs import replace
from ai.backend.core.scheduling.decide import IncrementalScheduler, decide
from ai.backend.core.scheduling.index.agent_state import NodeClassCache
from ai.backend.core.scheduling.ordering.fair_share import decay_averages, occupied_by_scope
from ai.backend.core.scheduling.policy import ORDERS, PLACEMENTS, SHARED_ORDERS, Policy
from ai.backend.core.scheduling.snapshot import HeldKernel, PendingKernel, PendingSession, Snapshot, load_json

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
_HALF_LIFE_S = 86_400.0
_REPAIR_TIME_S = 3_600.0


class Job(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Describes one session in a trace. Times are in seconds."""

    at: float
    runs: float
    slots: dict[str, str]
    scope: tuple[str, ...] = ()
    priority: int = 10


@dataclass(slots=True)
class Outcome:
    """Holds the result of a replay: the waiting times of sessions, and the numbers of done, killed and stuck sessions.

    ``waits`` are the seconds between each run session's last request and its start.
    """

    waits: list[float] = field(default_factory=list)
    done: int = 0
    killed: int = 0
    failures: int = 0
    stuck: int = 0
    ended_at: float = 0.0

    def as_dict(self) -> dict[str, float]:
        sorted_waits = sorted(self.waits)
        median_wait_s = sorted_waits[len(sorted_waits) // 2] if sorted_waits else 0.0
        return {
            "done": self.done,
            "killed": self.killed,
            "failures": self.failures,
            "stuck": self.stuck,
            "median wait, s": median_wait_s,
            "longest wait, s": sorted_waits[-1] if sorted_waits else 0.0,
            "simulated, s": self.ended_at,
        }


@dataclass(slots=True)
class _Running:
    session: PendingSession
    job: Job
    agent_id: AgentId
    held_kernel: HeldKernel


class Replay:
    """Simulates a cluster that runs the sessions of a trace, from event to event.

    Equal seeds give equal results.
    """

    def __init__(self, cluster: Snapshot, policy: Policy, *, seed: int, fail_every_s: float = 0.0) -> None:
        self._cluster = replace(cluster, pending=(), running=())
        self._policy = policy
        self._rng = random.Random(seed)
        self._fail_every_s = fail_every_s
        self._events: list[tuple[float, int, str, Any]] = []
        self._count = 0
        self._down: set[AgentId] = set()
        self._running: dict[SessionId, _Running] = {}
        self._waiting: dict[SessionId, tuple[PendingSession, Job, float]] = {}
        self._used: dict[str, ResourceSlot] = {}
        self._amounts: dict[tuple[str, str, str], Decimal] = {
            (agent.agent_id, str(slot.slot_name), str(device.device_id)): slot.amount
            for agent in cluster.agents
            for plugin in agent.plugins
            for device in plugin.devices
            for slot in device.slots
        }
        self._node_classes = NodeClassCache()
        self._scheduler = self._new_scheduler()
        self.outcome = Outcome()

    def _schedule_event(self, time: float, event_kind: str, value: Any) -> None:
        self._count += 1
        heapq.heappush(self._events, (time, self._count, event_kind, value))

    def _new_scheduler(self) -> IncrementalScheduler:
        """Returns the scheduler after agents have joined or left."""
        held_by_agent: dict[AgentId, list[HeldKernel]] = {}
        for running in self._running.values():
            held_by_agent.setdefault(running.agent_id, []).append(running.held_kernel)
        agents = tuple(
            replace(
                agent,
                held=(*agent.held, *held_by_agent.get(agent.agent_id, ())),
                is_schedulable=agent.agent_id not in self._down,
            )
            for agent in self._cluster.agents
        )
        pending_sessions = tuple(session for session, _, _ in self._waiting.values())
        return IncrementalScheduler(replace(self._cluster, agents=agents, pending=pending_sessions), self._node_classes)

    def run(self, trace: Sequence[Job]) -> Outcome:
        """Runs a trace until nothing can change any more. Raises AssertionError if an agent would hold too much."""
        for job in trace:
            self._schedule_event(job.at, "arrive", job)
        if self._fail_every_s:
            self._schedule_event(self._rng.expovariate(1 / self._fail_every_s), "fail", None)
        arriving_count, last_time = len(trace), 0.0
        while self._events and (arriving_count or self._running or (self._waiting and self._down)):
            now, _, event_kind, value = heapq.heappop(self._events)
            usage = occupied_by_scope(
                (running.session.scope, running.held_kernel.slots) for running in self._running.values()
            )
            self._used = decay_averages(self._used, usage, elapsed_s=now - last_time, half_life_s=_HALF_LIFE_S)
            arriving_count, last_time = arriving_count - (event_kind == "arrive"), now
            match event_kind:
                case "arrive":
                    self._enqueue_job(now, value)
                case "end":
                    self._end_session(value)
                case "fail":
                    self._fail_random_agent(now)
                case "repair":
                    self._down.discard(value)
                    self._scheduler = self._new_scheduler()
            self._schedule_pending(now)
        self.outcome.stuck, self.outcome.ended_at = len(self._waiting), last_time
        return self.outcome

    def _enqueue_job(self, now: float, job: Job) -> None:
        self._count += 1
        number = UUID(int=self._count)
        session = PendingSession(
            session_id=SessionId(number),
            name=f"job-{self._count}",
            kernels=(PendingKernel(kernel_id=KernelId(number), slots=ResourceSlot.parse(job.slots), image="any"),),
            enqueued_at=EPOCH + timedelta(seconds=now),
            priority=job.priority,
            scope=job.scope,
        )
        self._waiting[session.session_id] = session, job, now
        self._scheduler.enqueue(session)

    def _end_session(self, session_id: SessionId) -> None:
        ended_session = self._running.pop(session_id, None)
        if ended_session is not None:
            self._scheduler.release(ended_session.agent_id, ended_session.held_kernel.kernel_id)
            self.outcome.done += 1

    def _fail_random_agent(self, now: float) -> None:
        self._schedule_event(now + self._rng.expovariate(1 / self._fail_every_s), "fail", None)
        live_agent_ids = [agent.agent_id for agent in self._cluster.agents if agent.agent_id not in self._down]
        if not live_agent_ids:
            return
        failed_id = live_agent_ids[int(self._rng.random() * len(live_agent_ids))]
        self._down.add(failed_id)
        self._schedule_event(now + _REPAIR_TIME_S, "repair", failed_id)
        self.outcome.failures += 1
        lost_sessions = [running for running in self._running.values() if running.agent_id == failed_id]
        for running in lost_sessions:
            del self._running[running.session.session_id]
        self._scheduler = self._new_scheduler()
        self.outcome.killed += len(lost_sessions)
        for running in lost_sessions:
            self._enqueue_job(now, running.job)

    def _schedule_pending(self, now: float) -> None:
        if self._policy.order in SHARED_ORDERS:
            usage = occupied_by_scope(
                (running.session.scope, running.held_kernel.slots) for running in self._running.values()
            )
            self._scheduler.set_usage(usage, self._used)
        plan = decide(self._scheduler, self._policy, now=EPOCH + timedelta(seconds=now), rng=self._rng)
        for placement in plan.placements:
            session, job, waiting_since = self._waiting.pop(placement.session_id)
            (kernel,) = placement.kernels
            if kernel.agent_id in self._down:
                raise AssertionError(f"{session.name} was placed on {kernel.agent_id}, which is down")
            held_kernel = HeldKernel(
                kernel_id=kernel.kernel_id, slots=kernel.slots or session.total, devices=kernel.devices
            )
            self._running[session.session_id] = _Running(session, job, kernel.agent_id, held_kernel)
            self.outcome.waits.append(now - waiting_since)
            self._schedule_event(now + job.runs, "end", session.session_id)
        self._check_device_amounts()

    def _check_device_amounts(self) -> None:
        taken_amounts: dict[tuple[str, str, str], Decimal] = {}
        for running in self._running.values():
            for slot, devices in running.held_kernel.devices.slots.items():
                for device, quantity in devices.items():
                    key = running.agent_id, slot, device
                    taken_amounts[key] = taken_amounts.get(key, Decimal(0)) + quantity
        overfull_devices = [key for key, quantity in taken_amounts.items() if quantity > self._amounts[key]]
        if overfull_devices:
            raise AssertionError(f"{overfull_devices[0]} gives more than it has")


def read_trace(data: bytes) -> list[Job]:
    """Reads a trace. Raises InvalidInput."""
    try:
        return msgspec.json.decode(data, type=list[Job])
    except msgspec.MsgspecError as e:
        raise InvalidInput(f"not a trace: {e}") from None


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Run a trace in simulated time on the agents of a snapshot.")
    parser.add_argument("snapshot", type=Path)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--order", choices=sorted(ORDERS), default=Policy().order)
    parser.add_argument("--placement", choices=sorted(PLACEMENTS), default=Policy().placement)
    parser.add_argument("--fail", type=float, default=0.0, metavar="HOURS", help="mean time between failures of agents")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    replay = Replay(
        load_json(args.snapshot.read_bytes()),
        Policy(order=args.order, placement=args.placement),
        seed=args.seed,
        fail_every_s=args.fail * 3600,
    )
    sys.stdout.write(json.dumps(replay.run(read_trace(args.trace.read_bytes())).as_dict(), indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
