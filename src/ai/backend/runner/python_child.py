"""Runs the user's code in a Python interpreter, a fork of the supervisor that is ready in about a millisecond.

The supervisor trusts nothing here: all of it belongs to the user. The guards let honest code survive a mistake (a
closed stdout, emptied builtins, a replaced handler).
"""

from __future__ import annotations
import __future__

import builtins
import fcntl
import os
import sys

from . import display, process, streams
from .light import signal
from .link import Link

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType, TracebackType
    from typing import Any, List, NoReturn, Optional, Tuple

__builtins__ = dict(vars(builtins))  # type: ignore[assignment]  # a module or its dict, both are allowed

SNIPPET_FILENAME = "<input>"
MAX_TRACEBACK_CHARS = 65_536
MAX_ARGUMENT_CHARS = 1024
MAX_ARGUMENTS = 8
_RUNNER_FOLDER = __file__.rpartition("/")[0] + "/"
_FIRST_PIPE_FD = 1001
_PROCESS_START_EVENTS = frozenset(
    ("subprocess.Popen", "os.system", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.exec")
)
_RESERVE_BYTES = 4 * 1024 * 1024
_FUTURE_FLAGS_MASK = sum(getattr(__future__, feature).compiler_flag for feature in __future__.all_feature_names[4:])
_TOP_LEVEL_AWAIT_FLAG = 0x2000
_ONLY_AST_FLAG = 0x400
_COROUTINE_CODE_FLAG = 0x80


class Interpreter:
    """Runs code in one namespace that persists between runs."""

    def __init__(self, link: Link, home: str) -> None:
        self.link = link
        self._home = home
        self._has_libraries = False
        self.pid = os.getpid()
        main_module = type(sys)("__main__")
        main_module.__dict__["__builtins__"] = builtins
        sys.modules["__main__"] = main_module
        self.namespace = main_module.__dict__
        self.out, self.err = streams.open_outputs()
        self.input = streams.InputStream(link.ask)
        self._spare_fds = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, link.write_fd + 1) for fd in (1, 2)]
        self._future_flags = 0
        self._loop: Any = None
        # Given up when the user's code has used up all memory: its traceback and the next request need some.
        self._reserve: Optional[bytearray] = bytearray(_RESERVE_BYTES)
        self.keep_builtins()

    def keep_builtins(self) -> None:
        """Saves the builtins, so that a later run can restore those that an earlier one removed."""
        self._builtins = dict(vars(builtins))

    def open_libraries(self) -> None:
        """Makes the installed packages importable, before the first code runs.

        An interrupt waits until all are importable.

        Start-up code of packages (`.pth` files) can take longer than all else of a session's start, and many sessions
        never run code here: they serve applications, terminals or batch commands.
        """
        if not self._has_libraries:
            self.link.call_uninterrupted(self._open_libraries)

    def _open_libraries(self) -> None:
        from . import libraries

        libraries.open_libraries(self._home)
        self._has_libraries = True
        self.keep_builtins()
        self.prepare_run()  # the start-up code may have replaced handlers and closed streams

    def prepare_run(self) -> None:
        """Restores builtins, descriptors and streams that an earlier run has broken.

        Keeps streams that an earlier run has replaced.
        """
        self._restore_builtins()
        if self._reserve is None:
            try:
                self._reserve = bytearray(_RESERVE_BYTES)
            except MemoryError:
                self._reserve = None
        for spare_fd, fd in zip(self._spare_fds, (1, 2)):
            try:
                os.fstat(fd)
            except OSError:
                try:
                    os.dup2(spare_fd, fd)
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
        """Flushes the interpreter's own stdout and stderr, not the streams that replace them."""
        streams.flush_quietly(self.out)
        streams.flush_quietly(self.err)

    def before_process(self, audit_event: str, _arguments: object) -> None:
        """Implements an audit hook: flushes output before the user's code starts a process."""
        if audit_event in _PROCESS_START_EVENTS:
            self.flush()
            streams.wait_drained(1)
            streams.wait_drained(2)

    def run(self, source: str) -> None:
        """Executes one piece of code; any exception is reported to the console."""
        self.prepare_run()
        exception: Optional[BaseException] = None
        try:
            try:
                self.link.is_running = True
                self.open_libraries()
                self._execute(source)
            finally:
                self.link.is_running = False
        except BaseException as e:  # noqa: BLE001  # all that the user's code can raise ends here, as text
            exception = e
        if isinstance(exception, MemoryError):
            self._reserve = None
        self.link.is_running = False  # again: the interrupt may have come in the line that says so above
        self._restore_builtins()  # the description of the error needs them
        for stream in {
            id(output_stream): output_stream for output_stream in (*streams.current_outputs(), self.out, self.err)
        }.values():
            streams.flush_quietly(stream)
        if exception is not None:
            self._report_exception(exception)
        if os.getpid() != self.pid:
            os._exit(0)  # a child that the code forked has reached the end of the code

    def _execute(self, source: str) -> None:
        import _ast

        # The flag is given to both steps: `await` outside of a function is what a notebook user expects to work.
        compiler_flags = self._future_flags | _TOP_LEVEL_AWAIT_FLAG
        syntax_tree = compile(source, SNIPPET_FILENAME, "exec", compiler_flags | _ONLY_AST_FLAG, dont_inherit=True)
        compile_steps: List[Tuple[Any, str]] = [(syntax_tree, "exec")]
        if syntax_tree.body and isinstance(syntax_tree.body[-1], _ast.Expr) and not source.rstrip().endswith(";"):
            last_expression = _ast.Interactive([syntax_tree.body.pop()])
            compile_steps.append((last_expression, "single"))
        for step_tree, compile_mode in compile_steps:
            code_object = compile(step_tree, SNIPPET_FILENAME, compile_mode, compiler_flags, dont_inherit=True)
            self._future_flags |= code_object.co_flags & _FUTURE_FLAGS_MASK
            compiler_flags |= self._future_flags
            self._evaluate(code_object)

    def _evaluate(self, code_object: CodeType) -> None:
        if not code_object.co_flags & _COROUTINE_CODE_FLAG:
            exec(code_object, self.namespace)
            return
        import asyncio

        if self._loop is None or self._loop.is_closed():
            self._loop = asyncio.new_event_loop()
            asyncio.set_event_loop(self._loop)
        task = self._loop.create_task(eval(code_object, self.namespace))
        try:
            self._loop.run_until_complete(task)
        finally:
            if not task.done():
                task.cancel()

    def _report_exception(self, error: BaseException) -> None:
        traceback_text = ""
        if isinstance(error, SystemExit):
            if error.code is not None and error.code != 0:
                traceback_text = f"SystemExit: {error.code}\n"
        else:
            sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
            try:
                traceback_text = format_error(error)
            except Exception:  # noqa: BLE001  # the exception of the user may break its own description
                traceback_text = f"{type.__getattribute__(type(error), '__name__')}: (its description failed)\n"
        if len(traceback_text) > MAX_TRACEBACK_CHARS:
            traceback_text = (
                traceback_text[: MAX_TRACEBACK_CHARS // 2] + "\n  [...]\n" + traceback_text[-MAX_TRACEBACK_CHARS // 2 :]
            )
        if traceback_text:
            report_texts = [traceback_text, type.__getattribute__(type(error), "__name__"), *_argument_texts(error)]
            self.link.send(b"E", *[report_text.encode("utf-8", "backslashreplace") for report_text in report_texts])


def _argument_texts(error: BaseException) -> List[str]:
    """Returns the arguments of an exception as limited texts; none if their description fails."""
    try:
        return [
            (argument if isinstance(argument, str) else repr(argument))[:MAX_ARGUMENT_CHARS]
            for argument in error.args[:MAX_ARGUMENTS]
        ]
    except BaseException:  # noqa: BLE001  # the exception of the user may break its own description
        return []


def format_error(error: BaseException) -> str:
    """Formats an exception's traceback as Python does, without the frames of the runner."""
    import traceback

    frame_count = 0
    traceback_entry: Optional[TracebackType] = error.__traceback__
    while traceback_entry is not None:
        frame_count, traceback_entry = frame_count + 1, traceback_entry.tb_next
    summary = traceback.TracebackException(
        type(error), error, error.__traceback__, limit=None if frame_count < 5000 else -1000
    )
    seen_ids = set()
    pending_summaries: List[Any] = [summary]
    while pending_summaries:
        error_summary = pending_summaries.pop()
        if error_summary is None or id(error_summary) in seen_ids:
            continue
        seen_ids.add(id(error_summary))
        error_summary.stack[:] = [
            frame for frame in error_summary.stack or () if not frame.filename.startswith(_RUNNER_FOLDER)
        ]
        pending_summaries += [
            error_summary.__cause__,
            error_summary.__context__,
            *(getattr(error_summary, "exceptions", None) or ()),
        ]
    traceback_text = "".join(summary.format())
    if isinstance(error, SyntaxError) and error.filename == SNIPPET_FILENAME:
        traceback_text = traceback_text.partition("Traceback (most recent call last):\n")[2] or traceback_text
    return traceback_text


def serve(read_fd: int, write_fd: int, stdio_fds: Tuple[int, int, int], home: str) -> NoReturn:
    """Runs the interpreter after the fork: `stdio_fds` become 0, 1, 2; closes all other descriptors but the pipes."""
    try:
        process.detach_child()
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)  # as every Python program has it
        link = Link(*_arrange_descriptors(read_fd, write_fd, stdio_fds))
        signal.signal(signal.SIGINT, link.on_interrupt)
        _arrange_modules(home)
        interpreter = Interpreter(link, home)
        _install_hooks(interpreter)
        link.send(b"H", process.python_version().encode())
        # These calls load the extension module _ctypes; the session is announced without waiting for that.
        process.unprotect_child()
        process.prctl(process.PR_SET_PDEATHSIG, signal.SIGKILL)
        link.send(b"S")
    except BaseException as e:  # noqa: BLE001  # the supervisor learns it from the exit code and tries again
        os.write(2, f"the interpreter could not start: {e!r}\n".encode("utf-8", "backslashreplace"))
        os._exit(71)
    while True:
        try:
            _serve_request(interpreter)
        except KeyboardInterrupt:
            continue  # a second interrupt between the end of the code and this line


