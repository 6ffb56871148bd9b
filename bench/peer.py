"""The published peer's alloc maps and resource slots, in an environment of its own, measured as a black box."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.environments import ensure

HERE = Path(__file__).parent
REQUIREMENTS = HERE / "peer-requirements.txt"
BARE = ("backend.ai-agent==23.9.10", "backend.ai-common==23.9.10")

Measure = Callable[[Mapping[str, Any], int], float]


def ensure_peer() -> Path:
    """The Python of the peer's environment. Raises as :func:`bench.environments.ensure`."""
    return ensure("bench-peer-venv", ("-r", str(REQUIREMENTS)), ("--no-deps", *BARE))


@contextmanager
def peer() -> Iterator[Measure]:
    """Yield a function that runs a case of bench/peer_worker.py so many times in the peer's process and returns the CPU
    seconds of one."""
    command = [str(ensure_peer()), str(HERE / "peer_worker.py")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        stdin, stdout = process.stdin, process.stdout
        if stdin is None or stdout is None:
            raise RuntimeError("the peer's process has no pipes")

        def measure(case: Mapping[str, Any], number: int) -> float:
            stdin.write(json.dumps({**case, "number": number}) + "\n")
            stdin.flush()
            return float(stdout.readline())

        yield measure
        stdin.close()
