"""Controls interpreter children from the supervisor: one class for each kind of interpreter."""

from __future__ import annotations

import fcntl
import os

from . import process
from .framing import MAX_FRAME_BYTES, BrokenFrame, pack, unpack

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, List, Optional, Tuple

    from .event_loop import Loop

    StdioFds = Tuple[int, int, int]
    ReportCallback = Callable[[bytes, List[bytes]], None]


_MAX_READS = 8
"""The largest number of successive reads of 256 KiB, which is more than fits into a pipe."""


class Interpreter:
    """Controls an interpreter child process, which runs code and sends reports through a pipe.

    The reports are those of `python_child.py`: H, S, D, I, C, E, M, T.
    """

    features: Tuple[str, ...] = ("query",)
    version = ""
    max_failed_starts = 0
    """The number of failed starts in succession after which the session begins without the interpreter; 0: never."""

    def __init__(self, loop: Loop, stdio_fds: StdioFds, home: str, on_report: ReportCallback) -> None:
        self._loop = loop
        self._fds = stdio_fds
        self._home = home
        self._report = on_report
        self._read_fd = self._write_fd = -1
        self._in = bytearray()
        self._out = bytearray()
        self._run_number = 0
        self.pid = 0
        self.is_ready = False
        self.is_busy: Callable[[], bool] = lambda: False

    def start(self) -> None:
        """Starts a fresh interpreter child. Raises OSError at the limit of processes; the caller may try again."""
        child_read_fd, self._write_fd = os.pipe()
        try:
            self._read_fd, child_write_fd = os.pipe()
        except OSError:
            os.close(child_read_fd)
            os.close(self._write_fd)
            raise
        self._in.clear()
        self._out.clear()
        self.is_ready = False
        try:
            self.pid = self._fork_child(child_read_fd, child_write_fd)
        except OSError:
            os.close(self._write_fd)
            os.close(self._read_fd)
            raise
        finally:
            os.close(child_read_fd)
            os.close(child_write_fd)
        os.set_blocking(self._read_fd, False)
        os.set_blocking(self._write_fd, False)

    def listen(self) -> None:
        """Starts to receive the reports of the child."""
        from . import event_loop

        self._loop.watch(self._read_fd, event_loop.READ_EVENTS, lambda _events: self.read_reports())

    def run(self, code: str) -> None:
        """Sends one piece of code to the child; the report D follows at its end."""
        raise TypeError("an interpreter of its own kind runs code")

    def answer(self, question_number: bytes, answer_text: str) -> None:
        """Sends the client's answer to question `question_number`."""

    def complete(self, text_before_cursor: str) -> bool:
        """Sends a completion request to the child; returns False if this interpreter offers no completions.

        The child answers with report C.
        """
        return False

    def signal(self, signal_number: int) -> None:
        """Signals the child and its process group, as a terminal does."""
        if self.pid:
            process.kill_group(self.pid, signal_number)

    def died(self) -> None:
        """Reads the last reports and closes the pipes after the child was reaped."""
        self.pid = 0
        self.read_reports()
        self.is_ready = False
        for fd in (self._read_fd, self._write_fd):
            self._loop.unwatch(fd)
            os.close(fd)
        self._read_fd = self._write_fd = -1

    def read_reports(self) -> None:
        """Handles the reports of the child that have arrived, without waiting for more.

        Never waits, even if the child goes on writing.
        """
        for _ in range(_MAX_READS):
            if self._read_fd < 0:
                return
            try:
                received_bytes = os.read(self._read_fd, 262_144)
            except OSError:
                return
            if not received_bytes:
                self._loop.unwatch(self._read_fd)
                self._on_pipe_closed()
                return
            self._in += received_bytes
            try:
                if len(self._in) > 2 * MAX_FRAME_BYTES:
                    raise BrokenFrame("too much at once")
                for kind, fields in self._take_reports():
                    self._handle_report(kind, fields)
            except (BrokenFrame, IndexError, ValueError):
                self._in.clear()
                self._loop.unwatch(self._read_fd)
                self.kill_alone()
                return

    def kill_alone(self) -> None:
        """Kills the child, but not its background processes, which belong to the user."""
        if self.pid:
            try:
                os.kill(self.pid, 9)
            except ProcessLookupError:
                return  # dead already; it will be reaped in a moment

    def _on_pipe_closed(self) -> None:
        # The user's code has closed our pipe, or has executed another program in the place of the interpreter. A run
        # that is active lasts as long as the process; without one the process is of no use any more.
        self.is_ready = False
        if not self.is_busy():
            self.kill_alone()

    def _take_reports(self) -> List[Tuple[bytes, List[bytes]]]:
        return list(unpack(self._in))

    def _handle_report(self, kind: bytes, fields: List[bytes]) -> None:
        if kind == b"D" and fields[0] != b"%d" % self._run_number:
            return  # forged, or late because an earlier one was forged: it is not about the code that was sent last
        if kind == b"H":
            self.version = fields[0][:64].decode("utf-8", "replace")
            self.is_ready = True
        self._report(kind, fields)

    def _fork_child(self, child_read_fd: int, child_write_fd: int) -> int:
        raise TypeError("an interpreter of its own kind is started")

    def _send(self, frame: bytes) -> None:
        self._out += frame
        self._flush(0)

    def _flush(self, _events: int) -> None:
        from . import event_loop

        while self._out:
            try:
                written_bytes = os.write(self._write_fd, self._out[:65_536])
            except BlockingIOError:
                self._loop.watch(self._write_fd, event_loop.WRITE_EVENTS, self._flush)
                return
            except OSError:
                self._out.clear()
                break
            del self._out[:written_bytes]
        self._loop.unwatch(self._write_fd)


