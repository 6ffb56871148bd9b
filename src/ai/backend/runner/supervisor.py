"""Runs the supervisor, which owns the channel, restarts the interpreter, and survives the user's code.

No threads, non-blocking descriptors, limited buffers. The user's code runs in children that have neither the channel
nor, as the supervisor is not dumpable, a way to it through /proc.
"""

from __future__ import annotations

import os
import sys

from . import process
from .event_loop import READ_EVENTS, WRITE_EVENTS, Loop, Timer
from .interpreters import make_interpreter, restore_pipes
from .light import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Optional, Sequence

PROTOCOL_VERSION = 1
_FLUSH_DELAY_S = 0.004
_MAX_RESTART_DELAY_S = 2.0
_MAX_DRAIN_READS = 256
_PROGRAM_MESSAGES = ("program-input", "program-taken", "program-resize", "program-signal", "program-end")
SERVICE_DEFINITIONS_FOLDER = "/etc/backend.ai/service-defs"
"""The directory of service definitions in images (spec 03-05, "Service Definition DSL")."""
BOOTSTRAP_SCRIPT_PATH = "/opt/container/bootstrap.sh"
"""The script with which an image starts its own services (spec 03-05, "Custom startup scripts")."""


class Supervisor:
    """Runs the user's code of one workload. `run` returns the exit code of the runner."""

    def __init__(self, channel_fd: int, runtime: str, home: str, service_definitions_folder: str) -> None:
        self._runtime = runtime
        self._service_defs = service_definitions_folder
        self._home = home
        process.close_inherited(channel_fd)
        os.set_inheritable(channel_fd, False)
        self._loop = Loop()
        # A signal without a handler of Python's does not reach the wake-up pipe.
        signal.signal(signal.SIGCHLD, lambda *_args: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        stdout_read_fd, self._out = os.pipe()
        stderr_read_fd, self._err = os.pipe()
        self._null = os.open("/dev/null", os.O_RDONLY)
        self._streams = {stdout_read_fd: "stdout", stderr_read_fd: "stderr"}
        stdio_fds = (self._null, self._out, self._err)
        self._interpreter = make_interpreter(runtime, self._loop, stdio_fds, home, self._on_report)
        if self._interpreter is not None:
            # As early as can be: the child starts while the rest of the supervisor is still being imported.
            self._interpreter.start()
        self._version = ""
        self._announced = False
        self._has_started = False
        self._restart_delay = 0.05
        self._failed_starts = 0
        self._problems: List[str] = []
        self._flush_timer: Optional[Timer] = None
        self._log_timer: Optional[Timer] = None
        self._terminals: Any = None
        self._files: Any = None
        self._services: Any = None
        self._programs: Any = None
        self._bootstrap: Any = None
        self._load_components(channel_fd, stdio_fds)

    def _load_components(self, channel_fd: int, stdio_fds: Any) -> None:
        from .completion_requests import CompletionRequests
        from .console import Console, SessionLog
        from .framing import Channel, Outbox, from_base64
        from .runs import Runner

        self._channel = Channel(channel_fd)
        self._console = Console()
        self._log = SessionLog()
        self._outbox = outbox = Outbox(self._channel, self._log.write)
        self._runner = Runner(
            self._loop,
            self._runtime,
            self._home,
            stdio_fds,
            self._interpreter,
            self._console,
            outbox.send,
            self._flush_output,
        )
        if self._interpreter is not None:
            self._interpreter.is_busy = self._is_busy
        self._completions = CompletionRequests(self._loop, self._interpreter, self._is_busy, outbox)
        for fd in self._streams:
            os.set_blocking(fd, False)
            self._loop.watch(fd, READ_EVENTS, self._on_output)
        self._loop.on_wakeup = self._reap_children
        self._loop.before_wait = self._before_wait
        self._handlers: Dict[str, Callable[[Dict[str, Any]], None]] = {
            "run": self._runner.submit,
            "input": self._runner.answer,
            "interrupt": lambda _message: self._runner.interrupt(),
            "cancel": lambda message: self._runner.cancel(message["id"], str(message.get("reason") or "")),
            "complete": self._completions.complete,
            "file-write": lambda message: self._open_files().write(message),
            "file-list": lambda message: self._open_files().list(message),
            "file-read": lambda message: self._open_files().read(message),
            "pty-open": self._open_terminal,
            "pty-input": lambda message: self._open_terminals().write(message["pty"], from_base64(message["data"])),
            "pty-resize": lambda message: self._open_terminals().resize(
                message["pty"], message["rows"], message["cols"]
            ),
            "pty-restart": lambda message: self._open_terminals().restart(message["pty"]),
            "pty-close": lambda message: self._open_terminals().close_terminal(message["pty"]),
            "program-start": lambda message: self._open_programs().start(message),
            **dict.fromkeys(_PROGRAM_MESSAGES, lambda message: self._open_programs().handle(message)),
            "service-start": lambda message: self._open_services().start(message),
            "service-stop": lambda message: self._open_services().stop(message),
            "service-list": lambda message: self._open_services().list(message),
            "restart": lambda _message: self._restart_interpreter(),
            "ping": lambda message: outbox.reply(message, {"runtime": self._runtime, "busy": self._is_busy()}),
            "shutdown": lambda _message: self._loop.stop(),
        }

    def run(self) -> int:
        """Handles messages of the agent until the channel is closed or a shutdown is requested."""
        for signal_number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(signal_number, lambda *_args: self._loop.stop())
        process.prctl(process.PR_SET_DUMPABLE, 0)
        if os.path.isfile(BOOTSTRAP_SCRIPT_PATH):
            from .image_bootstrap import ImageBootstrap

            self._bootstrap = ImageBootstrap(BOOTSTRAP_SCRIPT_PATH, self._loop, self._outbox)
            self._bootstrap.start(self._home, (self._null, self._out, self._err))
        self._reap_children()  # a child that died before the wake-up was in place
        if self._interpreter is not None and self._interpreter.pid:
            self._interpreter.listen()
            self._interpreter.read_reports()
        elif self._interpreter is None:
            self._announce()
        try:
            self._loop.run()
        finally:
            self._stop_children()
            self._channel.flush()
        return 0

    # ---- messages

    def _is_busy(self) -> bool:
        return self._runner.active is not None

    def _on_channel(self, poll_events: int) -> None:
        from .framing import BrokenFrame

        if not poll_events & READ_EVENTS:
            return
        try:
            messages = self._channel.receive()
        except BrokenFrame as e:
            self._outbox.warn(str(e))
            messages = None
        if messages is None:
            self._loop.stop()
            return
        for message in messages:
            self._dispatch(message)

    def _dispatch(self, message: Dict[str, Any]) -> None:
        from .files import REFUSALS, as_file_error

        message_type = message.get("t")
        handler = self._handlers.get(message_type) if isinstance(message_type, str) else None
        if handler is None:
            self._outbox.refuse(message, "invalid", "unknown message")
            return
        try:
            handler(message)
        except REFUSALS as e:
            error = as_file_error(e)
            self._outbox.refuse(message, error.kind, str(error))

    def _before_wait(self) -> bool:
        """Starts queued runs, continues downloads and sends buffered output before the loop waits.

        Returns True while downloads can continue.
        """
        from .framing import HARD_LIMIT_BYTES, HIGH_WATER_BYTES

        self._runner.advance()
        file_requests = self._files
        if file_requests is not None and file_requests.is_reading and self._channel.unsent < HIGH_WATER_BYTES:
            file_requests.advance()
        if self._flush_timer is None and not self._console.is_empty and self._runner.active is not None:
            self._flush_timer = self._loop.call_later(_FLUSH_DELAY_S, self._flush_console)
        if not self._channel.flush():
            self._loop.stop()
            return True
        unsent_bytes = self._channel.unsent
        is_channel_full = unsent_bytes > HIGH_WATER_BYTES
        if not is_channel_full and self._terminals is not None:
            self._terminals.resume()  # they may have been held back within this very round
        self._loop.watch(
            self._channel.fd,
            (READ_EVENTS if unsent_bytes < HARD_LIMIT_BYTES else 0) | (WRITE_EVENTS if unsent_bytes else 0),
            self._on_channel,
        )
        if self._log.blocked and self._log_timer is None:
            self._log_timer = self._loop.call_later(0.1, self._flush_log)
        return file_requests is not None and file_requests.is_reading and not is_channel_full

    def _flush_log(self) -> None:
        self._log_timer = None
        self._log.flush()

    # ---- console

    def _on_output(self, _events: int) -> None:
        # What the interpreter has reported before it printed this is in its pipe already: it comes first.
        if self._interpreter is not None:
            self._interpreter.read_reports()
        self._read_outputs(1)

    def _read_outputs(self, max_reads: int) -> None:
        for fd, stream in self._streams.items():
            for _ in range(max_reads):
                try:
                    output_bytes = os.read(fd, 65_536)
                except OSError:
                    break
                self._log.write(stream, output_bytes)
                self._console.feed(stream, output_bytes)

    def _flush_output(self) -> None:
        """Sends all output printed until now, so that it precedes the next message."""
        self._read_outputs(_MAX_DRAIN_READS)
        self._console.end_of_text()
        self._flush_console(ignores_limit=True)

    def _flush_console(self, ignores_limit: bool = False) -> None:
        from .framing import HIGH_WATER_BYTES

        if self._flush_timer is not None:
            self._flush_timer.cancel()
            self._flush_timer = None
        active_run = self._runner.active
        if active_run is None:
            return
        while ignores_limit or self._channel.unsent < HIGH_WATER_BYTES:
            console_items = self._console.take_items()
            if not console_items:
                break
            self._outbox.send({"t": "console", "id": active_run.id, "items": console_items})
        else:
            return
        for stream, dropped_chars in self._console.take_dropped().items():
            self._outbox.send({"t": "truncated", "id": active_run.id, "stream": stream, "dropped": dropped_chars})

    # ---- the interpreter

    def _on_report(self, kind: bytes, fields: List[bytes]) -> None:
        """Handles a report of the interpreter, which the user's code may forge: a forgery affects only its own run."""
        if kind == b"H":
            if not self._announced:
                self._announce()
        elif kind == b"S":
            self._has_started = True
            self._restart_delay = 0.05
        elif kind == b"D":
            self._runner.code_done()
            restore_pipes(self._out, self._err)
            self._runner.advance()
        elif kind == b"I":
            self._runner.asked(fields[0], fields[1] == b"1")
        elif kind == b"C":
            self._completions.completed(fields)
        else:
            # The child has waited until its pipes were empty: what is in them now was printed after this.
            self._add_report_to_console(kind, fields)

    def _add_report_to_console(self, kind: bytes, fields: List[bytes]) -> None:
        texts = [field.decode("utf-8", "replace") for field in fields]
        if kind == b"X":  # the child has printed the error itself
            self._runner.code_raised(texts)
        elif kind == b"E":
            self._runner.code_raised(texts)
            self._console.end_of_text()
            self._log.write("stderr", fields[0])
            self._console.add_text("stderr", texts[0])
        elif kind == b"M":
            self._console.add_rich("media", [texts[0][:128], texts[1]], len(texts[1]))
        elif kind == b"T":
            self._console.add_rich("html", texts[0], len(texts[0]))

    def _announce(self) -> None:
        from .language_commands import SNIPPET_RUNTIMES, compiler_version

        self._announced = True
        if self._bootstrap is not None and self._bootstrap.is_running:
            self._bootstrap.done = self._announce
            return
        code_features: Sequence[str] = ("query",) if self._runtime in SNIPPET_RUNTIMES else ()
        if self._interpreter is not None:
            code_features = self._interpreter.features
        features = [*code_features, "batch", "pty", "files", "services", "programs"]
        version = self._interpreter.version if self._interpreter is not None else compiler_version(self._runtime)
        ready_message = {"t": "ready", "protocol": PROTOCOL_VERSION, "runtime": self._runtime}
        problems = [*self._problems, self._bootstrap.problem if self._bootstrap is not None else None]
        problem = "; ".join(filter(None, problems)) or None
        self._outbox.send({**ready_message, "version": version, "features": features, "problem": problem})

    def _restart_interpreter(self) -> None:
        self._runner.cancel(None, "restart")
        self._announced = False
        if self._interpreter is None:
            self._announce()
        elif self._interpreter.pid:
            self._interpreter.signal(signal.SIGKILL)

    def _start_interpreter(self) -> None:
        if self._interpreter is None or self._interpreter.pid:
            return
        restore_pipes(self._out, self._err)
        self._has_started = False
        try:
            self._interpreter.start()
            self._interpreter.listen()
        except OSError as e:
            # The limit of processes is reached: the user's own ones must end first.
            self._outbox.warn(f"no fresh interpreter yet: {e}")
            self._retry_start_later()

    def _retry_start_later(self) -> None:
        self._restart_delay = min(self._restart_delay * 2, _MAX_RESTART_DELAY_S)
        self._loop.call_later(self._restart_delay, self._start_interpreter)

    def _reap_children(self) -> None:
        while True:
            try:
                pid, wait_status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if self._interpreter is not None and pid == self._interpreter.pid:
                self._interpreter_died(wait_status)
            elif not self._runner.child_died(pid, wait_status):
                process_owners = (self._bootstrap, self._services, self._terminals, self._programs)
                any(
                    process_owner is not None and process_owner.child_died(pid, wait_status)
                    for process_owner in process_owners
                )

    def _interpreter_died(self, wait_status: int) -> None:
        if self._interpreter is None:
            return
        self._interpreter.died()
        self._completions.completed([])
        self._runner.interpreter_died(wait_status)
        if self._has_started:
            self._start_interpreter()
            return
        self._failed_starts += 1
        if not self._announced and self._failed_starts == self._interpreter.max_failed_starts:
            self._problems.append(f"the interpreter of {self._runtime} does not start, see the log: no query mode")
            self._interpreter = self._runner.interpreter = None
            self._announce()
        else:
            self._retry_start_later()

    # ---- files, terminals and services

    def _open_files(self) -> Any:
        from .file_requests import FileRequests

        self._files = self._files or FileRequests(self._home, self._outbox)
        return self._files

    def _open_terminals(self) -> Any:
        from .terminals import Terminals

        self._terminals = self._terminals or Terminals(self._loop, self._channel, self._home)
        return self._terminals

    def _open_programs(self) -> Any:
        from .programs import Programs

        self._programs = self._programs or Programs(self._loop, self._outbox, self._open_terminals())
        return self._programs

    def _open_services(self) -> Any:
        if self._services is None:
            from .services import Services

            self._services = Services(
                self._loop, self._home, self._runtime, self._service_defs, self._outbox, self._log.write
            )
        return self._services

    def _open_terminal(self, message: Dict[str, Any]) -> None:
        name = message["pty"]
        if not isinstance(name, str) or not 1 <= len(name) <= 128:
            raise ValueError("pty is a name of 1 to 128 characters")
        self._open_terminals().open(name, message.get("rows", 24), message.get("cols", 80))
        self._outbox.reply(message, {"pty": name})

    def _stop_children(self) -> None:
        if self._terminals is not None:
            self._terminals.close_all()
        if self._programs is not None:
            self._programs.end_all()
        if self._files is not None:
            self._files.close()
        if self._services is not None:
            self._services.end_all()
        self._runner.cancel(None, "shutdown")
        if self._interpreter is not None and self._interpreter.pid:
            self._interpreter.signal(signal.SIGKILL)


def main(arguments: Sequence[str]) -> int:
    """Parses `--channel-fd N --runtime NAME --home DIR [--service-defs DIR]` and serves; returns 2 if it cannot."""
    from .language_commands import runtime_of

    if arguments[:1] == ["--worker"]:  # see `process.reexecute_child`
        from .python_child import serve

        read_fd, write_fd, *stdio_fds = map(int, arguments[2:])
        serve(read_fd, write_fd, (stdio_fds[0], stdio_fds[1], stdio_fds[2]), arguments[1])
    options = dict(zip(arguments[::2], arguments[1::2]))
    unknown_options = set(options) - {"--channel-fd", "--runtime", "--home", "--service-defs"}
    runtime, home = options.get("--runtime", "python"), options.get("--home", "/home/work")
    channel_fd = options.get("--channel-fd", "3")
    if unknown_options or len(arguments) % 2 or not channel_fd.isdigit():
        print("usage: runner_main.py --channel-fd N --runtime NAME --home DIR", file=sys.stderr)
        return 2
    process.restore_session_environment()
    os.environ["HOME"] = home
    try:
        os.mkdir(os.path.join(home, ".output"), 0o755)
    except OSError:
        pass  # it is there, or the home is read-only; a run without it reports no files
    process.restrict_ssh_keys(os.path.join(home, ".ssh"))
    return Supervisor(
        int(channel_fd), runtime_of(runtime), home, options.get("--service-defs", SERVICE_DEFINITIONS_FOLDER)
    ).run()
