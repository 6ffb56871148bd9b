"""A shim waits between its attempts to end a workload."""

from __future__ import annotations

import os
import select
import socket
import time
from pathlib import Path

import pytest

from ai.backend.node.linux import proc
from ai.backend.runtime.process.supervisor import shim as shim_module
from ai.backend.runtime.process.supervisor.shim import Shim
from ai.backend.runtime.process.supervisor.spawn import Leader

KILL_TIMEOUT_S = 0.5
PLAN = {
    "log_bytes": 4096,
    "replay_bytes": 4096,
    "look_s": 3600.0,
    "watch": {"memory": 2**60},
    "sandboxed": True,
    "cgroups": [],
    "program": False,
}


class _Poll:
    """Returns no events and lets the time pass for which it is asked to wait."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.waits_ms: list[int] = []

    def register(self, fd: object, events: int) -> None: ...
    def modify(self, fd: object, events: int) -> None: ...
    def unregister(self, fd: object) -> None: ...

    def poll(self, timeout_ms: int) -> list[tuple[int, int]]:
        self.waits_ms.append(timeout_ms)
        assert len(self.waits_ms) < 10_000, "it does not wait"
        self.now += timeout_ms / 1000
        return []


class _Leader(Leader):
    """Has ended, while a process that it has left does not end."""

    def reap(self) -> None:
        self.status, self.has_children = 0, True


def test_a_shim_of_a_watched_workload_waits_between_its_attempts_to_kill(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    poll = _Poll()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(select, "poll", lambda: poll)
    monkeypatch.setattr(time, "monotonic", lambda: poll.now)
    monkeypatch.setattr(shim_module, "KILL_TIMEOUT_S", KILL_TIMEOUT_S)
    monkeypatch.setattr(proc, "descendants", lambda _pid: [2**22 + 1])
    monkeypatch.setattr(proc, "stop_and_kill", lambda _pids: None)
    channel, runner = socket.socketpair()
    log_read_fd, log_write_fd = os.pipe2(os.O_NONBLOCK)
    wakeup_read_fd, wakeup_write_fd = os.pipe()
    listener = socket.socket(socket.AF_UNIX)
    try:
        shim = Shim(PLAN, listener, wakeup_read_fd, _Leader(2**22 + 2, channel, log_read_fd))
        poll.now += 3.0  # longer than between two looks at the limits
        shim._begin_stop(0.0, "removed")
        shim._dismissed = True
        shim.run()
    finally:
        for closable in (channel, runner, listener):
            closable.close()
        for fd in (log_read_fd, log_write_fd, wakeup_read_fd, wakeup_write_fd):
            os.close(fd)
    assert len(poll.waits_ms) <= KILL_TIMEOUT_S * 100 + 2
    assert (tmp_path / "exit.json").exists()
