"""The published peer's scheduler in an environment of its own, measured as a black box in the same run as ours."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path

from ai.backend.core.scheduling.snapshot import Snapshot
from bench.environments import ensure

HERE = Path(__file__).parent
REQUIREMENT = "backend.ai-manager==23.9.10"


def peer_seconds(snapshot: Snapshot, totals: Sequence[dict[str, str]]) -> tuple[float, int]:
    """CPU seconds and sessions placed, FIFO and dispersed, on empty agents of these totals."""
    load = {"agents": list(totals), "sessions": [s.total.to_json() for s in snapshot.pending]}
    process = subprocess.run(
        [str(ensure("bench-peer-manager-venv", (REQUIREMENT,))), str(HERE / "peer_scheduler_worker.py")],
        input=json.dumps(load) + "\n",
        text=True,
        check=True,
        stdout=subprocess.PIPE,
        timeout=1800,
    )
    answer = json.loads(process.stdout.splitlines()[-1])
    return float(answer["seconds"]), int(answer["placed"])