class PythonInterpreter(Interpreter):
    """Controls a Python child, which is a fork of the supervisor; see `python_child.py`."""

    features = ("query", "input", "complete")
    version = process.python_version()

    def run(self, code: str) -> None:
        self._run_number += 1
        self._send(pack(b"R", [b"%d" % self._run_number, code.encode("utf-8", "surrogatepass")]))

    def answer(self, question_number: bytes, answer_text: str) -> None:
        self._send(pack(b"I", [question_number, answer_text.encode("utf-8", "replace")]))

    def complete(self, text_before_cursor: str) -> bool:
        self._send(pack(b"C", [text_before_cursor.encode("utf-8", "replace")]))
        return True

    def _fork_child(self, child_read_fd: int, child_write_fd: int) -> int:
        from . import python_child

        pid = os.fork()
        if pid == 0:
            try:
                process.reexecute_child([child_read_fd, child_write_fd, *self._fds], self._home)
                python_child.serve(child_read_fd, child_write_fd, self._fds, self._home)
            finally:
                os._exit(70)
        return pid


class BashInterpreter(Interpreter):
    """Controls a persistent interactive bash without a terminal, so that an interrupt does not end the bash."""

    _REPORT_FD = 63
    _ERROR_FD = 62
    _SETUP_COMMANDS = "PS1= PS2= PROMPT_COMMAND=; unset HISTFILE; set +H +m; exec 2>&62 62>&-\n"
    _GREETING_COMMAND = "printf 'H %s\\nS \\n' \"${BASH_VERSION%%(*}\" >&63\n"

    def start(self) -> None:
        super().start()
        self._send((self._SETUP_COMMANDS + self._GREETING_COMMAND).encode())

    def run(self, code: str) -> None:
        self._run_number += 1
        quoted_code = "'" + code.replace("\0", "").replace("'", "'\\''") + "'"
        self._send(
            f"eval {quoted_code} </dev/null 63>&-\nprintf 'D {self._run_number}\\n' >&63\n".encode(
                "utf-8", "surrogateescape"
            )
        )

    def _take_reports(self) -> List[Tuple[bytes, List[bytes]]]:
        *lines, incomplete_line = bytes(self._in).split(b"\n")
        self._in[:] = incomplete_line
        reports = [line.partition(b" ") for line in lines]
        return [(kind, [value]) for kind, _, value in reports if kind in (b"H", b"S", b"D")]

    def _fork_child(self, child_read_fd: int, child_write_fd: int) -> int:
        bash_path = process.find_executable("bash")
        if bash_path is None:
            raise FileNotFoundError("bash")
        null_fd = os.open("/dev/null", os.O_RDWR)
        try:
            return process.spawn(
                [bash_path, "--norc", "--noprofile", "--noediting", "-i"],
                process.common_environment(self._home),
                self._home,
                (child_read_fd, self._fds[1], null_fd),  # its greeting about the missing terminal goes nowhere
                [(child_write_fd, self._REPORT_FD), (self._fds[2], self._ERROR_FD)],
            )
        finally:
            os.close(null_fd)


