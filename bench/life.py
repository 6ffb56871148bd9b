"""Prints what one session costs from its creation to its end, in counts that do not depend on the machine's speed.

A cluster runs one session after another: batch sessions of `true`, then interactive ones that are created and
destroyed. Its process counts commits, SQL statements and thread hops itself. `strace`, where it is installed, counts
the system calls of all its processes: forks, program starts, wake-ups of event loops, syncs of files, messages sent and
their bytes. What the cluster does while it idles for the same time is subtracted.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from bench.cluster import Api, Cluster, free_port, temporary_folder, wait_until_serving
from bench.figures import Figure, benchmark
from bench.processes import busy_seconds, command_of, tree

WARM_UP, ROUNDS = 3, 10
_CALLS = {
    "forks": ("clone", "clone3", "fork", "vfork"),
    "program starts": ("execve", "execveat"),
    "loop wake-ups": ("epoll_wait", "epoll_pwait", "epoll_pwait2", "poll", "ppoll", "select", "pselect6"),
    "file syncs": ("fsync", "fdatasync", "sync_file_range"),
    "messages": ("sendto", "sendmsg"),
}
_COUNT_OF = {call: name for name, calls in _CALLS.items() for call in calls}
_TRACED = re.compile(r"(?:\d+ +)?(?:<\.\.\. )?(\w+)(?:\(| resumed).*= (\d+)")
Counts = Mapping[str, float]


@contextmanager
def counting_cluster() -> Iterator[Cluster]:
    """Yields an embedded cluster whose process counts; see bench/life_server.py."""
    with temporary_folder() as folder:
        command = [
            sys.executable,
            "-m",
            "bench.life_server",
            "up",
            "--data-dir",
            str(folder),
            "--port",
            str(free_port()),
        ]
        environ = {**os.environ, "BENCH_COUNTS": str(folder / "counts.json")}
        with (folder / "up.out").open("w") as log:
            server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environ)
        try:
            yield wait_until_serving(folder, server)
        finally:
            server.send_signal(signal.SIGINT)
            server.wait(60)


def own_counts(cluster: Cluster) -> Counter[str]:
    """Returns what the cluster's process has counted since its start."""
    path = cluster.data_dir / "counts.json"
    path.unlink(missing_ok=True)
    os.kill(cluster.pid, signal.SIGUSR1)
    deadline = time.monotonic() + 10
    while not path.exists():
        if time.monotonic() > deadline:
            raise TimeoutError("the cluster does not write its counts")
        time.sleep(0.01)
    return Counter(json.loads(path.read_text()))


def traced_calls(trace: str) -> Counter[str]:
    """Counts the successful system calls in the output of `strace -f`; ``bytes sent`` is the sum over messages."""
    counts: Counter[str] = Counter()
    for line in trace.splitlines():
        match = _TRACED.match(line)
        if match is None or match[1] not in _COUNT_OF:
            continue
        name = _COUNT_OF[match[1]]
        counts[name] += 1
        if name == "messages":
            counts["bytes sent"] += int(match[2])
    return counts


def _await_tracer(pids: Sequence[str], tracer: subprocess.Popen[bytes]) -> None:
    """Waits until a tracer is attached to every one of these processes that lives."""
    deadline = time.monotonic() + 30
    for pid in pids:
        while "\nTracerPid:\t0\n" in _status(pid):
            if tracer.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"strace is not attached to the process {pid}")
            time.sleep(0.01)


