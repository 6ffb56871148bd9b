"""Measures the command line without a cluster."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence

from bench.figures import Figure, benchmark, spread
from bench.processes import BACKENDAI, cpu_seconds

HELP_LIMIT_MS = 150.0
PEER_HELP_MS = 1270.0


@benchmark("help", "CPU time of `backend.ai --help`")
def help_text() -> Sequence[Figure]:
    cpu_seconds([BACKENDAI, "--help"])
    samples, bare = [], []
    for _ in range(15):
        samples.append(cpu_seconds([BACKENDAI, "--help"]) * 1000)
        bare.append(cpu_seconds([sys.executable, "-c", "pass"]) * 1000)
    value = statistics.median(samples)
    detail = spread(samples) | {"bare_python": statistics.median(bare)}
    return [
        Figure(
            name="help-cpu",
            value=value,
            unit="ms",
            reference=PEER_HELP_MS,
            reference_is="the published peer",
            target=f"<= {HELP_LIMIT_MS:g} ms",
            holds=value <= HELP_LIMIT_MS,
            detail=detail,
        )
    ]