class ProgramInterpreter(Interpreter):
    """Controls an interpreter of another language, which executes a program of the runner that runs snippets.

    The program lies beside this file.
    """

    max_failed_starts = 3
    _REQUEST_FD, _REPORT_FD = 62, 63
    argv: Tuple[str, ...] = ()

    def run(self, code: str) -> None:
        self._run_number += 1
        self._send(pack(b"R", [b"%d" % self._run_number, code.encode("utf-8", "replace")]))

    def _fork_child(self, child_read_fd: int, child_write_fd: int) -> int:
        null_fd = os.open("/dev/null", os.O_RDONLY)
        try:
            return process.spawn(
                self.argv,
                process.common_environment(self._home),
                self._home,
                (null_fd, *self._fds[1:]),
                [(child_read_fd, self._REQUEST_FD), (child_write_fd, self._REPORT_FD)],
            )
        finally:
            os.close(null_fd)


_PROGRAMS = {
    "nodejs": ("node", (), "query_nodejs.js"),
    "r": ("Rscript", ("--vanilla",), "query_r.R"),
    "julia": ("julia", ("--startup-file=no",), "query_julia.jl"),
    "java": ("java", ("-XX:TieredStopAtLevel=1", "--add-modules", "jdk.jshell"), "QueryJava.java"),
}
"""Maps each runtime to its interpreter, the interpreter's options and our program."""


def _program_argv(runtime: str) -> Tuple[str, ...]:
    """Returns the command of a runtime's interpreter with our program; empty if the image has no such interpreter."""
    program_name, options, file_name = _PROGRAMS.get(runtime, ("", (), ""))
    path = process.find_executable(program_name) if program_name else None
    if path is None or (runtime == "java" and process.find_executable("jshell") is None):
        return ()
    return (path, *options, os.path.join(os.path.dirname(__file__), file_name))


def restore_pipes(*pipe_fds: int) -> None:
    """Makes pipes blocking again, after a child may have made the shared pipes non-blocking or asynchronous."""
    for pipe_fd in pipe_fds:
        flags = fcntl.fcntl(pipe_fd, fcntl.F_GETFL)
        if flags & (os.O_NONBLOCK | os.O_ASYNC):
            fcntl.fcntl(pipe_fd, fcntl.F_SETFL, flags & ~(os.O_NONBLOCK | os.O_ASYNC))


def make_interpreter(
    runtime: str, loop: Loop, stdio_fds: StdioFds, home: str, on_report: ReportCallback
) -> Optional[Interpreter]:
    """Returns the interpreter of a runtime; None if programs are compiled for each run (c) or cannot be run here."""
    if runtime == "python":
        return PythonInterpreter(loop, stdio_fds, home, on_report)
    if runtime == "bash":
        return BashInterpreter(loop, stdio_fds, home, on_report)
    argv = _program_argv(runtime)
    if argv:
        interpreter = ProgramInterpreter(loop, stdio_fds, home, on_report)
        interpreter.argv = argv
        return interpreter
    return None
