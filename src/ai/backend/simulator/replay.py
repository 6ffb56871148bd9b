"""Decide again on a snapshot that was dumped from a live manager.

Usage: python -m ai.backend.simulator.replay SNAPSHOT.json [--order NAME] [--placement NAME] [--now ISO-TIME] [--seed N]
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
from ai.backend.core.scheduling.report import describe
from ai.backend.core.scheduling.snapshot import Snapshot, load_json


def replay(snapshot: Snapshot, policy: Policy, *, now: datetime, seed: int = 0) -> Plan:
    """The plan that a manager would make; equal arguments give an equal plan."""
    return decide(snapshot, policy, now=now, rng=random.Random(seed))


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Decide again on a scheduling snapshot.")
    parser.add_argument("snapshot", type=Path)
    parser.add_argument("--order", choices=sorted(ORDERS), help="default: as dumped")
    parser.add_argument("--placement", choices=sorted(PLACEMENTS), help="default: as dumped")
    parser.add_argument("--now", type=datetime.fromisoformat, default=None, help="default: the present time")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    snapshot = load_json(args.snapshot.read_bytes())
    now = args.now or datetime.now(UTC)
    policy = Policy.of(snapshot.policy, order=args.order, placement=args.placement)
    plan = replay(snapshot, policy, now=now if now.tzinfo else now.replace(tzinfo=UTC), seed=args.seed)
    sys.stdout.write(describe(snapshot, plan) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
