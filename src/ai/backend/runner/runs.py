"""Executes runs one at a time in the order of their arrival; each ends with exactly one `finished`."""

from __future__ import annotations

import os
import time

from . import language_commands, output_files, process
from .console import MAX_BACKGROUND_CHARS, MAX_UNSENT_CHARS
from .light import signal
from .program_input import ProgramInput

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Optional, Tuple

    from .console import Console
    from .event_loop import Loop
    from .interpreters import Interpreter

MAX_QUEUED_RUNS = 64
MAX_EXCEPTION_TEXTS = 10
MAX_EXCEPTION_CHARS = 4096
MAX_QUEUED_CHARS = 32 * 1024 * 1024
_BATCH_STEPS = ("clean", "build", "exec")


class Run:
    """Holds the request and the state of one run of the user's code."""

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
        trace = message.get("trace")
        self.trace: str = trace if isinstance(trace, str) else ""
        self.phases: List[List[Any]] = []
        self.phase: Tuple[str, float] = ("", 0.0)
        self.size = len(self.code) + sum(len(str(value)) for value in (*self.options.values(), *self.env.values()))
        self.files_before: output_files.Snapshot = {}
        self.cancelled: Optional[str] = None
        self.question: Optional[bytes] = None
        self.is_asked = False
        self.steps: List[Tuple[str, str]] = []
        self.step = ""
        self.pid = 0
        self.is_in_interpreter = False
        self.exception: Optional[List[Any]] = None
        self.folder = ""

    def begin_phase(self, name: str) -> None:
        """Records the name and the start time of a phase of the run."""
        self.phase = (name, time.time())

    def end_phase(self) -> None:
        """Records the end time of the current phase of the run. Does nothing if no phase is under way."""
        name, started_at = self.phase
        if name:
            self.phases.append([name, started_at, time.time()])
            self.phase = ("", 0.0)


