"""Measures small batch jobs against Slurm on the same machine: how many a second, what each costs, and `run`.

One process submits them here by the SDK, eight requests at once; eight shells submit them to Slurm by `sbatch`. The
node declares 64 processors to both. Sessions here are isolated by bubblewrap, Slurm's jobs are not.
"""

from __future__ import annotations

import os
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from ai.backend.node.linux.syscalls import become_subreaper
from bench.cluster import Cluster, free_port, lift_rate_limits, temporary_folder, wait_until_serving
from bench.figures import Figure, benchmark, spread
from bench.processes import BACKENDAI, busy_seconds, tree, wall_seconds
from bench.slurm import PROCESSORS, running_slurm

JOBS, AT_ONCE, ROUNDS = 100, 8, 3
RUNS = 7
LOOK_S = 0.2
RATE_TARGET, COST_TARGET, RUN_TARGET = 1.0, 1.5, 3.0
AGENT_SETTINGS = f"[plugins.cpu]\ndeclared-cpu = {PROCESSORS}\n"


def spent_seconds() -> float:
    """Returns the processor time of all that this process has started, also of what outlived its parent.

    This process must be a subreaper. It collects what was handed to it: the kernel adds what a child used to its
    parent's account in nanoseconds, while a process that is shown in /proc is rounded down to a hundredth of a second.
    """
    for pid in tree(os.getpid())[1:]:
        with suppress(OSError, IndexError):
            state, parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:2]
            if state == "Z" and int(parent) == os.getpid():
                os.waitpid(pid, os.WNOHANG)
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    total = usage.ru_utime + usage.ru_stime
    for pid in tree(os.getpid())[1:]:
        with suppress(OSError):
            total += busy_seconds([pid])
    return total


@contextmanager
def overcommitted_cluster() -> Iterator[Cluster]:
    """Yields an embedded cluster, a child of this process, whose node declares as many processors as Slurm's."""
    with temporary_folder() as folder:
        settings = folder / "agent.toml"
        settings.write_text(AGENT_SETTINGS)
        command = [BACKENDAI, "up", "--data-dir", str(folder), "--port", str(free_port())]
        command += ["--agent-config", str(settings)]
        with (folder / "up.out").open("w") as log:
            server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            cluster = wait_until_serving(folder, server)
            lift_rate_limits(cluster)
            yield cluster
        finally:
            server.send_signal(signal.SIGINT)
            server.wait(60)


def submit_here(environ: Mapping[str, str]) -> tuple[float, float]:
    """Returns the seconds until all jobs were submitted, and until all had ended."""
    command = [sys.executable, "-m", "bench.jobs_submit", str(JOBS), str(AT_ONCE)]
    done = subprocess.run(command, env={**os.environ, **environ}, check=True, stdout=subprocess.PIPE, text=True)
    submitted_s, ended_s = map(float, done.stdout.split())
    return submitted_s, ended_s


def submit_to_slurm(environ: Mapping[str, str]) -> tuple[float, float]:
    started = time.perf_counter()
    loop = f"for i in $(seq {JOBS // AT_ONCE}); do sbatch -Q -o /dev/null --wrap true || exit 1; done"
    submitters = [
        subprocess.Popen(["sh", "-c", loop], env=dict(environ), stdout=subprocess.DEVNULL) for _ in range(AT_ONCE)
    ]
    if any(submitter.wait() for submitter in submitters):
        raise RuntimeError("sbatch failed")
    submitted_s = time.perf_counter() - started
    while subprocess.run(["squeue", "-h"], env=dict(environ), check=True, capture_output=True).stdout.strip():
        time.sleep(LOOK_S)
    return submitted_s, time.perf_counter() - started


def rate_and_cost(
    submit: Callable[[Mapping[str, str]], tuple[float, float]], environ: Mapping[str, str], jobs: int
) -> tuple[float, float]:
    """Returns jobs ended in a second, and the seconds of processor time of each."""
    before = spent_seconds()
    _, ended_s = submit(environ)
    return jobs / ended_s, (spent_seconds() - before) / jobs


@benchmark("jobs", "batch jobs of `true` and `run` against Slurm's sbatch and srun: rate and processor time")
def jobs() -> Sequence[Figure]:
    become_subreaper()
    theirs: list[tuple[float, float]] = []
    ours: list[tuple[float, float]] = []
    run_times: list[float] = []
    srun_times: list[float] = []
    with running_slurm() as slurm, overcommitted_cluster() as cluster:
        for number in range(ROUNDS + 1):  # the first only warms up
            slurm_result = rate_and_cost(submit_to_slurm, slurm, JOBS // AT_ONCE * AT_ONCE)
            result = rate_and_cost(submit_here, cluster.user_env, JOBS)
            if number:
                theirs.append(slurm_result)
                ours.append(result)
        run = [BACKENDAI, "run", "--rm", "-c", "pass", "python"]
        srun = [shutil.which("srun") or "srun", "python3", "-c", "pass"]
        for number in range(RUNS + 1):
            srun_s = wall_seconds(srun, slurm)
            run_s = wall_seconds(run, {**os.environ, **cluster.user_env})
            if number:
                srun_times.append(srun_s)
                run_times.append(run_s)
    return [
        _compared("jobs-rate", [rate for rate, _ in ours], [rate for rate, _ in theirs], "jobs/s", RATE_TARGET),
        _compared("jobs-cost", [cost for _, cost in ours], [cost for _, cost in theirs], "s", COST_TARGET),
        _compared("jobs-run", run_times, srun_times, "s", RUN_TARGET),
    ]


def _compared(name: str, ours: Sequence[float], theirs: Sequence[float], unit: str, target: float) -> Figure:
    value, reference = statistics.median(ours), statistics.median(theirs)
    is_rate = unit == "jobs/s"
    return Figure(
        name=name,
        value=value,
        unit=unit,
        reference=reference,
        reference_is="Slurm in the same run",
        target=f"{'>=' if is_rate else '<='} {target:g} of Slurm's",
        holds=value >= target * reference if is_rate else value <= target * reference,
        detail=spread(ours) | {f"slurm {key}": amount for key, amount in spread(theirs).items()},
    )
