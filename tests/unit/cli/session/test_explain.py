"""How verdicts read on a terminal."""

from __future__ import annotations

from typing import Any

import pytest

from ai.backend.cli.session.explain import explanation_facts, verdict_line


@pytest.mark.parametrize(
    ("verdict", "message", "line"),
    [
        ("now", "starts now; 3 of 12 agents could take it", "starts now; 3 of 12 agents could take it"),
        ("waits", "needs 4 cpu on one node", "waits: needs 4 cpu on one node"),
        ("waits", "waits behind another session, which came first", "waits behind another session, which came first"),
        ("never", "Your policy allows 4 of cpu in all.", "cannot: Your policy allows 4 of cpu in all."),
        ("ended", "The session is TERMINATED.", "The session is TERMINATED."),
    ],
)
def test_verdicts(verdict: str, message: str, line: str) -> None:
    assert verdict_line({"verdict": verdict, "message": message}) == line


def test_facts() -> None:
    mine = {"id": "1", "name": "mine", "status": "RUNNING", "slots": {}}
    explanation: dict[str, Any] = {
        "reason": "insufficient-resource",
        "remedy": "others",
        "count": 3,
        "placed": 1,
        "position": 2,
        "waiting": 4,
        "ahead": {"count": 1, "visible": []},
        "holders": {"count": 3, "visible": [mine]},
        "reserved": {"reason": "reserved", "count": 1, "agents": ["i-1"]},
        "agents": {"total": 2, "startable": 0, "excluded": [{"reason": "busy", "count": 2, "agents": []}]},
        "withheld": [
            {"agent": "", "device_name": "cuda", "device_id": f"GPU-{number}", "reason": reason}
            for number, reason in enumerate(["cordoned: fan", "tainted burn-in", *["unhealthy"] * 5])
        ],
        "limits": [{"scope": "keypair", "slot": "cpu", "limit": "8", "used": "6", "requested": "4"}],
        "nearest": [{"resources": {"cpu": "2"}, "cluster_size": 2}],
    }
    assert dict(explanation_facts(explanation, {})) == {
        "Reason": "insufficient-resource",
        "Remedy": "It starts when somebody frees what it lacks.",
        "Start Now": "1 of 3",
        "Place": "2 of 4; ahead: 1 sessions of others",
        "Kept for It": "1 agents: i-1",
        "Held by": "mine, 2 more",
        "Agents": "0 of 2 could take it; 2 busy",
        "Withheld": "cuda GPU-0 (cordoned: fan); cuda GPU-1 (tainted burn-in); cuda GPU-2 (unhealthy); "
        "cuda GPU-3 (unhealthy); cuda GPU-4 (unhealthy); 2 more",
        "Limit of Keypair": "cpu=8; used cpu=6; requested cpu=4",
        "Would Start Now": "cpu=2, 2 kernels",
    }
    assert not list(explanation_facts({"verdict": "started", "message": "The session is RUNNING."}, {}))
