"""Executes runs one at a time in the order of their arrival; each ends with exactly one `finished`."""

from __future__ import annotations

import os
import signal

from . import language_commands, output_files, process
from .console import MAX_BACKGROUND, MAX_UNSENT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Optional, Tuple

    from .console import Console
    from .interpreters import Interpreter

MAX_QUEUED = 64
MAX_QUEUED_CHARS = 32 * 1024 * 1024
_STEPS = ("clean", "build", "exec")


class Run:
    """One run: its request and its state."""

    def __init__(self, message: Dict[str, Any]) -> None:
        self.id: str = message["id"]
        self.mode: str = message["mode"]
        self.code: str = message.get("code") or ""
        self.options: Dict[str, Any] = message.get("options") or {}
        self.env: Dict[str, str] = message.get("env") or {}
        if not isinstance(self.id, str) or not isinstance(self.code, str) or self.mode not in ("query", "batch"):
            raise ValueError("a run needs an id, a mode (query or batch) and code as text")
        if not isinstance(self.options, dict) or not isinstance(self.env, dict):
            raise ValueError("options and env are objects")
        self.size = len(self.code) + sum(len(str(v)) for v in (*self.options.values(), *self.env.values()))
        self.files_before: output_files.Snapshot = {}
        self.cancelled: Optional[str] = None
        self.question: Optional[bytes] = None
        self.steps: List[Tuple[str, str]] = []
        self.step = ""
        self.pid = 0
        self.is_in_interpreter = False
        self.has_raised = False
        self.folder = ""


