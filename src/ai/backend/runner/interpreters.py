"""The supervisor's side of an interpreter child: one class for each kind of interpreter."""

from __future__ import annotations

import fcntl
import os

from . import process
from .framing import MAX_FRAME, BrokenFrame, pack, unpack

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, List, Optional, Tuple

    from .event_loop import Loop

    Fds = Tuple[int, int, int]
    Report = Callable[[bytes, List[bytes]], None]


class Interpreter:
    """A child that runs code in a lasting context, with the reports of `python_child.py`: H, S, D, I, C, E, M, T."""

    features: Tuple[str, ...] = ("query",)
    version = ""

    def __init__(self, loop: Loop, fds: Fds, home: str, report: Report) -> None:
        self._loop = loop
        self._fds = fds
        self._home = home
        self._report = report
        self._read_fd = self._write_fd = -1
        self._in = bytearray()
        self._out = bytearray()
        self._number = 0
        self.pid = 0
        self.is_ready = False
        self.is_busy: Callable[[], bool] = lambda: False

    def start(self) -> None:
        """Starts a fresh child. Raises OSError at the limit of processes; the caller may try again later."""
        child_read, self._write_fd = os.pipe()
        try:
            self._read_fd, child_write = os.pipe()
        except OSError:
            os.close(child_read)
            os.close(self._write_fd)
            raise
        self._in.clear()
        self._out.clear()
        self.is_ready = False
        try:
            self.pid = self._fork(child_read, child_write)
        except OSError:
            os.close(self._write_fd)
            os.close(self._read_fd)
            raise
        finally:
            os.close(child_read)
            os.close(child_write)
        os.set_blocking(self._read_fd, False)
        os.set_blocking(self._write_fd, False)

    def listen(self) -> None:
        """Starts to receive the reports of the child."""
        from . import event_loop

        self._loop.watch(self._read_fd, event_loop.READ, lambda _events: self.read_reports())

    def run(self, code: str) -> None:
        """Sends one piece of code; the report D follows at its end."""
        raise TypeError("an interpreter of its own kind runs code")

    def answer(self, number: bytes, text: str) -> None:
        """Sends what the client typed for question `number`."""

    def complete(self, before: str) -> bool:
        """Requests completions (report C); returns False if this interpreter has none."""
        return False

    def signal(self, number: int) -> None:
        """Signals the child and its process group, as a terminal does."""
        if self.pid:
            process.kill_group(self.pid, number)

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
        """Handles all reports that have arrived; never waits."""
        while self._read_fd >= 0:
            try:
                data = os.read(self._read_fd, 262_144)
            except OSError:
                return
            if not data:
                self._loop.unwatch(self._read_fd)
                self._cut_off()
                return
            self._in += data
            try:
                if len(self._in) > 2 * MAX_FRAME:
                    raise BrokenFrame("too much at once")
                for kind, fields in self._parse():
                    self._handle(kind, fields)
            except (BrokenFrame, IndexError, ValueError):
                self._in.clear()
                self._loop.unwatch(self._read_fd)
                self.kill_alone()
                return

    def kill_alone(self) -> None:
        """Kills the child without its background processes, which belong to the user."""
        if self.pid:
            try:
                os.kill(self.pid, 9)
            except ProcessLookupError:
                return  # dead already; it will be reaped in a moment

    def _cut_off(self) -> None:
        # The user's code has closed our pipe, or has executed another program in the place of the interpreter. A run
        # that is active lasts as long as the process; without one the process is of no use any more.
        self.is_ready = False
        if not self.is_busy():
            self.kill_alone()

    def _parse(self) -> List[Tuple[bytes, List[bytes]]]:
        return list(unpack(self._in))

    def _handle(self, kind: bytes, fields: List[bytes]) -> None:
        if kind == b"D" and fields[0] != b"%d" % self._number:
            return  # forged, or late because an earlier one was forged: it is not about the code that was sent last
        if kind == b"H":
            self.version = fields[0][:64].decode("utf-8", "replace")
            self.is_ready = True
        self._report(kind, fields)

    def _fork(self, child_read: int, child_write: int) -> int:
        raise TypeError("an interpreter of its own kind is started")

    def _send(self, data: bytes) -> None:
        self._out += data
        self._flush(0)

    def _flush(self, _events: int) -> None:
        from . import event_loop

        while self._out:
            try:
                done = os.write(self._write_fd, self._out[:65_536])
            except BlockingIOError:
                self._loop.watch(self._write_fd, event_loop.WRITE, self._flush)
                return
            except OSError:
                self._out.clear()
                break
            del self._out[:done]
        self._loop.unwatch(self._write_fd)


