"""Runs the shim, which supervises one workload, relays the messages of its runner and records its end.

It lives as long as the workload.

    starting --> running --> stopping --> killing --> exited (lingers until its news is acknowledged or it is dismissed)

* It holds the lock of the workload's directory while it lives: the agent knows by it who lives.
* Its death is the death of the workload: the leader dies with its parent, and the namespace with its leader.
* What passes between agent and runner is the relay's (``plugin.relay``).
* A shim whose directory was removed under it (somebody deleted the data directory) ends its workload and itself.
* Standard library, one thread, one poll loop.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import time
from contextlib import suppress
from typing import Any

from ai.backend.node.linux import cgroupfs, proc
from ai.backend.node.relay.framing import decode, encode, pack
from ai.backend.node.relay.peers import Peer
from ai.backend.node.relay.relay import Relay
from ai.backend.plugin.crash_points import crash_point
from ai.backend.runtime.process.supervisor.netns_socket import hand_over_socket
from ai.backend.runtime.process.supervisor.program import ProgramRun
from ai.backend.runtime.process.supervisor.session_log import SessionLog
from ai.backend.runtime.process.supervisor.spawn import Leader, write_json

KILL_TIMEOUT_S = 20.0
RUNNER_LOST_GRACE_S = 1.0
_NAMESPACE_END_S = 0.05


def _is_abandoned() -> bool:
    """Returns True if the current directory has been deleted."""
    return os.stat(".").st_nlink == 0


class Shim:
    """Supervises one workload until its exit is acknowledged. The current directory is the workload's."""

    def __init__(self, plan: dict[str, Any], listener: socket.socket, wakeup_fd: int, leader: Leader) -> None:
        self._plan = plan
        self._wakeup = wakeup_fd
        self._leader = leader
        self._log = SessionLog(plan["log_bytes"])
        self._log_fd = leader.log
        self._reason = ""
        self._stop_time: float | None = None
        self._kill_deadline: float | None = None
        self._search_time = 0.0
        self._next_limit_check = time.monotonic() + 1.0
        self._next_folder_check = time.monotonic() + plan["look_s"]
        self._dismissed = False
        self._poll = select.poll()
        self._poll.register(wakeup_fd, select.POLLIN)
        self._poll.register(self._log_fd, select.POLLIN)
        replay_bytes = plan["replay_bytes"]
        self._relay = Relay(
            self._poll,
            listener,
            leader.channel,
            replay_bytes=replay_bytes,
            on_command=self._execute_command,
            on_runner_lost=self._on_runner_lost,
            convert_for_runner=self._bytes_for_runner,
        )
        self._program = ProgramRun(
            self._relay.send_for_runner, self._interrupt, lambda reason: self._begin_stop(0.0, reason)
        )

    def run(self) -> None:
        """Polls and dispatches until the workload has ended and its end is acknowledged."""
        while self._relay.exit is None or not (self._dismissed or self._relay.is_acknowledged):
            for fd, poll_events in self._poll.poll(self._poll_timeout_ms()):
                self._handle_poll_events(fd, poll_events)
            self._run_due_work()
            self._relay.update_poll_events()

    # -- time

    def _poll_timeout_ms(self) -> int:
        now = time.monotonic()
        due_times = [self._next_folder_check, *(stop_time for stop_time in (self._stop_time,) if stop_time is not None)]
        if self._relay.exit is None:
            if self._kill_deadline is not None:
                due_times.append(now + 0.01)
            elif self._plan["watch"]:
                due_times.append(self._next_limit_check)
        return max(0, int((min(due_times) - now) * 1000) + 1)

    def _run_due_work(self) -> None:
        now = time.monotonic()
        if now >= self._next_folder_check:
            self._next_folder_check = now + self._plan["look_s"]
            if _is_abandoned():
                self._dismissed = True
                self._begin_stop(0.0, "abandoned")
        if self._relay.exit is not None:
            return
        if self._leader.status is not None or (self._stop_time is not None and now >= self._stop_time):
            self._stop_time = None
            if self._kill_deadline is None:
                self._kill_deadline = now + KILL_TIMEOUT_S
                self._search_time = now + _NAMESPACE_END_S
        if self._kill_deadline is not None:
            self._kill_until_ended(now)
        elif self._plan["watch"] and now >= self._next_limit_check:
            self._next_limit_check = now + 1.0
            self._watch_limits()

    def _watch_limits(self) -> None:
        workload_pids = self._workload_pids()
        memory_limit_bytes, process_limit = self._plan["watch"].get("memory"), self._plan["watch"].get("pids")
        if memory_limit_bytes and sum(map(proc.resident_bytes, workload_pids)) > memory_limit_bytes:
            self._reason = "memory-limit"
        elif process_limit and len(workload_pids) > process_limit:
            self._reason = "process-limit"
        else:
            return
        self._stop_time = 0.0

    # -- the end

    def _workload_pids(self) -> list[int]:
        """Returns the pids of the workload's processes, without the shim and the network's helper.

        Orphans become the shim's children: without a child the shim has no other descendants.
        """
        own_pids = proc.descendants(os.getpid()) if self._leader.has_children else []
        pids = {*own_pids, *cgroupfs.members(self._plan["cgroups"])}
        return sorted(pids - {os.getpid(), self._leader.helper_pid})

    def _begin_stop(self, grace_s: float, reason: str) -> None:
        if self._relay.exit is not None or self._kill_deadline is not None:
            return
        crash_point("shim.stopping")
        self._reason = self._reason or reason
        deadline = time.monotonic() + grace_s
        is_first_request = self._stop_time is None
        self._stop_time = deadline if self._stop_time is None else min(self._stop_time, deadline)
        if is_first_request and grace_s > 0 and not self._request({"t": "signal", "number": int(signal.SIGTERM)}):
            # bubblewrap's outer process would die of it, and everything with it, without any grace.
            spared_pids = {self._leader.pid} if self._plan["sandboxed"] else set()
            proc.send([pid for pid in self._workload_pids() if pid not in spared_pids], signal.SIGTERM)

    def _request(self, message: dict[str, Any], fds: tuple[int, ...] = ()) -> bool:
        """Sends a request to the first process of a workload in gVisor, without waiting; returns True if it was sent.

        Returns False if the workload is not in gVisor, or its first process has ended or does not read.
        """
        if self._leader.requests is None:
            return False
        try:
            socket.send_fds(self._leader.requests, [json.dumps(message).encode()], fds, socket.MSG_DONTWAIT)
        except OSError:
            return False
        return True

    def _kill_until_ended(self, now: float) -> None:
        if self._leader.helper_pid:
            proc.send([self._leader.helper_pid], signal.SIGKILL)
        # The kernel kills what is left in the namespace of an ended sandbox; only what it leaves has to be looked for.
        is_ending = self._plan["sandboxed"] and self._leader.status is not None and now < self._search_time
        if not is_ending:
            proc.stop_and_kill(self._workload_pids())
            cgroupfs.kill(self._plan["cgroups"])
        self._leader.reap()
        is_alive = self._leader.status is None or self._leader.has_children or self._workload_pids()
        if is_alive and now < (self._kill_deadline or 0):
            return
        crash_point("shim.killed")
        self._relay.read_remaining()
        self._drain_log()
        out_of_memory = self._leader.was_out_of_memory(self._plan["cgroups"])
        stuck_groups = cgroupfs.remove(self._plan["cgroups"])
        exit_code, signal_number = self._leader.outcome(sandboxed=self._plan["sandboxed"])
        reason = self._reason or ("out-of-memory" if out_of_memory and signal_number == signal.SIGKILL else "")
        exit_message = {"code": exit_code, "signal": signal_number, "oom": out_of_memory, "reason": reason}
        exit_message["program"] = self._program.has_started and self._reason == self._program.cancel_reason
        if not _is_abandoned():
            try:
                content = {"version": 1, **exit_message, "stuck": stuck_groups, "empty": not is_alive}
                write_json("exit.json", content, is_durable=True)
            except OSError:  # the disk is full; the agent removes the home, or records the exit later
                if self._reason == "home-limit" and now < (self._kill_deadline or 0):
                    return
        crash_point("shim.exit-recorded")
        self._relay.report_end(exit_message)

    def _drain_log(self) -> None:
        with suppress(OSError):
            while output_bytes := os.read(self._log_fd, 65536):
                self._log.write(output_bytes)

    # -- input and output

    def _handle_poll_events(self, fd: int, poll_events: int) -> None:
        if fd == self._wakeup:
            os.read(self._wakeup, 512)
            self._leader.reap()
        elif fd != self._log_fd:
            self._relay.dispatch(fd, poll_events)
        else:
            with suppress(BlockingIOError):  # read already
                if output_bytes := os.read(self._log_fd, 65536):
                    self._log.write(output_bytes)
                else:
                    self._poll.unregister(self._log_fd)

    def _on_runner_lost(self, violation: str) -> None:
        if violation:
            self._begin_stop(0.0, violation)
        elif self._relay.exit is None and not self._program.has_started:
            self._begin_stop(RUNNER_LOST_GRACE_S, "")

    def _bytes_for_runner(self, kind: str, body: bytes) -> bytes:
        return self._program.bytes_for(kind, body) if self._plan["program"] else pack(body)

    def _interrupt(self) -> None:
        proc.send([pid for pid in self._workload_pids() if pid != self._leader.pid], signal.SIGINT)

    def _execute_command(self, peer: Peer, command: str, body: bytes) -> bool:
        """Executes a command from the workload's socket, for :class:`Relay`; returns False for an unknown command."""
        if command == "shim-stop":
            message = decode(body)
            self._begin_stop(float(message["grace"]), str(message.get("reason") or "stopped"))
        elif command == "shim-signal":
            signal_number = signal.Signals[decode(body)["signal"]]
            if self._request({"t": "signal", "number": int(signal_number)}):
                return True
            proc.send([pid for pid in self._workload_pids() if pid != self._leader.pid], signal_number)
        elif command == "socket" and self._leader.requests is not None:
            peer.send(encode({"t": "refused", "reason": "in gVisor sockets stay inside"}))
        elif command == "connect" and self._leader.requests is not None:
            if self._request({"t": "connect", "port": int(decode(body)["port"])}, (peer.fileno(),)):
                peer.is_open = False  # it is the other process's from now on
            else:
                peer.send(encode({"t": "refused", "reason": "the session does not answer"}))
        elif command == "socket":
            hand_over_socket(peer.sock, self._leader.pid, self._plan)
        elif command == "shim-ping":
            peer.send(encode({"t": "shim-pong", "req": decode(body).get("req")}))
        elif command == "shim-dismiss":
            self._dismissed = True
            self._begin_stop(0.0, "removed")
        else:
            return False
        return True
