"""Decide again on a snapshot that was dumped from a live manager.

Usage: python -m ai.backend.simulator.replay SNAPSHOT.json [--placement NAME] [--now ISO-TIME] [--seed N]
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from ai.backend.core.scheduling.decide import decide
from ai.backend.core.scheduling.plan import Plan
from ai.backend.core.scheduling.policy import ORDERS, PLACEMENTS, Policy
from ai.backend.core.scheduling.snapshot import Snapshot, load_json


def replay(snapshot: Snapshot, policy: Policy, *, now: datetime, seed: int = 0) -> Plan:
    """The plan that a manager would make; equal arguments give an equal plan."""
    return decide(snapshot, policy, now=now, rng=random.Random(seed))


def describe(snapshot: Snapshot, plan: Plan) -> str:
    """One line for each pending session: where it goes, or why not."""
    names = {s.session_id: s.name for s in snapshot.pending}
    lines = []
    for placement in plan.placements:
        kernels = []
        for k in placement.kernels:
            slots = [f"{slot} on {', '.join(sorted(per))}" for slot, per in sorted(k.devices.slots.items())]
            kernels.append(f"{k.agent_id} ({'; '.join(slots)})")
        lines.append(f"placed   {names[placement.session_id]}: {', '.join(kernels)}")
    lines += [f"waiting  {names[s.session_id]}: {s.message} [{s.reason}]" for s in plan.skips]
    lines += [f"unusable {agent_id}: {why}" for agent_id, why in plan.broken_agents]
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Decide again on a scheduling snapshot.")
    parser.add_argument("snapshot", type=Path)
    parser.add_argument("--order", choices=sorted(ORDERS), default=Policy().order)
    parser.add_argument("--placement", choices=sorted(PLACEMENTS), default=Policy().placement)
    parser.add_argument("--now", type=datetime.fromisoformat, default=None, help="default: the present time")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    snapshot = load_json(args.snapshot.read_bytes())
    now = args.now or datetime.now(UTC)
    policy = Policy(order=args.order, placement=args.placement)
    plan = replay(snapshot, policy, now=now if now.tzinfo else now.replace(tzinfo=UTC), seed=args.seed)
    sys.stdout.write(describe(snapshot, plan) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
