"""Runs in the published peer's environment: its FIFO scheduler, dispersed, as its dispatcher calls it for one resource
group. Reads one JSON line ``{"agents": [slots...], "sessions": [slots...]}``, prints the CPU seconds and how many were
placed."""

from __future__ import annotations

import importlib
import json
import sys
import time
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

TYPES = importlib.import_module("ai.backend.common.types")
FIFO = importlib.import_module("ai.backend.manager.scheduler.fifo")


def main() -> None:
    load = json.loads(sys.stdin.readline())
    zero = dict.fromkeys(load["agents"][0], "0")

    def numbers(slots: dict[str, str]) -> Any:
        return TYPES.ResourceSlot({slot: Decimal(quantity) for slot, quantity in {**zero, **slots}.items()})

    agents = [
        SimpleNamespace(id=f"i-{n:06}", available_slots=numbers(slots), occupied_slots=numbers({}))
        for n, slots in enumerate(load["agents"])
    ]
    sessions = [
        SimpleNamespace(id=n, requested_slots=numbers(slots), status_data=None)
        for n, slots in enumerate(load["sessions"])
    ]
    total = numbers({})
    for agent in agents:
        total = total + agent.available_slots
    scheduler = FIFO.FIFOSlotScheduler(SimpleNamespace(), {"num_retries_to_skip": 0})
    priority = ["cuda", "rocm", "tpu", "cpu", "mem"]
    start = time.process_time()
    placed = 0
    pending = list(sessions)
    by_id = {a.id: a for a in agents}
    while pending:
        chosen = scheduler.pick_session(total, pending, [])
        session = next(s for s in pending if s.id == chosen)
        pending.remove(session)
        agent_id = scheduler.assign_agent_for_session(agents, session, TYPES.AgentSelectionStrategy.DISPERSED, priority)
        if agent_id is not None:
            by_id[agent_id].occupied_slots = by_id[agent_id].occupied_slots + session.requested_slots
            placed += 1
    print(json.dumps({"seconds": time.process_time() - start, "placed": placed}), flush=True)


main()
