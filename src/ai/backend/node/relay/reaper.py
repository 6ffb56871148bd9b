"""Runs the first process of a session's container in a pod. Starts the runner when the agent says so.

The process reaps orphans. It connects to the relay in the other container before any code of the user runs, and ends
with the runner. The environment and the files of the session come over that connection: nothing of them is in the
pod's description.
"""

from __future__ import annotations

import _socket
import binascii
import os
import select
import sys
import time

from .cgroup_files import measure, oom_kills
from .first_process import FirstProcess, shell_code, signal_all, timeout_ms
from .framing import ProtocolViolation, decode, encode
from .light import Socket, dumps, loads, signal
from .peers import Peer
from .pod_files import SOCKET, place_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional

CONNECT_TIMEOUT_S = 30.0
TERMINATION_MESSAGE_PATH = "/dev/termination-log"
"""The file that the kubelet copies into the container's status (Container.terminationMessagePath)."""
_CONNECT_CHECK_S = 0.01
_PLATFORM = "/opt/backend.ai/"
_SESSION_PREFIX = "BACKENDAI_SESSION_ENVIRON_"
_LOST_RELAY_EXIT_CODE = 75
_DEFAULT_STATS_INTERVAL_S = 10.0


class Reaper:
    """Starts and watches the runner of one session, and exchanges messages with the pod's relay.

    ``runner`` is called in the child process with its channel's descriptor.
    """

    def __init__(self, channel_folder: str, home: str, runner: Any) -> None:
        self._home = home
        self._start_runner = runner
        self._poll = select.poll()
        self._first = FirstProcess(self._poll)
        self._control = Peer(_connect(channel_folder, "reaper"))
        self._runner_socket: Optional[Socket] = _connect(channel_folder, "runner")
        self._poll.register(self._control, select.POLLIN)
        self._reason = ""
        self._stats_interval_s = _DEFAULT_STATS_INTERVAL_S
        self._stats_at: Optional[float] = None
        self._oom_kills = oom_kills()

    def run(self) -> int:
        """Waits for the end of the runner; returns its exit code as a shell does."""
        first_process = self._first
        while first_process.status is None:
            self._poll.modify(self._control, select.POLLIN | (select.POLLOUT if self._control.queued else 0))
            for fd, events in self._poll.poll(timeout_ms(first_process.kill_at, self._stats_at)):
                if fd == first_process.wakeup:
                    first_process.on_wakeup()
                else:
                    self._serve_control(events)
            first_process.kill_if_due()
            if self._stats_at is not None and time.monotonic() >= self._stats_at:
                self._send_stats()
        signal_all(signal.SIGKILL)
        self._report_end(first_process.status)
        return shell_code(first_process.status)

    def _serve_control(self, events: int) -> None:
        if events & select.POLLOUT:
            self._control.flush()
        if not events & ~select.POLLOUT:
            return
        received_bytes = self._control.receive()
        try:
            for body in self._control.reader.feed(received_bytes or b""):
                self._on_message(decode(body))
        except (ProtocolViolation, KeyError, TypeError, ValueError) as error:
            self._control.send(encode({"t": "failed", "reason": "%s: %s" % (type(error).__name__, error)}))
            return
        if received_bytes is None:
            # Without its relay nobody can reach this session any more.
            sys.stderr.write("the relay of this session has ended\n")
            signal_all(signal.SIGKILL)
            os._exit(_LOST_RELAY_EXIT_CODE)

    def _on_message(self, message: Dict[str, Any]) -> None:
        kind = message.get("t")
        if kind == "file":
            self._write_file(message)
        elif kind == "begin":
            if not self._first.pid:
                self._on_begin(message)
            self._control.send(encode({"t": "begun", "pid": self._first.pid}))
        elif kind == "end":
            self._reason = self._reason or str(message.get("reason") or "")
            grace_s = float(message.get("grace") or 0.0)
            if not self._first.pid:
                self._first.status = 0
            elif grace_s > 0:
                signal_all(signal.SIGTERM)
                self._first.kill_at = min(self._first.kill_at or float("inf"), time.monotonic() + grace_s)
            else:
                signal_all(signal.SIGKILL)

    def _write_file(self, message: Dict[str, Any]) -> None:
        path_parts = str(message["path"]).split("/")
        if {"", ".", ".."} & set(path_parts):
            raise ValueError("%r is no plain path" % message["path"])
        mode = 0o600 if message.get("private") else 0o644
        try:
            place_file(self._home, path_parts, binascii.a2b_base64(message["data"]), mode)
        except OSError as error:
            self._control.send(encode({"t": "failed", "reason": "%s: %s" % (message["path"], error.strerror)}))

    def _on_begin(self, message: Dict[str, Any]) -> None:
        assert self._runner_socket is not None
        environment = session_environment(dict(os.environ), message["environ"])
        self._stats_interval_s = float(message.get("stats_interval") or _DEFAULT_STATS_INTERVAL_S)

        def run() -> int:
            assert self._runner_socket is not None
            self._control.close()
            os.environ.clear()
            os.environ.update(environment)
            os.chdir(self._home)
            code: int = self._start_runner(self._runner_socket.fileno(), str(message.get("runtime") or ""))
            return code

        self._first.start(run)
        self._runner_socket.close()
        self._runner_socket = None
        self._stats_at = time.monotonic()

    def _send_stats(self) -> None:
        self._stats_at = time.monotonic() + self._stats_interval_s
        if self._control.queued == 0:  # a relay that reads nothing gets no heap of old ones
            self._control.send(encode(dict(measure(), t="stats")))

    def _report_end(self, status: int) -> None:
        """Reports the end of the runner to the relay."""
        signal_number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
        exit_code = None if signal_number is not None else os.WEXITSTATUS(status)
        is_out_of_memory = signal_number == signal.SIGKILL and oom_kills() > self._oom_kills
        end_message = {
            "t": "ended",
            "code": exit_code,
            "signal": signal_number,
            "oom": is_out_of_memory,
            "reason": self._reason,
        }
        _write_termination_message(end_message)
        self._control.sock.setblocking(True)
        self._control.sock.settimeout(CONNECT_TIMEOUT_S)
        self._control.send(encode(dict(measure(), t="stats")))
        self._control.send(encode(end_message))
        while self._control.queued and self._control.is_open and self._control.flush():
            continue


