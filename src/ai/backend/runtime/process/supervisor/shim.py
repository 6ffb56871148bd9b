"""The shim: keeps one workload, relays its runner's messages and records its end. It lives as long as the workload.

    starting --> running --> stopping --> killing --> exited (lingers until its news is acknowledged or it is dismissed)

* It holds the lock of the workload's directory while it lives: the agent knows by it who lives.
* Its death is the death of the workload: the leader dies with its parent, and the namespace with its leader.
* One controller at a time; a newer epoch takes over. Any number of watchers, which only hear of the end.
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

from ai.backend.runtime.process.supervisor import cgroupfs, proc
from ai.backend.runtime.process.supervisor.crash_points import reach
from ai.backend.runtime.process.supervisor.framing import ProtocolViolation, decode, encode, kind_of, pack
from ai.backend.runtime.process.supervisor.peers import Peer
from ai.backend.runtime.process.supervisor.replay import Replay
from ai.backend.runtime.process.supervisor.session_log import SessionLog
from ai.backend.runtime.process.supervisor.spawn import Leader

PROTOCOL = 1
UNSENT_LIMIT = 1024 * 1024
TO_RUNNER_LIMIT = 16 * 1024 * 1024
KILL_PATIENCE_S = 20.0
RUNNER_LOST_GRACE_S = 1.0


def write_json(name: str, content: dict[str, Any], *, durable: bool = False) -> None:
    """Replace a file of the workload's directory atomically."""
    with open(name + ".tmp", "w", encoding="utf-8") as file:  # no pathlib here: memory
        json.dump(content, file)
        if durable:
            file.flush()
            os.fsync(file.fileno())
    os.replace(name + ".tmp", name)  # as above


def _is_abandoned() -> bool:
    """Whether the current directory has been deleted."""
    return os.stat(".").st_nlink == 0