def _serve_request(interpreter: Interpreter) -> None:
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
            interpreter.open_libraries()
            matches = completion.complete(fields[0].decode("utf-8", "replace"), interpreter.namespace)
        except BaseException:  # noqa: BLE001  # `__dir__` and `__getattr__` of the user may raise anything
            matches = []
        finally:
            link.is_running = False
            link.send(b"C", *matches)


def _arrange_descriptors(read_fd: int, write_fd: int, stdio_fds: Tuple[int, int, int]) -> Tuple[int, int]:
    """Moves the pipes to high descriptor numbers, so that `os.closerange(3, 1000)` in the user's code keeps them open.

    Lower numbers are used if the limit of open files is small.
    """
    for lowest_fd in (_FIRST_PIPE_FD, 240, 16):
        try:
            moved_fds = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, lowest_fd) for fd in (read_fd, write_fd)]
            break
        except OSError:
            continue
    else:
        raise OSError("no room for the descriptors of the interpreter")
    moved_stdio_fds = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, moved_fds[1] + 1) for fd in stdio_fds]
    for target_fd, fd in enumerate(moved_stdio_fds):
        os.dup2(fd, target_fd)
        os.close(fd)
    os.closerange(3, moved_fds[0])
    return moved_fds[0], moved_fds[1]


def _arrange_modules(home: str) -> None:
    """Sets directory, environment and `sys.argv` as if the user had started the interpreter in `home`."""
    try:
        os.chdir(home)
    except OSError:
        os.chdir("/")
    os.environ.update(process.common_environment(home))
    sys.argv = [""]


def _install_hooks(interpreter: Interpreter) -> None:
    """Installs the streams, `input`, the display hook and the fork and audit hooks."""
    link = interpreter.link
    sys.stdin = sys.__stdin__ = interpreter.input  # type: ignore[assignment,misc]  # a text stream, not a TextIOWrapper
    sys.stdout = sys.__stdout__ = interpreter.out  # type: ignore[misc]  # Final in the stubs only
    sys.stderr = sys.__stderr__ = interpreter.err  # type: ignore[misc]  # Final in the stubs only

    def ask_for_line(prompt: object = "", /) -> str:
        """Implements `input`: requests a line of text from the client."""
        print(prompt, end="", flush=True)
        return link.ask(False)

    ask_for_line.__name__ = ask_for_line.__qualname__ = "input"
    builtins.input = ask_for_line
    display.install(link)
    os.register_at_fork(before=interpreter.flush, after_in_child=link.close_in_fork)
    sys.addaudithook(interpreter.before_process)