class PythonInterpreter(Interpreter):
    """A fork of the supervisor, before or after it has seen the user's requests; see `python_child.py`."""

    features = ("query", "input", "complete")
    version = process.python_version()

    def run(self, code: str) -> None:
        self._number += 1
        self._send(pack(b"R", [b"%d" % self._number, code.encode("utf-8", "surrogatepass")]))

    def answer(self, number: bytes, text: str) -> None:
        self._send(pack(b"I", [number, text.encode("utf-8", "replace")]))

    def complete(self, before: str) -> bool:
        self._send(pack(b"C", [before.encode("utf-8", "replace")]))
        return True

    def _fork(self, child_read: int, child_write: int) -> int:
        from . import python_child

        pid = os.fork()
        if pid == 0:
            try:
                process.execute_anew([child_read, child_write, *self._fds], self._home)
                python_child.serve(child_read, child_write, self._fds, self._home)
            finally:
                os._exit(70)
        return pid


class BashInterpreter(Interpreter):
    """A persistent interactive bash without a terminal, so that an interrupt returns to it instead of ending it."""

    _REPORT_FD = 63
    _ERROR_FD = 62
    _SETTINGS = "PS1= PS2= PROMPT_COMMAND=; unset HISTFILE; set +H +m; exec 2>&62 62>&-\n"
    _GREETING = "printf 'H %s\\nS \\n' \"${BASH_VERSION%%(*}\" >&63\n"

    def start(self) -> None:
        super().start()
        self._send((self._SETTINGS + self._GREETING).encode())

    def run(self, code: str) -> None:
        self._number += 1
        quoted = "'" + code.replace("\0", "").replace("'", "'\\''") + "'"
        self._send(
            f"eval {quoted} </dev/null 63>&-\nprintf 'D {self._number}\\n' >&63\n".encode("utf-8", "surrogateescape")
        )

    def _parse(self) -> List[Tuple[bytes, List[bytes]]]:
        *lines, rest = bytes(self._in).split(b"\n")
        self._in[:] = rest
        reports = [line.partition(b" ") for line in lines]
        return [(kind, [value]) for kind, _, value in reports if kind in (b"H", b"S", b"D")]

    def _fork(self, child_read: int, child_write: int) -> int:
        program = process.find_executable("bash")
        if program is None:
            raise FileNotFoundError("bash")
        null = os.open("/dev/null", os.O_RDWR)
        try:
            return process.spawn(
                [program, "--norc", "--noprofile", "--noediting", "-i"],
                process.common_environment(self._home),
                self._home,
                (child_read, self._fds[1], null),  # its greeting about the missing terminal goes nowhere
                [(child_write, self._REPORT_FD), (self._fds[2], self._ERROR_FD)],
            )
        finally:
            os.close(null)


def restore_pipe(fd: int) -> None:
    """Resets the modes that a child may have set on a shared pipe: non-blocking, asynchronous."""
    flags = fcntl.fcntl(fd, fcntl.F_GETFL)
    if flags & (os.O_NONBLOCK | os.O_ASYNC):
        fcntl.fcntl(fd, fcntl.F_SETFL, flags & ~(os.O_NONBLOCK | os.O_ASYNC))


def make_interpreter(runtime: str, loop: Loop, fds: Fds, home: str, report: Report) -> Optional[Interpreter]:
    """Returns the interpreter of a runtime; None for a runtime whose programs are compiled for each run (c)."""
    if runtime == "python":
        return PythonInterpreter(loop, fds, home, report)
    if runtime == "bash":
        return BashInterpreter(loop, fds, home, report)
    return None
