"""The published peer's scheduler in an environment of its own, measured as a black box in the same run as ours."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from ai.backend.core.scheduling.snapshot import Snapshot

HERE = Path(__file__).parent
REQUIREMENT = "backend.ai-manager==23.9.10"
VENV = HERE.parent / ".cache" / "bench-peer-manager-venv"


def ensure_peer() -> Path:
    """The Python of the peer's environment, made if it is not there.

    Raises:
        subprocess.CalledProcessError: it cannot be installed, or there is no Python 3.11.
    """
    python, stamp = VENV / "bin" / "python", VENV / ".requirement"
    if not (stamp.exists() and stamp.read_text() == REQUIREMENT):
        maker = sys.executable if sys.version_info[:2] == (3, 11) else "python3.11"
        for command in (
            [maker, "-m", "venv", "--clear", str(VENV)],
            [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", REQUIREMENT],
        ):
            subprocess.run(command, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        stamp.write_text(REQUIREMENT)
    return python


def peer_seconds(snapshot: Snapshot, totals: Sequence[dict[str, str]]) -> tuple[float, int]:
    """CPU seconds and sessions placed, FIFO and dispersed, on empty agents of these totals."""
    load = {"agents": list(totals), "sessions": [s.total.to_json() for s in snapshot.pending]}
    told = subprocess.run(
        [str(ensure_peer()), str(HERE / "peer_scheduler_worker.py")],
        input=json.dumps(load) + "\n",
        text=True,
        check=True,
        stdout=subprocess.PIPE,
        timeout=1800,
    )
    answer = json.loads(told.stdout.splitlines()[-1])
    return float(answer["seconds"]), int(answer["placed"])