def _status(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return ""  # it has ended


@contextmanager
def traced(cluster: Cluster) -> Iterator[Counter[str]]:
    """Yields the counts of system calls of all the cluster's processes, which are there when the block has ended."""
    counts: Counter[str] = Counter()
    output = cluster.data_dir / "strace.out"
    attached = [word for pid in tree(cluster.pid) for word in ("-p", str(pid))]
    command = ["strace", "-f", "-qq", "-e", f"trace={','.join('?' + call for call in _COUNT_OF)}", "-s", "0"]
    tracer = subprocess.Popen([*command, "-o", str(output), *attached], stderr=subprocess.DEVNULL)
    try:
        _await_tracer(attached[1::2], tracer)
        yield counts
    finally:
        tracer.send_signal(signal.SIGINT)
        tracer.wait(30)
        counts.update(traced_calls(output.read_text(errors="replace")))


def processor_times(cluster: Cluster) -> dict[str, float]:
    """Returns the seconds of each process of the cluster, with those of its ended children."""
    times: dict[str, float] = {}
    for pid in tree(cluster.pid):
        program = "cluster" if pid == cluster.pid else _role_of(command_of(pid))
        times[program] = times.get(program, 0.0) + busy_seconds([pid])
    return times


def _role_of(command: str) -> str:
    roles = ("supervisor", "zygote", "volume_worker", "bwrap")
    program = command.partition(" ")[0].rpartition("/")[2]
    return next((role for role in roles if role in command), program or "ended")


def run_batch(api: Api) -> None:
    """Runs a batch session of `true` to its end."""
    name = api.create(sessionType="batch", startupCommand="true", enqueueOnly=True)
    while api.call("GET", f"/session/{name}").get("status") not in ("TERMINATED", "CANCELLED"):
        time.sleep(0.3)


def run_interactive(api: Api) -> None:
    """Creates an interactive session and destroys it."""
    api.destroy(api.create())


def difference(after: Counts, before: Counts) -> dict[str, float]:
    return {name: after[name] - before.get(name, 0.0) for name in after}


def counts_of(cluster: Cluster, life: Callable[[Api], None]) -> dict[str, float]:
    """Returns the counts of one life: the mean of ``ROUNDS``, without what an idle cluster does in the same time."""
    api = cluster.user
    for _ in range(WARM_UP):
        life(api)

    def measure(action: Callable[[], None]) -> tuple[float, dict[str, float]]:
        before, times_before, started = own_counts(cluster), processor_times(cluster), time.monotonic()
        action()
        elapsed = time.monotonic() - started
        times = {f"ms of {name}": value * 1000 for name, value in processor_times(cluster).items()}
        spent = difference(times, {f"ms of {name}": value * 1000 for name, value in times_before.items()})
        return elapsed, {**difference(own_counts(cluster), before), **spent}

    def lives() -> None:
        for _ in range(ROUNDS):
            life(api)

    elapsed, counts = measure(lives)
    _, idle = measure(lambda: time.sleep(elapsed))
    if shutil.which("strace"):
        started = time.monotonic()
        with traced(cluster) as calls:
            lives()
        elapsed = time.monotonic() - started
        with traced(cluster) as idle_calls:
            time.sleep(elapsed)
        counts |= calls
        idle |= idle_calls
    return {name: (count - idle.get(name, 0.0)) / ROUNDS for name, count in counts.items()}


def table_of(columns: Mapping[str, Counts]) -> str:
    names = list(dict.fromkeys(name for counts in columns.values() for name in counts))
    width = max(map(len, names))
    lines = [" " * width + "".join(f"{title:>14}" for title in columns)]
    for name in names:
        lines.append(f"{name:{width}}" + "".join(f"{counts.get(name, 0.0):14.1f}" for counts in columns.values()))
    return "\n".join(lines) + "\n"


@benchmark("life", "commits, statements, thread hops, system calls and processor time of one session's life")
def life() -> Sequence[Figure]:
    with counting_cluster() as cluster:
        columns = {"batch": counts_of(cluster, run_batch), "interactive": counts_of(cluster, run_interactive)}
    sys.stdout.write(table_of(columns))
    return [
        Figure(
            name=f"life-{title}",
            value=sum(value for name, value in counts.items() if name.startswith("ms of ")),
            unit="ms of processor time",
            target="none: a count",
            holds=True,
            detail=dict(counts),
        )
        for title, counts in columns.items()
    ]
