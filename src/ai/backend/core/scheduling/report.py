"""Formats a plan for a person."""

from __future__ import annotations

from ai.backend.common.ids import SessionId
from ai.backend.core.scheduling.plan import Plan
from ai.backend.core.scheduling.snapshot import Snapshot


def describe(snapshot: Snapshot, plan: Plan, *, only: SessionId | None = None) -> str:
    """Returns a line for each pending session, or for one of them: its placement, or why it waits."""
    names = {s.session_id: s.name for s in snapshot.pending}
    lines = []
    for placement in plan.placements:
        kernels = []
        for k in placement.kernels:
            slots = [f"{slot} on {', '.join(sorted(per))}" for slot, per in sorted(k.devices.slots.items())]
            kernels.append(f"{k.agent_id} ({'; '.join(slots)})")
        lines.append((placement.session_id, f"placed   {names[placement.session_id]}: {', '.join(kernels)}"))
    lines += [(s.session_id, f"waiting  {names[s.session_id]}: {s.message} [{s.reason}]") for s in plan.skips]
    chosen = [text for session_id, text in lines if only in (None, session_id)]
    if only is None:
        chosen += [f"reserved {agent_id} for {names[session_id]}" for agent_id, session_id in plan.reserved]
        chosen += [
            f"ending   {e.session_id} in favour of {names[e.in_favour_of]}{', to wait again' if e.starts_over else ''}"
            for e in plan.evictions
        ]
        chosen += [f"unusable {agent_id}: {why}" for agent_id, why in plan.broken_agents]
    return "\n".join(chosen) or f"no session waits in resource group {snapshot.resource_group}"