class Runner:
    """The queue of runs and the active one."""

    def __init__(
        self,
        runtime: str,
        home: str,
        fds: Tuple[int, int, int],
        interpreter: Optional[Interpreter],
        console: Console,
        send: Callable[[Dict[str, Any]], None],
        flush_output: Callable[[], None],
    ) -> None:
        self._runtime = runtime
        self._home = home
        self._fds = fds
        self._interpreter = interpreter
        self._console = console
        self._send = send
        self._flush_output = flush_output
        self._output = os.path.join(home, ".output")
        self._queue: List[Run] = []
        self.active: Optional[Run] = None

    def submit(self, message: Dict[str, Any]) -> None:
        """Accepts a run. Ignores a run id that exists; finishes a run at once that does not fit into the queue."""
        run = Run(message)
        if any(other is not None and other.id == run.id for other in (*self._queue, self.active)):
            return
        if len(self._queue) >= MAX_QUEUED or sum(r.size for r in self._queue) + run.size > MAX_QUEUED_CHARS:
            self._report_finished(run, -1, "queue-full", None, [])
            return
        self._queue.append(run)
        self.advance()

    def advance(self) -> None:
        """Starts the next run if none is active and its interpreter is ready."""
        while self.active is None and self._queue:
            run = self._queue[0]
            in_interpreter = run.mode == "query" and self._interpreter is not None
            if in_interpreter and not (self._interpreter and self._interpreter.is_ready):
                return
            self._queue.pop(0)
            self.active = run
            self._console.limit = MAX_UNSENT
            run.files_before = output_files.snapshot(self._output)
            self._send({"t": "started", "id": run.id})
            if in_interpreter and self._interpreter:
                run.is_in_interpreter = True
                self._interpreter.run(run.code)
            else:
                self._start_steps(run)

    def answer(self, message: Dict[str, Any]) -> None:
        """Passes the client's input to the run that waits for it; ignores any other."""
        run_id, text = message["id"], message["text"]
        if not isinstance(text, str):
            raise ValueError("text is text")
        run = self.active
        if run is None or run.id != run_id or run.question is None or self._interpreter is None:
            return
        number, run.question = run.question, None
        self._interpreter.answer(number, text)

    def asked(self, number: bytes, is_password: bool) -> None:
        """Handles the interpreter's request for input."""
        run = self.active
        if run is not None and run.is_in_interpreter:
            run.question = number
            self._flush_output()
            self._send({"t": "waiting-input", "id": run.id, "is_password": is_password})

    def interrupt(self) -> None:
        """Sends SIGINT to the running code and its processes."""
        run = self.active
        if run is None:
            return
        if run.is_in_interpreter and self._interpreter is not None:
            self._interpreter.signal(signal.SIGINT)
        elif run.pid:
            process.kill_group(run.pid, signal.SIGINT)

    def cancel(self, run_id: Optional[str], reason: str) -> None:
        """Ends a run by force, or all of them when `run_id` is None; a queued run is finished without a start."""
        for run in [r for r in self._queue if run_id in (None, r.id)]:
            self._queue.remove(run)
            self._report_finished(run, 128 + signal.SIGKILL, f"cancelled:{reason}", None, [])
        run_ = self.active
        if run_ is None or run_id not in (None, run_.id):
            return
        run_.cancelled = reason
        if run_.is_in_interpreter and self._interpreter is not None:
            self._interpreter.signal(signal.SIGKILL)
        elif run_.pid:
            process.kill_group(run_.pid, signal.SIGKILL)

    def code_done(self) -> None:
        """Handles the end of the code. Ignores a report without a run, which only the user can have forged."""
        if self.active is not None and self.active.is_in_interpreter:
            self._finish(0, None, None)

    def code_raised(self) -> None:
        """Handles an exception of the code. The exit code stays zero, as specified."""
        if self.active is not None and self.active.is_in_interpreter:
            self.active.has_raised = True

    def interpreter_died(self, status: int) -> None:
        """Handles the death of the interpreter: finishes the active run if it ran there."""
        run = self.active
        if run is None or not run.is_in_interpreter:
            return
        code, number = process.exit_of(status)
        if run.cancelled is not None:
            self._finish(code, f"cancelled:{run.cancelled}", number)
            return
        cause = f"was killed by {process.signal_name(number)}" if number is not None else f"ended with code {code}"
        self._flush_output()
        self._console.add_text(
            "stderr", f"[the interpreter {cause}; its variables are lost, a fresh one takes its place]\n"
        )
        self._finish(code, "interpreter-died", number)

    def child_died(self, pid: int, status: int) -> bool:
        """Handles the end of a batch step or a compiled snippet; returns False if `pid` is neither."""
        run = self.active
        if run is None or run.pid != pid:
            return False
        run.pid = 0
        code, number = process.exit_of(status)
        self._end_step(run, code, number)
        return True

    def _start_steps(self, run: Run) -> None:
        if run.mode == "query" and self._runtime == "app":
            self._console.add_text("stderr", "this image runs no snippets of code; run a command or open a terminal\n")
            self._finish(127, None, None)
            return
        if run.mode == "query":
            try:
                import tempfile

                run.folder = tempfile.mkdtemp(prefix="snippet-")
                run.steps = [("exec", language_commands.snippet_command(run.folder, run.code))]
            except OSError as e:
                self._console.add_text("stderr", f"cannot write the snippet: {e}\n")
                self._finish(126, None, None)
                return
        else:
            for step in _STEPS:
                command = run.options.get(step)
                if command == "*":
                    command = language_commands.default_command(self._runtime, step) or ":"
                if command and isinstance(command, str):
                    run.steps.append((step, command))
        self._next_step(run, 0)

    def _next_step(self, run: Run, code: int) -> None:
        if not run.steps:
            self._finish(code, None, None)
            return
        run.step, command = run.steps.pop(0)
        has_exec = run.step == "exec" or any(step == "exec" for step, _ in run.steps)
        if run.step == "build" and has_exec and run.options.get("buildLog") is False:
            self._console.hide()
        env = process.common_environment(self._home)
        env.update({str(k): str(v) for k, v in run.env.items()})
        try:
            null = os.open("/dev/null", os.O_RDONLY)
            try:
                run.pid = process.spawn(process.shell_argv(command), env, self._home, (null, *self._fds[1:]))
            finally:
                os.close(null)
        except (OSError, ValueError) as e:
            self._console.add_text("stderr", f"cannot start a process: {e}\n")
            self._end_step(run, 126, None)

    def _end_step(self, run: Run, code: int, number: Optional[int]) -> None:
        self._flush_output()
        if run.step == "build":
            self._console.reveal(show=code != 0)
        if run.cancelled is not None:
            self._finish(code, f"cancelled:{run.cancelled}", number)
        elif run.step == "exec":
            self._finish(code, None, number)
        else:
            self._flush_output()
            self._send({"t": f"{run.step}-finished", "id": run.id, "exitCode": code})
            if run.step == "build" and code != 0:
                self._finish(127, None, None)  # as a shell says of a program that is not there
            else:
                self._next_step(run, code)

    def _finish(self, code: int, reason: Optional[str], number: Optional[int]) -> None:
        run = self.active
        if run is None:
            return
        if run.folder:
            import shutil

            shutil.rmtree(run.folder, ignore_errors=True)
        self._flush_output()
        files = output_files.changes(run.files_before, output_files.snapshot(self._output))
        self.active = None
        self._console.limit = MAX_BACKGROUND
        self._report_finished(run, code, reason, number, files)

    def _report_finished(
        self, run: Run, code: int, reason: Optional[str], number: Optional[int], files: List[Dict[str, Any]]
    ) -> None:
        message = {"t": "finished", "id": run.id, "exitCode": code, "reason": reason, "signal": number, "files": files}
        if run.has_raised:
            message["raised"] = True
        self._send(message)
