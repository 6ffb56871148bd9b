"""Measures sessions: creating one, executing in one, and the whole command."""

from __future__ import annotations

import os
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench.cluster import Api, running_cluster
from bench.figures import Figure, benchmark, spread
from bench.processes import BACKENDAI, wall_seconds

CREATE_LIMIT_MS = 80.0
EXECUTE_LIMIT_MS = 10.0
PEER_EXECUTE_MS = 61.0
RUN_LIMIT_S = 0.6


def bare_sandbox() -> list[str]:
    """Return the floor of a session: an interpreter that does nothing, in namespaces of its own.

    Raises:
        FileNotFoundError: bubblewrap is not installed.
    """
    bwrap = shutil.which("bwrap")
    if bwrap is None:
        raise FileNotFoundError("this benchmark needs bubblewrap (package bubblewrap)")
    namespaces = ["--unshare-pid", "--unshare-ipc", "--unshare-uts"]
    mounts = ["--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp"]
    hidden = [prefix for prefix in (sys.prefix, sys.base_prefix) if Path(prefix).is_relative_to("/tmp")]
    shown = [word for prefix in dict.fromkeys(hidden) for word in ("--ro-bind", prefix, prefix)]
    return [bwrap, *namespaces, *mounts, *shown, sys.executable, "-c", "pass"]


def creation_in_turns(
    api: Api, bare: Callable[[], float], *, warm_up: int, rounds: int, **options: Any
) -> tuple[list[float], list[float]]:
    """Milliseconds of creating a session, and of its floor, in turns, so that a busy machine slows both.

    Args:
        api: the user's connection.
        bare: runs the floor once; its seconds.
        warm_up, rounds: how often, before it counts and when it does.
        options: of each session.
    """
    created: list[float] = []
    floors: list[float] = []
    for number in range(warm_up + rounds):
        taken = bare()
        started = time.perf_counter()
        name = api.create(**options)
        if number >= warm_up:
            created.append((time.perf_counter() - started) * 1000)
            floors.append(taken * 1000)
        api.destroy(name)
    return created, floors


def added_figure(
    name: str, created: Sequence[float], floors: Sequence[float], reference_is: str, limit_ms: float
) -> Figure:
    """Returns the cost of sessions over their floor, by the medians of both."""
    floor = statistics.median(floors)
    value = statistics.median(created) - floor
    return Figure(
        name=name,
        value=value,
        unit="ms",
        reference=floor,
        reference_is=reference_is,
        target=f"<= {limit_ms:g} ms added",
        holds=value <= limit_ms,
        detail=spread(created),
    )


@benchmark("create", "session create -> RUNNING over bare `bwrap ... python -c pass`")
def create() -> Sequence[Figure]:
    with running_cluster() as cluster:
        created, floors = creation_in_turns(cluster.user, lambda: wall_seconds(bare_sandbox()), warm_up=3, rounds=31)
    return [
        added_figure("session-create-added", created, floors, "bare bubblewrap with python -c pass", CREATE_LIMIT_MS)
    ]


def execute_once(api: Api, session: str, code: str) -> str:
    """Run one query to its end and return its standard output."""
    answer = api.call("POST", f"/session/{session}", {"mode": "query", "code": code})["result"]
    text = ""
    while True:
        text += "".join(part[1] for part in answer["console"] if part[0] == "stdout")
        if answer["status"] == "finished":
            return text
        step = {"mode": "continue", "code": "", "runId": answer["runId"]}
        answer = api.call("POST", f"/session/{session}", step)["result"]


@benchmark("execute", "query-mode execute round trip through REST")
def execute() -> Sequence[Figure]:
    samples = []
    with running_cluster() as cluster:
        api = cluster.user
        name = api.create()
        for number in range(320):
            started = time.perf_counter()
            printed = execute_once(api, name, f"print({number})")
            if printed != f"{number}\n":
                raise RuntimeError(f"the session printed {printed!r} instead of {number}")
            samples.append((time.perf_counter() - started) * 1000)
        api.destroy(name)
    samples = samples[20:]
    value = statistics.median(samples)
    return [
        Figure(
            name="execute-round-trip-p50",
            value=value,
            unit="ms",
            reference=PEER_EXECUTE_MS,
            reference_is="the published peer",
            target=f"p50 <= {EXECUTE_LIMIT_MS:g} ms",
            holds=value <= EXECUTE_LIMIT_MS,
            detail=spread(samples),
        )
    ]


@benchmark("run-command", "`backend.ai run --rm -c` on a warm cluster over bare `python -c`")
def run_command() -> Sequence[Figure]:
    whole, bare = [], []
    with running_cluster() as cluster:
        env = {**os.environ, **cluster.user_env}
        command = [BACKENDAI, "run", "--rm", "-r", "cpu=1", "-r", "mem=64m", "-c", "print(1)", "python"]
        wall_seconds(command, env)
        for _ in range(11):
            bare.append(wall_seconds([sys.executable, "-c", "print(1)"]))
            whole.append(wall_seconds(command, env))
    floor = statistics.median(bare)
    value = statistics.median(whole) - floor
    return [
        Figure(
            name="run-command-added",
            value=value,
            unit="s",
            reference=floor,
            reference_is="bare python -c",
            target=f"<= {RUN_LIMIT_S:g} s added",
            holds=value <= RUN_LIMIT_S,
            detail=spread(whole) | {"peer_on_docker": 5.5},
        )
    ]
