"""What a meter tells of processes of this host."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from uuid import uuid4

import pytest

from ai.backend.common.ids import KernelId, SessionId
from ai.backend.node.linux import proc
from ai.backend.node.linux.cgroups import CgroupV2, NoCgroups
from ai.backend.node.workload import statistics
from ai.backend.node.workload.directory import write_json
from ai.backend.node.workload.statistics import Meter
from ai.backend.plugin.accelerator import Measurement, MetricKind
from ai.backend.plugin.runtime import WorkloadKey
from ai.backend.runtime.process.processes import pids_of
from ai.backend.runtime.process.records import Record, WorkloadDirectory

Workload = tuple[WorkloadKey, Record, Callable[[], Sequence[int]]]


def workload(tmp_path: Path, *, group: Path | None = None, shim: int | None = None) -> Workload:
    """A workload of no processes, or of those below ``shim``."""
    key = WorkloadKey(kernel_id=KernelId(uuid4()), attempt=1)
    directory = WorkloadDirectory(tmp_path / str(key))
    directory.make()
    if shim is not None:
        write_json(directory.path / "shim.json", {"shim": [shim, proc.start_time(shim)]})
    home = tmp_path / f"home-{key}"
    home.mkdir()
    record = Record(
        key=key,
        session_id=SessionId(uuid4()),
        image="python",
        cookie="c",
        cgroups=() if group is None else ({"path": str(group)},),
        home=str(home),
        sandboxed=True,
        memory_bytes=1000,
        cpu_limit=2.0,
        home_bytes=None,
    )
    return key, record, partial(pids_of, record, directory)


@contextmanager
def process(*command: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process group that ends with the test; it has said a line when this begins."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as running:
        assert running.stdout is not None
        try:
            assert running.stdout.readline()
            yield running
        finally:
            os.killpg(running.pid, signal.SIGKILL)


def measure(meter: Meter, one: Workload, at: float, group: Path | None = None) -> dict[str, Measurement]:
    driver = NoCgroups() if group is None else CgroupV2(base=group, controllers=frozenset())
    return {m.key: m for m in meter.measure_all([one], driver, at)[one[0]]}


def fill(group: Path, cpu_us: int, memory: int) -> None:
    group.mkdir(exist_ok=True)
    (group / "cpu.stat").write_text(f"usage_usec {cpu_us}\n")
    (group / "memory.current").write_text(f"{memory}\n")
    (group / "memory.stat").write_text("anon 1\ninactive_anon 7\ninactive_file 50\n")
    (group / "io.stat").write_text("8:0 rbytes=5 wbytes=6\n")
    (group / "pids.current").write_text("3\n")


def test_exact_numbers_of_a_group(tmp_path: Path) -> None:
    group, meter = tmp_path / "group", Meter()
    fill(group, 1_000_000, 150)
    one = workload(tmp_path, group=group)
    first = measure(meter, one, 10.0, group)
    assert (first["cpu_used"].value, first["cpu_util"].value) == (1000.0, 0.0)
    fill(group, 4_000_000, 350)
    second = measure(meter, one, 12.0, group)
    assert {key: m.value for key, m in second.items()} == {
        "cpu_used": 4000.0,
        "cpu_util": 150.0,
        "mem": 300.0,
        "io_read": 5.0,
        "io_write": 6.0,
        "pids": 3.0,
        "io_scratch_size": float(second["io_scratch_size"].value),
    }
    assert (second["cpu_util"].capacity, second["mem"].capacity) == (200.0, 1000.0)
    fill(group, 1_000_000, 350)
    assert measure(meter, one, 14.0, group)["cpu_util"].value == 0.0, "a counter that was reset is no negative use"
    fill(group, 2_000_000, 350)
    assert measure(meter, one, 13.0, group)["cpu_util"].value == 0.0, "nor is a clock that went back"


def test_nothing_is_told_of_what_has_ended(tmp_path: Path) -> None:
    assert set(measure(Meter(), workload(tmp_path), 10.0)) == {"io_scratch_size"}


def test_processes_are_counted_where_no_group_counts(tmp_path: Path) -> None:
    busy = "print(1, flush=True)\nwhile 1: pass"
    above = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {busy!r}]).wait()"
    with process(sys.executable, "-c", above) as running:
        one, meter = workload(tmp_path, shim=running.pid), Meter()
        told = measure(meter, one, 10.0)
        assert told["pids"].value == 1.0
        assert told["mem"].value > 2**20
        assert "net_rx" not in told, "it shares our network"
        (pid,) = one[2]()
        (view,) = statistics.process_views([pid, 2**22 + 1])
        assert (view.pid, view.shown_pid, view.started) == (pid, pid, proc.start_time(pid))
        assert "while 1: pass" in view.command


@pytest.mark.needs("root")
def test_a_network_of_its_own_is_counted_without_its_loopback(tmp_path: Path) -> None:
    talk = (
        "import socket, subprocess, time; subprocess.run(['ip', 'link', 'set', 'lo', 'up']);"
        "s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind(('127.0.0.1', 0));"
        "s.sendto(b'x' * 1000, s.getsockname()); print(1, flush=True); time.sleep(60)"
    )
    with process("/bin/sh", "-c", f'unshare -n {sys.executable} -c "{talk}"; true') as running:
        one = workload(tmp_path, shim=running.pid)
        told = measure(Meter(), one, 10.0)
        assert (told["net_rx"].value, told["net_tx"].value) == (0.0, 0.0)
        assert (told["net_rx"].kind, told["net_rx"].unit_hint) == (MetricKind.RATE, "bps")


def test_walks_through_homes_have_one_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each walk takes a tenth of a second of the meter's clock; a fiftieth of a core is allowed."""
    clock, walked = [0.0], []

    def slow_walk(path: Path) -> int:
        clock[0] += 0.1
        walked.append(path)
        return 7

    monkeypatch.setattr(statistics, "tree_size", slow_walk)
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])
    ten = [workload(tmp_path) for _ in range(10)]
    meter = Meter()
    for number in range(20):
        meter.measure_all(ten, NoCgroups(), 1000.0 + 5.0 * number)
    assert len(walked) <= 2 + 95.0 * statistics.HOME_SIZE_DUTY / 0.1 + 1
    assert set(walked) == {Path(record.home) for _, record, _ in ten}, "each has its turn"


def test_what_was_known_of_a_removed_workload_is_forgotten(tmp_path: Path) -> None:
    one, meter = workload(tmp_path), Meter()
    measure(meter, one, 10.0)
    meter.forget(one[0])
    assert not meter._states
    assert not meter._homes