def session_environment(image_environment: Dict[str, str], sent_environment: Dict[str, str]) -> Dict[str, str]:
    """Returns the runner's environment. Variables that the agent sent replace those that the image sets.

    The image's variables are prefixed as those of the session, so that none means anything to the runner itself.
    """
    environment = dict(sent_environment)
    for name, value in image_environment.items():
        if name.startswith("KUBERNETES_") or name in sent_environment or _SESSION_PREFIX + name in sent_environment:
            continue
        environment["PATH" if name == "PATH" else _SESSION_PREFIX + name] = value
    return environment


def _connect(channel_folder: str, role: str) -> Socket:
    """Connects to the relay, which may still be starting. Raises OSError."""
    deadline = time.monotonic() + CONNECT_TIMEOUT_S
    while True:
        sock = Socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
        try:
            sock.connect(os.path.join(channel_folder, SOCKET))
            sock.sendall(encode({"t": role}))
            return sock
        except OSError:
            sock.close()
            if time.monotonic() > deadline:
                raise
            time.sleep(_CONNECT_CHECK_S)


def _write_termination_message(end_message: Dict[str, Any]) -> None:
    """Writes the exit of the program into the container's status, for an agent that is not connected at the end."""
    try:
        with open(TERMINATION_MESSAGE_PATH, "w") as file:
            file.write(dumps({name: value for name, value in end_message.items() if name != "t"}))
    except OSError:
        return


def main(arguments: List[str]) -> int:
    """Serves the session that ``--setup JSON`` describes (``channel``, ``home``); returns 2 for wrong arguments.

    Goes on with the image's own interpreter where it has one, unless ``--here`` comes first.
    """
    process_module = __import__("_backendai_runner.process", fromlist=["prctl"])
    if arguments[:1] == ["--here"]:
        arguments = arguments[1:]
    else:
        image_python = find_interpreter(process_module)
        if image_python is not None:
            os.execv(image_python, [image_python, "-I", "-S", sys.argv[0], "reaper", "--here", *arguments])
    if len(arguments) != 2 or arguments[0] != "--setup":
        sys.stderr.write("usage: main.py reaper [--here] --setup JSON\n")
        return 2
    setup = loads(arguments[1].encode("utf-8", "surrogateescape"))
    os.umask(0o077)
    process_module.prctl(process_module.PR_SET_DUMPABLE, 0)
    home = str(setup["home"])

    def runner(fd: int, runtime: str) -> int:
        os.umask(0o022)
        supervisor = __import__("_backendai_runner.supervisor", fromlist=["main"])
        runtime = runtime or guess_runtime(process_module)
        code: int = supervisor.main(["--channel-fd", str(fd), "--runtime", runtime, "--home", home])
        return code

    return Reaper(str(setup["channel"]), home, runner).run()


def find_interpreter(process_module: Any) -> Optional[str]:
    """Returns the image's own Python, if it has one that can run the runner."""
    path: Optional[str] = process_module.find_executable("python3")
    if path is None or path.startswith(_PLATFORM):
        return None
    version_check = "import sys; sys.exit(sys.version_info < (3, 8))"
    pid = os.posix_spawn(path, [path, "-I", "-S", "-c", version_check], os.environ)
    return path if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0 else None


def guess_runtime(process_module: Any) -> str:
    """Returns the runtime for an image that names none: Python if the image has Python, else bash or ``app``."""
    if not sys.executable.startswith(_PLATFORM):
        return "python"
    return "bash" if process_module.find_executable("bash") else "app"