class Shim:
    """See the module. The current directory is the workload's."""

    def __init__(self, plan: dict[str, Any], listener: socket.socket, wakeup: int, leader: Leader) -> None:
        self._plan = plan
        self._listener = listener
        self._wakeup = wakeup
        self._leader = leader
        self._runner: Peer | None = Peer(leader.channel)
        self._log = SessionLog(plan["log_bytes"])
        self._log_fd = leader.log
        self._replay = Replay(plan["replay_bytes"])
        self._peers: dict[int, Peer] = {}
        self._watchers: set[int] = set()
        self._controller: Peer | None = None
        self._epoch = -1
        self._sent = 0
        self._acked = 0
        self._exit: dict[str, Any] | None = None
        self._reason = ""
        self._stop_at: float | None = None
        self._kill_until: float | None = None
        self._next_watch = time.monotonic() + 1.0
        self._next_look = time.monotonic() + plan["look_s"]
        self._dismissed = False
        self._poll = select.poll()
        self._poll.register(listener, select.POLLIN)
        self._poll.register(wakeup, select.POLLIN)
        self._poll.register(self._log_fd, select.POLLIN)
        self._poll.register(self._runner, select.POLLIN)

    def run(self) -> None:
        """Until the workload is gone and nobody waits for its news."""
        while not self._is_done():
            for fd, events in self._poll.poll(self._timeout_ms()):
                self._dispatch(fd, events)
            self._tick()
            self._interest()

    def _is_done(self) -> bool:
        if self._exit is None:
            return False
        if self._dismissed:
            return True
        heard = self._controller is not None and self._controller.queued == 0 and self._acked >= self._replay.last_seq
        return heard and self._sent >= self._replay.last_seq

    # -- time

    def _timeout_ms(self) -> int:
        now = time.monotonic()
        times = [self._next_look, *(at for at in (self._stop_at,) if at is not None)]
        if self._kill_until is not None and self._exit is None:
            times.append(now + 0.01)
        if self._plan["watch"] and self._exit is None:
            times.append(self._next_watch)
        return max(0, int((min(times) - now) * 1000) + 1)

    def _tick(self) -> None:
        now = time.monotonic()
        if now >= self._next_look:
            self._next_look = now + self._plan["look_s"]
            if _is_abandoned():
                self._dismissed = True
                self._begin_stop(0.0, "abandoned")
        if self._exit is not None:
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
        if self._exit is not None or self._kill_until is not None:
            return
        reach("shim.stopping")
        self._reason = self._reason or reason
        deadline = time.monotonic() + grace
        first = self._stop_at is None
        self._stop_at = deadline if self._stop_at is None else min(self._stop_at, deadline)
        if first and grace > 0:
            # bubblewrap's outer process would die of it, and everything with it, without any grace.
            spared = {self._leader.pid} if self._plan["sandboxed"] else set()
            proc.send([pid for pid in self._tree() if pid not in spared], signal.SIGTERM)

    def _finish_killing(self, now: float) -> None:
        left = self._tree()
        proc.stop_and_kill(left)
        cgroupfs.kill(self._plan["cgroups"])
        self._leader.reap()
        if (self._leader.status is None or self._leader.has_children() or self._tree()) and now < (
            self._kill_until or 0
        ):
            return
        reach("shim.killed")
        self._drain_runner()
        oom = self._leader.was_out_of_memory(self._plan["cgroups"])
        stuck = cgroupfs.remove(self._plan["cgroups"])
        code, number = self._leader.outcome(sandboxed=self._plan["sandboxed"])
        reason = self._reason or ("out-of-memory" if oom and number == signal.SIGKILL else "")
        self._exit = {"code": code, "signal": number, "oom": oom, "reason": reason}
        if not _is_abandoned():
            write_json("exit.json", {"version": 1, **self._exit, "stuck": stuck}, durable=True)
        reach("shim.exit-recorded")
        frame = encode({"t": "exited", **self._exit})
        for peer in list(self._peers.values()):
            if peer is self._controller:
                self._pump()
            if peer.fileno() in self._watchers or peer is self._controller:
                peer.send(frame)

    def _drain_runner(self) -> None:
        """Nobody is left to write: take what is still in the pipes."""
        while self._runner is not None and not self._replay.is_full:
            data = self._runner.receive()
            if not data:
                self._drop_runner()
                break
            self._from_runner(data)
        with suppress(OSError):
            while data := os.read(self._log_fd, 65536):
                self._log.write(data)

    # -- input and output

    def _dispatch(self, fd: int, events: int) -> None:
        if fd == self._wakeup:
            os.read(self._wakeup, 512)
            self._leader.reap()
        elif fd == self._listener.fileno():
            self._accept()
        elif fd == self._log_fd:
            self._read_log()
        elif self._runner is not None and fd == self._runner.fileno():
            if events & select.POLLOUT:
                self._runner.flush()
            if events & ~select.POLLOUT:
                self._read_runner()
        elif fd in self._peers:
            self._serve(self._peers[fd], events)

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except OSError:
            return
        peer = Peer(sock)
        self._peers[peer.fileno()] = peer
        self._poll.register(peer, select.POLLIN)

    def _read_log(self) -> None:
        try:
            data = os.read(self._log_fd, 65536)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self._log.write(data)
        else:
            self._poll.unregister(self._log_fd)

    def _read_runner(self) -> None:
        assert self._runner is not None
        data = self._runner.receive()
        if data is None:
            self._drop_runner()
            if self._exit is None:
                self._begin_stop(RUNNER_LOST_GRACE_S, "")
        else:
            self._from_runner(data)

    def _from_runner(self, data: bytes) -> None:
        if self._runner is None:
            return
        try:
            for body in self._runner.reader.feed(data):
                self._replay.push(body)
        except ProtocolViolation as violation:
            self._drop_runner()
            self._begin_stop(0.0, f"protocol-violation: {violation}")
        self._pump()

    def _drop_runner(self) -> None:
        if self._runner is not None:
            self._poll.unregister(self._runner)
            self._runner.close()
            self._runner = None

    def _pump(self) -> None:
        """Send the controller what it has not seen, as far as it reads."""
        peer = self._controller
        if peer is None:
            return
        while peer.is_open and peer.queued < UNSENT_LIMIT and self._sent < self._replay.last_seq:
            self._sent = max(self._sent + 1, self._replay.first_seq)
            frame = self._replay.get(self._sent)
            if frame is not None:
                peer.send(frame)

    def _interest(self) -> None:
        """Ask the kernel only for what we can take: this is the whole flow control."""
        if self._runner is not None:
            behind = self._controller is not None and self._sent < self._replay.last_seq
            takes = not self._replay.is_full and not behind
            self._poll.modify(
                self._runner, (select.POLLIN if takes else 0) | (select.POLLOUT if self._runner.queued else 0)
            )
        stuffed = self._runner is not None and self._runner.queued > TO_RUNNER_LIMIT
        for peer in list(self._peers.values()):
            if not peer.is_open:
                self._forget(peer)
                continue
            takes = not (stuffed and peer is self._controller)
            self._poll.modify(peer, (select.POLLIN if takes else 0) | (select.POLLOUT if peer.queued else 0))

    def _forget(self, peer: Peer) -> None:
        fd = next(number for number, held in self._peers.items() if held is peer)
        with suppress(KeyError, ValueError, OSError):
            self._poll.unregister(fd)
        del self._peers[fd]
        self._watchers.discard(fd)
        if peer is self._controller:
            self._controller = None
        peer.close()

    # -- the agent's side

    def _serve(self, peer: Peer, events: int) -> None:
        if events & select.POLLOUT and peer.flush() and peer is self._controller:
            self._pump()
        if not events & ~select.POLLOUT:
            return
        data = peer.receive()
        if data is None:
            self._forget(peer)
            return
        try:
            for body in peer.reader.feed(data):
                self._handle(peer, body)
                if not peer.is_open:
                    break
        except (ProtocolViolation, KeyError, TypeError, ValueError):
            peer.is_open = False

    def _handle(self, peer: Peer, body: bytes) -> None:
        kind = kind_of(body)
        if kind == "attach":
            self._attach(peer, decode(body))
        elif kind == "watch":
            self._watchers.add(peer.fileno())
            peer.send(encode({"t": "watching", "exit": self._exit}))
            if self._exit is not None:
                peer.send(encode({"t": "exited", **self._exit}))
        elif kind == "shim-stop":
            message = decode(body)
            self._begin_stop(float(message["grace"]), str(message.get("reason") or "stopped"))
        elif kind == "shim-signal":
            number = signal.Signals[decode(body)["signal"]]
            proc.send([pid for pid in self._tree() if pid != self._leader.pid], number)
        elif kind == "shim-ping":
            peer.send(encode({"t": "shim-pong", "req": decode(body).get("req")}))
        elif kind == "shim-dismiss":
            self._dismissed = True
            self._begin_stop(0.0, "removed")
        elif peer is not self._controller:
            raise ProtocolViolation("not attached")
        elif kind == "ack":
            self._acked = max(self._acked, int(decode(body)["seq"]))
            self._replay.ack(self._acked)
        elif self._runner is not None:
            self._runner.send(pack(body))

    def _attach(self, peer: Peer, message: dict[str, Any]) -> None:
        epoch, last_seq = int(message["epoch"]), int(message["last_seq"])
        if epoch < self._epoch or message.get("protocol") != PROTOCOL:
            peer.send(encode({"t": "refused", "reason": "stale-epoch"}))
            peer.is_open = False
            return
        if self._controller is not None and self._controller is not peer:
            self._forget(self._controller)
        self._epoch = epoch
        self._controller = peer
        # Numbers the agent says it has are acknowledged; a number we never gave comes from another incarnation.
        self._sent = last_seq if last_seq <= self._replay.last_seq else 0
        self._acked = max(self._acked, self._sent)
        peer.send(
            encode(
                {
                    "t": "attached",
                    "protocol": PROTOCOL,
                    "first_seq": self._replay.first_seq,
                    "last_seq": self._replay.last_seq,
                    "alive": self._exit is None,
                    "exit": self._exit,
                }
            )
        )
        self._pump()
        if self._exit is not None:
            while self._sent < self._replay.last_seq and peer.is_open:
                self._sent = max(self._sent + 1, self._replay.first_seq)
                frame = self._replay.get(self._sent)
                if frame is not None:
                    peer.send(frame)
            peer.send(encode({"t": "exited", **self._exit}))
