"""Measures the command line: its start alone, and plain commands against a warm cluster."""

from __future__ import annotations

import os
import statistics
import sys
from collections.abc import Sequence

from bench.cluster import running_cluster
from bench.figures import Figure, benchmark, spread
from bench.processes import BACKENDAI, cpu_seconds

HELP_LIMIT_MS = 150.0
PEER_HELP_MS = 1270.0
RATIO_LIMIT = 4.0
_ROUNDS = 9


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


@benchmark("command-line", "CPU time of plain commands over that of an empty interpreter")
def command_line() -> Sequence[Figure]:
    """Each command in turn with an empty interpreter, so that a busy machine slows both."""
    limits = ["-r", "cpu=1", "-r", "mem=64m"]
    with running_cluster() as cluster:
        env = {**os.environ, **cluster.user_env}
        cpu_seconds([BACKENDAI, "create", "-q", "-t", "kept", *limits, "python"], env)
        commands = {
            "ps": ["ps"],
            "info": ["info", "kept"],
            "run": ["run", "--rm", *limits, "-c", "pass", "python"],
            "create": ["create", "-q", "-t", "made", *limits, "python"],
            "rm": ["rm", "made"],
        }
        samples: dict[str, list[float]] = {name: [] for name in commands}
        bare: list[float] = []
        for number in range(_ROUNDS + 1):
            for name, command in commands.items():
                taken = cpu_seconds([BACKENDAI, *command], env)
                if number:
                    samples[name].append(taken)
            if number:
                bare.append(cpu_seconds([sys.executable, "-c", "pass"]))
    floor = statistics.median(bare)
    return [
        Figure(
            name=f"{name}-cpu",
            value=statistics.median(taken_times) / floor,
            unit="empty interpreters",
            reference=floor * 1000,
            reference_is="ms of an empty interpreter",
            target=f"<= {RATIO_LIMIT:g}",
            holds=statistics.median(taken_times) <= RATIO_LIMIT * floor,
            detail=spread([value * 1000 for value in taken_times]),
        )
        for name, taken_times in samples.items()
    ]
