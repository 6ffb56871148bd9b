"""The Python interpreter that runs the user's code: a fork of the supervisor, ready in about a millisecond.

The supervisor trusts nothing here: all of it belongs to the user. The guards let honest code survive a mistake (a
closed stdout, emptied builtins, a replaced handler).
"""

from __future__ import annotations
import __future__

import _ast
import builtins
import fcntl
import os
import signal
import sys

from . import display, process, streams
from .link import Link

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType, TracebackType
    from typing import Any, List, NoReturn, Optional, Tuple

__builtins__ = dict(vars(builtins))  # type: ignore[assignment]  # a module or its dict, both are allowed

FILENAME = "<input>"
MAX_TRACEBACK = 65_536
_HERE = __file__.rpartition("/")[0] + "/"
_HIGH_FD = 1001
_STARTS_PROCESS = frozenset(
    ("subprocess.Popen", "os.system", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.exec")
)
_RESERVE = 4 * 1024 * 1024
_FUTURE_MASK = sum(getattr(__future__, name).compiler_flag for name in __future__.all_feature_names[4:])
_TOP_LEVEL_AWAIT = 0x2000
_ONLY_AST = 0x400
_CO_COROUTINE = 0x80


class Interpreter:
    """Runs code in one namespace that persists between runs."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.pid = os.getpid()
        main = type(sys)("__main__")
        main.__dict__["__builtins__"] = builtins
        sys.modules["__main__"] = main
        self.namespace = main.__dict__
        self.out, self.err = streams.open_outputs()
        self.input = streams.InputStream(link.ask)
        self._spare = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, link.write_fd + 1) for fd in (1, 2)]
        self._future = 0
        self._loop: Any = None
        # Given up when the user's code has used up all memory: its traceback and the next request need some.
        self._reserve: Optional[bytearray] = bytearray(_RESERVE)
        self.keep_builtins()

    def keep_builtins(self) -> None:
        """Saves the builtins, so that a later run can restore those that an earlier one removed."""
        self._builtins = dict(vars(builtins))

    def prepare_run(self) -> None:
        """Restores what an earlier run has broken; what it replaced on purpose stays."""
        self._restore_builtins()
        if self._reserve is None:
            try:
                self._reserve = bytearray(_RESERVE)
            except MemoryError:
                self._reserve = None
        for spare, fd in zip(self._spare, (1, 2)):
            try:
                os.fstat(fd)
            except OSError:
                try:
                    os.dup2(spare, fd)
                except OSError:
                    os._exit(70)
        if self.out.closed or self.err.closed:
            self.out, self.err = streams.open_outputs()
        for name, stream in (("stdout", self.out), ("stderr", self.err), ("stdin", self.input)):
            if getattr(getattr(sys, name, None), "closed", True):
                setattr(sys, name, stream)
        if signal.getsignal(signal.SIGINT) != self.link.on_interrupt:
            signal.signal(signal.SIGINT, self.link.on_interrupt)

    def _restore_builtins(self) -> None:
        for name, value in self._builtins.items():
            if name not in vars(builtins):
                setattr(builtins, name, value)

    def flush(self) -> None:
        """Flushes the interpreter's own streams, but none that the user has put in their place."""
        streams.flush_quietly(self.out)
        streams.flush_quietly(self.err)

    def before_process(self, event: str, _arguments: object) -> None:
        """Audit hook: flushes output before the user starts a process that can print."""
        if event in _STARTS_PROCESS:
            self.flush()
            streams.wait_drained(1)
            streams.wait_drained(2)

    def run(self, source: str) -> None:
        """Executes one piece of code; any exception is reported to the console."""
        self.prepare_run()
        error: Optional[BaseException] = None
        try:
            try:
                self.link.is_running = True
                self._execute(source)
            finally:
                self.link.is_running = False
        except BaseException as e:  # noqa: BLE001  # all that the user's code can raise ends here, as text
            error = e
        if isinstance(error, MemoryError):
            self._reserve = None
        self.link.is_running = False  # again: the interrupt may have come in the line that says so above
        self._restore_builtins()  # the description of the error needs them
        for stream in {id(s): s for s in (*streams.current(), self.out, self.err)}.values():
            streams.flush_quietly(stream)
        if error is not None:
            self._report(error)
        if os.getpid() != self.pid:
            os._exit(0)  # a child that the code forked has reached the end of the code

    def _execute(self, source: str) -> None:
        # The flag is given to both steps: `await` outside of a function is what a notebook user expects to work.
        flags = self._future | _TOP_LEVEL_AWAIT
        tree = compile(source, FILENAME, "exec", flags | _ONLY_AST, dont_inherit=True)
        steps: List[Tuple[Any, str]] = [(tree, "exec")]
        if tree.body and isinstance(tree.body[-1], _ast.Expr) and not source.rstrip().endswith(";"):
            last = _ast.Interactive([tree.body.pop()])
            steps.append((last, "single"))
        for step, mode in steps:
            code = compile(step, FILENAME, mode, flags, dont_inherit=True)
            self._future |= code.co_flags & _FUTURE_MASK
            flags |= self._future
            self._evaluate(code)

    def _evaluate(self, code: CodeType) -> None:
        if not code.co_flags & _CO_COROUTINE:
            exec(code, self.namespace)
            return
        import asyncio

        if self._loop is None or self._loop.is_closed():
            self._loop = asyncio.new_event_loop()
            asyncio.set_event_loop(self._loop)
        task = self._loop.create_task(eval(code, self.namespace))
        try:
            self._loop.run_until_complete(task)
        finally:
            if not task.done():
                task.cancel()

    def _report(self, error: BaseException) -> None:
        text = ""
        if isinstance(error, SystemExit):
            if error.code is not None and error.code != 0:
                text = f"SystemExit: {error.code}\n"
        else:
            sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
            try:
                text = format_error(error)
            except Exception:  # noqa: BLE001  # the exception of the user may break its own description
                text = f"{type.__getattribute__(type(error), '__name__')}: (its description failed)\n"
        if len(text) > MAX_TRACEBACK:
            text = text[: MAX_TRACEBACK // 2] + "\n  [...]\n" + text[-MAX_TRACEBACK // 2 :]
        if text:
            self.link.send(b"E", text.encode("utf-8", "backslashreplace"))


def format_error(error: BaseException) -> str:
    """Formats the traceback as Python does, without the frames of the runner."""
    import traceback

    frames = 0
    tb: Optional[TracebackType] = error.__traceback__
    while tb is not None:
        frames, tb = frames + 1, tb.tb_next
    summary = traceback.TracebackException(
        type(error), error, error.__traceback__, limit=None if frames < 5000 else -1000
    )
    seen = set()
    pending: List[Any] = [summary]
    while pending:
        entry = pending.pop()
        if entry is None or id(entry) in seen:
            continue
        seen.add(id(entry))
        entry.stack[:] = [frame for frame in entry.stack or () if not frame.filename.startswith(_HERE)]
        pending += [entry.__cause__, entry.__context__, *(getattr(entry, "exceptions", None) or ())]
    text = "".join(summary.format())
    if isinstance(error, SyntaxError) and error.filename == FILENAME:
        text = text.partition("Traceback (most recent call last):\n")[2] or text
    return text


def serve(read_fd: int, write_fd: int, fds: Tuple[int, int, int], home: str) -> NoReturn:
    """Runs the child after the fork: `fds` become 0, 1, 2; every other descriptor except the two pipes is closed."""
    try:
        process.detach_child()
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)  # as every Python program has it
        link = Link(*_arrange_descriptors(read_fd, write_fd, fds))
        signal.signal(signal.SIGINT, link.on_interrupt)
        _arrange_modules(home)
        interpreter = Interpreter(link)
        _install(interpreter)
        link.send(b"H", process.python_version().encode())
        # After the greeting, before any code: these need libraries to be loaded, and nobody waits for them.
        from . import libraries

        process.settle_child()
        process.prctl(process.PR_SET_PDEATHSIG, signal.SIGKILL)
        libraries.open_libraries(home)
        interpreter.keep_builtins()
        link.send(b"S")
    except BaseException as e:  # noqa: BLE001  # the supervisor learns it from the exit code and tries again
        os.write(2, f"the interpreter could not start: {e!r}\n".encode("utf-8", "backslashreplace"))
        os._exit(71)
    while True:
        try:
            _serve_one(interpreter)
        except KeyboardInterrupt:
            continue  # a second interrupt between the end of the code and this line


def _serve_one(interpreter: Interpreter) -> None:
    link = interpreter.link
    kind, fields = link.receive()
    if kind == b"R":
        try:
            interpreter.run(fields[1].decode("utf-8", "surrogatepass"))
        finally:
            link.send(b"D", fields[0])
    elif kind == b"C":
        matches: List[bytes] = []
        try:
            from . import completion

            link.is_running = True
            matches = completion.complete(fields[0].decode("utf-8", "replace"), interpreter.namespace)
        except BaseException:  # noqa: BLE001  # `__dir__` and `__getattr__` of the user may raise anything
            matches = []
        finally:
            link.is_running = False
            link.send(b"C", *matches)


def _arrange_descriptors(read_fd: int, write_fd: int, fds: Tuple[int, int, int]) -> Tuple[int, int]:
    """Moves the pipes beyond the reach of `os.closerange(3, 1000)`, if the limit of open files allows."""
    for base in (_HIGH_FD, 240, 16):
        try:
            moved = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, base) for fd in (read_fd, write_fd)]
            break
        except OSError:
            continue
    else:
        raise OSError("no room for the descriptors of the interpreter")
    std = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, moved[1] + 1) for fd in fds]
    for target, fd in enumerate(std):
        os.dup2(fd, target)
        os.close(fd)
    os.closerange(3, moved[0])
    return moved[0], moved[1]


def _arrange_modules(home: str) -> None:
    """Sets directory, environment and `sys.argv` as if the user had started the interpreter in `home`."""
    try:
        os.chdir(home)
    except OSError:
        os.chdir("/")
    os.environ.update(process.common_environment(home))
    sys.argv = [""]


def _install(interpreter: Interpreter) -> None:
    """Installs the streams, `input`, the display hook and the fork and audit hooks."""
    link = interpreter.link
    sys.stdin = sys.__stdin__ = interpreter.input  # type: ignore[assignment,misc]  # a text stream, not a TextIOWrapper
    sys.stdout = sys.__stdout__ = interpreter.out  # type: ignore[misc]  # Final in the stubs only
    sys.stderr = sys.__stderr__ = interpreter.err  # type: ignore[misc]  # Final in the stubs only

    def ask(prompt: object = "", /) -> str:
        """Asks the user for a line of text."""
        print(prompt, end="", flush=True)
        return link.ask(False)

    ask.__name__ = ask.__qualname__ = "input"
    builtins.input = ask
    display.install(link)
    os.register_at_fork(before=interpreter.flush, after_in_child=link.forget)
    sys.addaudithook(interpreter.before_process)