class Runner:
    """Executes the active run, and queues the runs that follow."""

    def __init__(
        self,
        loop: Loop,
        runtime: str,
        home: str,
        stdio_fds: Tuple[int, int, int],
        interpreter: Optional[Interpreter],
        console: Console,
        send: Callable[[Dict[str, Any]], None],
        flush_output: Callable[[], None],
    ) -> None:
        self._runtime = runtime
        self._home = home
        self._fds = stdio_fds
        self.interpreter = interpreter
        self._console = console
        self._send = send
        self._flush_output = flush_output
        self._output_folder = os.path.join(home, ".output")
        self._input = ProgramInput(loop, self._on_program_waits)
        self._queue: List[Run] = []
        self.active: Optional[Run] = None

    def submit(self, message: Dict[str, Any]) -> None:
        """Queues a run. Ignores a known run id; finishes a run at once that does not fit into the queue."""
        run = Run(message)
        if any(known_run is not None and known_run.id == run.id for known_run in (*self._queue, self.active)):
            return
        if (
            len(self._queue) >= MAX_QUEUED_RUNS
            or sum(queued_run.size for queued_run in self._queue) + run.size > MAX_QUEUED_CHARS
        ):
            self._report_finished(run, -1, "queue-full", None, [])
            return
        self._queue.append(run)
        self.advance()

    def advance(self) -> None:
        """Starts the next run if none is active and its interpreter is ready."""
        while self.active is None and self._queue:
            run = self._queue[0]
            runs_in_interpreter = run.mode == "query" and self.interpreter is not None
            if runs_in_interpreter and not (self.interpreter and self.interpreter.is_ready):
                return
            self._queue.pop(0)
            self.active = run
            self._console.limit = MAX_UNSENT_CHARS
            run.files_before = output_files.snapshot(self._output_folder)
            self._send({"t": "started", "id": run.id})
            if runs_in_interpreter and self.interpreter:
                run.is_in_interpreter = True
                run.begin_phase("code")
                self.interpreter.run(run.code)
            else:
                self._start_steps(run)

    def answer(self, message: Dict[str, Any]) -> None:
        """Passes the client's input to the run that waits for input; ignores the input of other runs."""
        run_id, answer_text = message["id"], message["text"]
        if not isinstance(answer_text, str):
            raise ValueError("text is text")
        run = self.active
        if run is None or run.id != run_id:
            return
        if run.pid and self._input.is_asked:
            self._input.answer(answer_text)
        elif run.question is not None and self.interpreter is not None:
            question_number, run.question, run.is_asked = run.question, None, False
            self.interpreter.answer(question_number, answer_text)

    def asked(self, question_number: bytes, is_password: bool) -> None:
        """Forwards the interpreter's request for input to the client.

        Further requests are ignored until an answer or an interrupt.
        """
        run = self.active
        if run is None or not run.is_in_interpreter:
            return
        run.question = question_number
        if not run.is_asked:
            run.is_asked = True
            self._request_input(run, is_password)

    def _on_program_waits(self) -> None:
        if self.active is not None and self.active.pid:
            self._request_input(self.active, is_password=False)

    def _request_input(self, run: Run, is_password: bool) -> None:
        self._flush_output()
        self._send({"t": "waiting-input", "id": run.id, "is_password": is_password})

    def interrupt(self) -> None:
        """Sends SIGINT to the running code and its processes."""
        run = self.active
        if run is None:
            return
        if run.is_in_interpreter and self.interpreter is not None:
            run.is_asked = False
            self.interpreter.signal(signal.SIGINT)
        elif run.pid:
            process.kill_group(run.pid, signal.SIGINT)

    def cancel(self, run_id: Optional[str], reason: str) -> None:
        """Ends a run by force, or all runs if `run_id` is None; finishes a queued run without a start."""
        for queued_run in [candidate_run for candidate_run in self._queue if run_id in (None, candidate_run.id)]:
            self._queue.remove(queued_run)
            self._report_finished(queued_run, 128 + signal.SIGKILL, f"cancelled:{reason}", None, [])
        active_run = self.active
        if active_run is None or run_id not in (None, active_run.id):
            return
        active_run.cancelled = reason
        if active_run.is_in_interpreter and self.interpreter is not None:
            self.interpreter.signal(signal.SIGKILL)
        elif active_run.pid:
            process.kill_group(active_run.pid, signal.SIGKILL)

    def code_done(self) -> None:
        """Finishes the active run after the interpreter reported the end of the code.

        Ignores a report without a run, which is forged.
        """
        if self.active is not None and self.active.is_in_interpreter:
            self._finish(0, None, None)

    def code_raised(self, texts: List[str]) -> None:
        """Records the exception of the active run: its traceback, name and arguments, which the code may have forged.

        The exit code stays zero, as specified.
        """
        if self.active is not None and self.active.is_in_interpreter:
            name = texts[1][:128] if len(texts) > 1 else ""
            arguments = [argument[:MAX_EXCEPTION_CHARS] for argument in texts[2:MAX_EXCEPTION_TEXTS]]
            self.active.exception = [name, arguments, False, texts[0][-MAX_EXCEPTION_CHARS:]]

    def interpreter_died(self, wait_status: int) -> None:
        """Handles the death of the interpreter: finishes the active run if it ran there."""
        run = self.active
        if run is None or not run.is_in_interpreter:
            return
        exit_code, signum = process.exit_of(wait_status)
        if run.cancelled is not None:
            self._finish(exit_code, f"cancelled:{run.cancelled}", signum)
            return
        cause = f"was killed by {process.signal_name(signum)}" if signum is not None else f"ended with code {exit_code}"
        self._flush_output()
        self._console.add_text(
            "stderr", f"[the interpreter {cause}; its variables are lost, a fresh one takes its place]\n"
        )
        self._finish(exit_code, "interpreter-died", signum)

    def child_died(self, pid: int, wait_status: int) -> bool:
        """Handles the end of a batch step or a compiled snippet; returns False for other processes."""
        run = self.active
        if run is None or run.pid != pid:
            return False
        run.pid = 0
        self._input.close()
        exit_code, signal_number = process.exit_of(wait_status)
        self._end_step(run, exit_code, signal_number)
        return True

    def _start_steps(self, run: Run) -> None:
        if run.mode == "query" and self._runtime not in language_commands.SNIPPET_RUNTIMES:
            self._console.add_text("stderr", "this image runs no snippets of code; run a command or open a terminal\n")
            self._finish(127, None, None)
            return
        if run.mode == "query":
            try:
                import tempfile

                run.folder = tempfile.mkdtemp(prefix="snippet-")
                run.steps = language_commands.snippet_steps(self._runtime, run.folder, run.code)
            except OSError as e:
                self._console.add_text("stderr", f"cannot write the snippet: {e}\n")
                self._finish(126, None, None)
                return
        else:
            for step in _BATCH_STEPS:
                command = run.options.get(step)
                if command == "*":
                    command = language_commands.default_command(self._runtime, step) or ":"
                if command and isinstance(command, str):
                    run.steps.append((step, command))
        self._next_step(run, 0)

    def _next_step(self, run: Run, exit_code: int) -> None:
        if not run.steps:
            self._finish(exit_code, None, None)
            return
        run.step, command = run.steps.pop(0)
        has_exec = run.step == "exec" or any(step == "exec" for step, _ in run.steps)
        if run.step == "build" and has_exec and run.options.get("buildLog") is False:
            self._console.hide()
        environment = process.common_environment(self._home)
        if run.trace:
            environment["TRACEPARENT"] = run.trace
        environment.update({str(variable): str(variable_value) for variable, variable_value in run.env.items()})
        run.begin_phase(run.step)
        try:
            asks_client = run.step == "exec" and run.options.get("input") is not False
            stdin_fd = self._input.open() if asks_client else os.open("/dev/null", os.O_RDONLY)
            try:
                stdio_fds = (stdin_fd, *self._fds[1:])
                run.pid = process.spawn(process.shell_argv(command), environment, self._home, stdio_fds)
            finally:
                os.close(stdin_fd)
            self._input.follow(run.pid)
        except (OSError, ValueError) as e:
            self._console.add_text("stderr", f"cannot start a process: {e}\n")
            self._end_step(run, 126, None)

    def _end_step(self, run: Run, exit_code: int, signal_number: Optional[int]) -> None:
        run.end_phase()
        self._flush_output()
        if run.step == "build":
            self._console.reveal(is_shown=exit_code != 0)
        if run.cancelled is not None:
            self._finish(exit_code, f"cancelled:{run.cancelled}", signal_number)
        elif run.step == "exec" or (run.step == "compile" and exit_code != 0):
            self._finish(exit_code, None, signal_number)
        elif run.step == "compile":
            self._next_step(run, exit_code)
        else:
            self._flush_output()
            self._send({"t": f"{run.step}-finished", "id": run.id, "exitCode": exit_code})
            if run.step == "build" and exit_code != 0:
                self._finish(127, None, None)  # as a shell says of a program that is not there
            else:
                self._next_step(run, exit_code)

    def _finish(self, exit_code: int, reason: Optional[str], signal_number: Optional[int]) -> None:
        run = self.active
        if run is None:
            return
        run.end_phase()
        if run.folder:
            import shutil

            shutil.rmtree(run.folder, ignore_errors=True)
        self._flush_output()
        changed_files = output_files.changes(run.files_before, output_files.snapshot(self._output_folder))
        self.active = None
        self._console.limit = MAX_BACKGROUND_CHARS
        self._report_finished(run, exit_code, reason, signal_number, changed_files)

    def _report_finished(
        self, run: Run, exit_code: int, reason: Optional[str], signum: Optional[int], files: List[Dict[str, Any]]
    ) -> None:
        message = {
            "t": "finished",
            "id": run.id,
            "exitCode": exit_code,
            "reason": reason,
            "signal": signum,
            "files": files,
        }
        if run.exception is not None:
            message.update({"raised": True, "exceptions": [run.exception]})
        if run.trace:
            message["phases"] = run.phases
        self._send(message)
