"""The shim: keeps one workload, relays its runner's messages and records its end. It lives as long as the workload.

    starting --> running --> stopping --> killing --> exited (lingers until its news is acknowledged or it is dismissed)

* It holds the lock of the workload's directory while it lives: the agent knows by it who lives.
* Its death is the death of the workload: the leader dies with its parent, and the namespace with its leader.
* What passes between agent and runner is the relay's (``plugin.relay``).
* A shim whose directory was removed under it (somebody deleted the data directory) ends its workload and itself.
* Standard library, one thread, one poll loop.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import time
from contextlib import suppress
from typing import Any

from ai.backend.node.linux import cgroupfs, proc
from ai.backend.node.relay.framing import decode, encode
from ai.backend.node.relay.peers import Peer
from ai.backend.node.relay.relay import Relay
from ai.backend.plugin.crash_points import crash_point
from ai.backend.runtime.process.supervisor.netns_socket import hand_over_socket
from ai.backend.runtime.process.supervisor.session_log import SessionLog
from ai.backend.runtime.process.supervisor.spawn import Leader, write_json

KILL_PATIENCE_S = 20.0
RUNNER_LOST_GRACE_S = 1.0


def _is_abandoned() -> bool:
    """Returns True if the current directory has been deleted."""
    return os.stat(".").st_nlink == 0


class Shim:
    """Keeps one workload. The current directory is the workload's."""

    def __init__(self, plan: dict[str, Any], listener: socket.socket, wakeup: int, leader: Leader) -> None:
        self._plan = plan
        self._wakeup = wakeup
        self._leader = leader
        self._log = SessionLog(plan["log_bytes"])
        self._log_fd = leader.log
        self._reason = ""
        self._stop_at: float | None = None
        self._kill_until: float | None = None
        self._next_watch = time.monotonic() + 1.0
        self._next_look = time.monotonic() + plan["look_s"]
        self._dismissed = False
        self._poll = select.poll()
        self._poll.register(wakeup, select.POLLIN)
        self._poll.register(self._log_fd, select.POLLIN)
        limit = plan["replay_bytes"]
        self._relay = Relay(
            self._poll, listener, leader.channel, replay_bytes=limit, command=self._command, lost=self._runner_lost
        )

    def run(self) -> None:
        """Runs until the workload has ended and its end is acknowledged."""
        while self._relay.exit is None or not (self._dismissed or self._relay.is_heard):
            for fd, events in self._poll.poll(self._timeout_ms()):
                self._dispatch(fd, events)
            self._tick()
            self._relay.interest()

    # -- time

    def _timeout_ms(self) -> int:
        now = time.monotonic()
        times = [self._next_look, *(at for at in (self._stop_at,) if at is not None)]
        if self._kill_until is not None and self._relay.exit is None:
            times.append(now + 0.01)
        if self._plan["watch"] and self._relay.exit is None:
            times.append(self._next_watch)
        return max(0, int((min(times) - now) * 1000) + 1)

    def _tick(self) -> None:
        now = time.monotonic()
        if now >= self._next_look:
            self._next_look = now + self._plan["look_s"]
            if _is_abandoned():
                self._dismissed = True
                self._begin_stop(0.0, "abandoned")
        if self._relay.exit is not None:
            return
        if self._leader.status is not None or (self._stop_at is not None and now >= self._stop_at):
            self._stop_at = None
            if self._kill_until is None:
                self._kill_until = now + KILL_PATIENCE_S
        if self._kill_until is not None:
            self._finish_killing(now)
        elif self._plan["watch"] and now >= self._next_watch:
            self._next_watch = now + 1.0
            self._watch_limits()

    def _watch_limits(self) -> None:
        tree = self._tree()
        memory, processes = self._plan["watch"].get("memory"), self._plan["watch"].get("pids")
        if memory and sum(map(proc.resident_bytes, tree)) > memory:
            self._reason = "memory-limit"
        elif processes and len(tree) > processes:
            self._reason = "process-limit"
        else:
            return
        self._stop_at = 0.0

    # -- the end

    def _tree(self) -> list[int]:
        return sorted({*proc.descendants(os.getpid()), *cgroupfs.members(self._plan["cgroups"])} - {os.getpid()})

    def _begin_stop(self, grace: float, reason: str) -> None:
        if self._relay.exit is not None or self._kill_until is not None:
            return
        crash_point("shim.stopping")
        self._reason = self._reason or reason
        deadline = time.monotonic() + grace
        first = self._stop_at is None
        self._stop_at = deadline if self._stop_at is None else min(self._stop_at, deadline)
        if first and grace > 0:
            # bubblewrap's outer process would die of it, and everything with it, without any grace.
            spared = {self._leader.pid} if self._plan["sandboxed"] else set()
            proc.send([pid for pid in self._tree() if pid not in spared], signal.SIGTERM)

    def _finish_killing(self, now: float) -> None:
        proc.stop_and_kill(self._tree())
        cgroupfs.kill(self._plan["cgroups"])
        self._leader.reap()
        is_alive = self._leader.status is None or self._leader.has_children or self._tree()
        if is_alive and now < (self._kill_until or 0):
            return
        crash_point("shim.killed")
        self._relay.drain()
        self._drain_log()
        oom = self._leader.was_out_of_memory(self._plan["cgroups"])
        stuck = cgroupfs.remove(self._plan["cgroups"])
        code, number = self._leader.outcome(sandboxed=self._plan["sandboxed"])
        reason = self._reason or ("out-of-memory" if oom and number == signal.SIGKILL else "")
        ended = {"code": code, "signal": number, "oom": oom, "reason": reason}
        if not _is_abandoned():
            write_json("exit.json", {"version": 1, **ended, "stuck": stuck}, durable=True)
        crash_point("shim.exit-recorded")
        self._relay.finish(ended)

    def _drain_log(self) -> None:
        with suppress(OSError):
            while data := os.read(self._log_fd, 65536):
                self._log.write(data)

    # -- input and output

    def _dispatch(self, fd: int, events: int) -> None:
        if fd == self._wakeup:
            os.read(self._wakeup, 512)
            self._leader.reap()
        elif fd != self._log_fd:
            self._relay.dispatch(fd, events)
        else:
            with suppress(BlockingIOError):  # read already
                if data := os.read(self._log_fd, 65536):
                    self._log.write(data)
                else:
                    self._poll.unregister(self._log_fd)

    def _runner_lost(self, violation: str) -> None:
        if violation:
            self._begin_stop(0.0, violation)
        elif self._relay.exit is None:
            self._begin_stop(RUNNER_LOST_GRACE_S, "")

    def _command(self, peer: Peer, kind: str, body: bytes) -> bool:
        """Executes a command from the socket, for :class:`Relay`; returns False if it is unknown."""
        if kind == "shim-stop":
            message = decode(body)
            self._begin_stop(float(message["grace"]), str(message.get("reason") or "stopped"))
        elif kind == "shim-signal":
            number = signal.Signals[decode(body)["signal"]]
            proc.send([pid for pid in self._tree() if pid != self._leader.pid], number)
        elif kind == "socket":
            hand_over_socket(peer.sock, self._leader.pid, self._plan)
        elif kind == "shim-ping":
            peer.send(encode({"t": "shim-pong", "req": decode(body).get("req")}))
        elif kind == "shim-dismiss":
            self._dismissed = True
            self._begin_stop(0.0, "removed")
        else:
            return False
        return True
