"""Runs code in one kernel, one run at a time, and stores results until they are fetched.

A frame is acknowledged to the shim once a reply has carried all of its output. A restarted agent therefore finds every
run and all output that was not fetched in the shim's replay buffer. A reply that is lost on the link is not repeated.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, InitVar, dataclass, field
from typing import Any

from ai.backend.agent.channel.channel import Frame, KernelChannel, describe_exit
from ai.backend.agent.channel.model import RunRecord, RunsRecord
from ai.backend.agent.channel.output_buffer import ConsoleBuffer
from ai.backend.agent.channel.run_spans import record_run
from ai.backend.agent.config.settings import RunSettings
from ai.backend.common.errors import BackendError, LimitExceeded, RunError
from ai.backend.common.slots import BinarySize
from ai.backend.common.states import RunMode, RunStatus
from ai.backend.common.structs import replace
from ai.backend.common.wire.execution import Execute, RunResult
from ai.backend.infra.telemetry.tracing import current_traceparent

log = logging.getLogger(__name__)
_MAX_STORED_RESULTS = 64
_FOLLOW_PAUSE_S = 2.0
_STATUS_OF_ENDING = {"clean-finished": RunStatus.CLEAN_FINISHED, "build-finished": RunStatus.BUILD_FINISHED}
KILLED = 137
"""The exit code of a program that SIGKILL has ended, as the kernel does when memory runs out."""
INFRASTRUCTURE_FAILED = -1
"""The exit code of a run that ended by no fault of its program (spec 03-07: negative is our side's error)."""


@dataclass(slots=True, eq=False)
class Run:
    """Holds a code run and its output.

    ``is_over`` is set once the last change of state is buffered; the run is removed once that change was fetched.
    ``is_input_requested`` is True from a request for input to its answer or an interrupt; further requests are ignored.
    """

    record: RunRecord
    is_sent: bool = False
    is_over: bool = False
    is_input_requested: bool = False
    buffer: ConsoleBuffer = field(default_factory=ConsoleBuffer)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    cancel_reason: str | None = None
    timer: asyncio.TimerHandle | None = None

    @property
    def run_id(self) -> str:
        return self.record.run_id

    @property
    def waiting(self) -> dict[str, Any] | None:
        return self.record.waiting

    def change(self, **changes: Any) -> None:
        self.record = replace(self.record, **changes)

    def make_state_change(self, status: RunStatus, **details: Any) -> RunResult:
        """Returns a result that reports a change of the run's state, without output."""
        return RunResult(run_id=self.run_id, status=status, **details)

    def add_state_change(self, state_change: RunResult, seq: int) -> None:
        self.buffer.add_state_change(state_change, seq)
        self.changed.set()


@dataclass(slots=True, eq=False)
class RunQueue:
    """Queues the code runs of one kernel and follows the runner's frames about each run."""

    channel: KernelChannel
    _: KW_ONLY
    attempt: int
    settings: RunSettings
    exec_timeout_s: float | None
    save: Callable[[RunsRecord], None]
    restored: InitVar[RunsRecord | None] = None
    features: Sequence[str] = ()
    memory_bytes: int = 0
    span_attributes: Mapping[str, str] = field(default_factory=dict)
    wall_clock: Callable[[], float] = time.time
    _acked_seq: int = field(default=0, init=False)
    _runs: dict[str, Run] = field(default_factory=dict, init=False)
    _tasks: list[asyncio.Task[None]] = field(default_factory=list, init=False)
    _is_reconciled: bool = field(default=True, init=False)

    def __post_init__(self, restored: RunsRecord | None) -> None:
        if restored is not None and restored.attempt == self.attempt:
            self._acked_seq = restored.acked
            self._runs = {
                record.run_id: Run(record, is_sent=record.started, is_input_requested=record.waiting is not None)
                for record in restored.runs
            }
            self._is_reconciled = not self._runs
        self.channel.add_sink(self)

    async def execute(self, req: Execute) -> RunResult:
        """Starts a run, sends a run input, or polls a run. Returns when the run changes its state, or after the flush
        time.

        Raises:
            RunError: an unknown run, input to one that does not wait for it, or a mode that the image lacks.
            LimitExceeded: too many runs wait.
        """
        run = self._runs.get(req.run_id)
        if req.mode in (RunMode.QUERY, RunMode.BATCH):
            if self.features and req.mode.value not in self.features:
                raise RunError(f"the image of this session has no {req.mode.value} mode (ai.backend.features)")
            if run is None or run.is_over:
                run = self._enqueue(req)
        elif run is None:
            raise RunError(f"there is no run {req.run_id!r}; it has ended or never began", data={"runId": req.run_id})
        async with run.lock:
            if req.mode is RunMode.INPUT:
                await self._send_input(run, req.code)
            try:
                async with asyncio.timeout(max(0.0, req.flush_timeout_s)):
                    while run.buffer.next_state_change is None and run.waiting is None:
                        run.changed.clear()
                        await run.changed.wait()
            except TimeoutError:
                pass  # the program is still busy: answer with what there is
            return self._take_output(run)

    def _enqueue(self, req: Execute) -> Run:
        if sum(1 for run in self._runs.values() if not run.is_over) > self.settings.max_queued:
            raise LimitExceeded(f"more than {self.settings.max_queued} runs wait in this session")
        frame: dict[str, Any] = {"t": "run", "id": req.run_id, "mode": req.mode.value}
        if req.mode is RunMode.QUERY:
            frame["code"] = req.code
        else:
            options = req.options
            frame["options"] = {name: options.get(name) for name in ("clean", "build", "exec")}
            frame["options"]["buildLog"] = bool(options.get("buildLog", options.get("build_log", False)))
            if options.get("input") is False:
                frame["options"]["input"] = False
            frame["env"] = dict(options.get("env") or {})
        if (traceparent := current_traceparent()) is not None:
            frame["trace"] = traceparent
        record = RunRecord(run_id=req.run_id, frame=frame, trace=traceparent, asked_at=self.wall_clock())
        run = self._runs[req.run_id] = Run(record)
        ended_runs = [run for run in self._runs.values() if run.is_over]
        for old_run in ended_runs[: max(0, len(ended_runs) - _MAX_STORED_RESULTS)]:
            del self._runs[old_run.run_id]
        self._persist()
        self._send_next()
        return run

    async def _send_input(self, run: Run, text: str) -> None:
        if run.is_over:
            return  # it ended while the input was on its way
        if run.waiting is None:
            raise RunError(f"the run {run.run_id!r} does not wait for input", data={"runId": run.run_id})
        run.change(waiting=None)
        run.is_input_requested = False
        run.buffer.drop_waiting()
        self._persist()
        await self.channel.send({"t": "input", "id": run.run_id, "text": text})

    def _take_output(self, run: Run) -> RunResult:
        console_items, state_change = run.buffer.take()
        first_seq = run.buffer.first_seq
        run.change(consumed=self.channel.received if first_seq is None else max(run.record.consumed, first_seq - 1))
        if state_change is None and run.waiting is not None:
            state_change = run.make_state_change(RunStatus.WAITING_INPUT, options=run.waiting)
        if run.is_over and run.buffer.next_state_change is None and state_change is not None:
            self._runs.pop(run.run_id, None)
            if run.buffer.dropped:
                options = {**(state_change.options or {}), "dropped": dict(run.buffer.dropped)}
                state_change = replace(state_change, options=options)
        self.acknowledge()
        return replace(state_change or run.make_state_change(RunStatus.CONTINUED), console=console_items)

    async def run_command(self, run_id: str, command: str) -> RunResult:
        """Runs a shell command until the command ends, and writes the output only to the session's log.

        The result stays stored until :meth:`forget_result`, so that a restarted agent follows the same run.
        """
        run = self._runs.get(run_id)
        if run is None:
            options = {"exec": command, "input": False}
            run = self._enqueue(Execute(kernel_id="", run_id=run_id, mode=RunMode.BATCH, options=options))
        while True:
            state_change = run.buffer.next_state_change
            if state_change is not None and state_change.status in (RunStatus.FINISHED, RunStatus.EXEC_TIMEOUT):
                return state_change
            self._take_output(run)
            run.changed.clear()
            try:
                async with asyncio.timeout(_FOLLOW_PAUSE_S):
                    await run.changed.wait()
            except TimeoutError:
                continue  # drop what it has printed meanwhile

    def forget_result(self, run_id: str) -> None:
        """Drops the stored result of a run of :meth:`run_command`."""
        if self._runs.pop(run_id, None) is not None:
            self.acknowledge()
            self._persist()

    async def interrupt(self) -> None:
        """Sends SIGINT to the program that runs now, if any."""
        if self.current is not None:
            self.current.is_input_requested = False
            await self.channel.send({"t": "interrupt"})

    async def cancel(self, run_id: str, reason: str) -> None:
        """Cancels a run, whose result then states ``reason``, such as exec-timeout. The session keeps running."""
        run = self._runs.get(run_id)
        if run is None or run.is_over:
            return
        run.cancel_reason = reason
        if not run.is_sent:
            self._fail_run(run, reason)
            return
        run.timer = asyncio.get_running_loop().call_later(self.settings.cancel_grace, self._give_up_run, run)
        await self.channel.send({"t": "cancel", "id": run_id, "reason": reason})

    async def reconcile(self) -> None:
        """Asks the runner after a restart which runs have arrived, and sends the other runs."""
        if self._is_reconciled:
            return
        await self.channel.request({"t": "ping"}, self.settings.request_timeout)
        self._is_reconciled = True
        for run in self._runs.values():
            if run.record.deadline_at is not None and not run.is_over:
                self._arm_timer(run, run.record.deadline_at - self.wall_clock())
        self._send_next()

    def close(self) -> None:
        for run in self._runs.values():
            if run.timer is not None:
                run.timer.cancel()
        for task in self._tasks:
            task.cancel()

    @property
    def current(self) -> Run | None:
        """The run that the runner executes."""
        return next((run for run in self._runs.values() if run.is_sent and not run.is_over), None)

    def live_count(self) -> int:
        return sum(1 for run in self._runs.values() if not run.is_over)

    def on_frame(self, frame: Frame, seq: int) -> None:
        message_type = frame.get("t")
        run = self._runs.get(str(frame.get("id")))
        if run is None or run.is_over:
            return
        if message_type == "started":
            self._on_started(run)
        elif seq <= run.record.consumed:
            return  # replayed after a restart of the agent, and given out before it
        elif message_type == "console":
            for console_item in frame.get("items", ()):
                run.buffer.add(str(console_item[0]), console_item[1], seq)
        elif message_type == "truncated":
            run.buffer.count_dropped(str(frame.get("stream")), int(frame.get("dropped") or 0))
        elif message_type == "waiting-input" and not run.is_input_requested:
            run.is_input_requested = True
            run.buffer.drop_waiting()
            run.change(waiting={"is_password": bool(frame.get("is_password"))})
            self._persist()
            run.add_state_change(run.make_state_change(RunStatus.WAITING_INPUT, options=run.waiting), seq)
        elif message_type in _STATUS_OF_ENDING:
            run.add_state_change(
                run.make_state_change(_STATUS_OF_ENDING[message_type], exit_code=frame.get("exitCode")), seq
            )
        elif message_type == "finished":
            if frame.get("exitCode") == KILLED and run.cancel_reason is None and self.memory_bytes:
                limit_hint = memory_hint(self.memory_bytes)
                run.buffer.add("stderr", f"[killed, probably for want of memory: {limit_hint}]\n", seq)
            self._finish_run(run, _final_state_change(run, frame), seq, frame)

    def _on_started(self, run: Run) -> None:
        run.is_sent = True
        if run.record.started:
            return
        limit_s = self.exec_timeout_s
        deadline_at = self.wall_clock() + limit_s if limit_s is not None else None
        run.change(started=True, deadline_at=deadline_at, frame={})
        if limit_s is not None:
            self._persist()
            self._arm_timer(run, limit_s)

    def _finish_run(self, run: Run, final_change: RunResult, seq: int, frame: Frame | None = None) -> None:
        if run.timer is not None:
            run.timer.cancel()
        run.is_over = True
        phases = frame.get("phases") if frame is not None else None
        record_run(run.record, self.wall_clock(), self.span_attributes, exit_code=final_change.exit_code, phases=phases)
        run.change(waiting=None, trace=None)
        run.add_state_change(final_change, seq)
        self._send_next()

    def _fail_run(self, run: Run, reason: str, seq: int = 0) -> None:
        self._finish_run(
            run, run.make_state_change(RunStatus.FINISHED, exit_code=INFRASTRUCTURE_FAILED, reason=reason), seq
        )

    def on_exit(self, frame: Frame | None) -> None:
        cause = describe_exit(frame) if frame is not None else "unknown reason"
        for run in list(self._runs.values()):
            if not run.is_over:
                run.is_sent = True
                self._fail_run(run, f"the session's workload has ended: {cause}", self.channel.received)

    def _send_next(self) -> None:
        """Sends the next run if the runner is idle."""
        if not self._is_reconciled or self.channel.ended or self.current is not None:
            return
        run = next((run for run in self._runs.values() if not run.is_over), None)
        if run is not None:
            run.is_sent = True
            self._start_task(self._send_run(run))

    async def _send_run(self, run: Run) -> None:
        try:
            await self.channel.send(run.record.frame)
        except BackendError as e:
            if not run.is_over:
                self._fail_run(run, str(e))

    def _arm_timer(self, run: Run, after_s: float) -> None:
        if run.timer is not None:
            run.timer.cancel()
        run.timer = asyncio.get_running_loop().call_later(
            max(0.0, after_s), lambda: self._start_task(self._time_out(run.run_id))
        )

    async def _time_out(self, run_id: str) -> None:
        try:
            await self.cancel(run_id, "exec-timeout")
        except BackendError as e:
            log.warning("the run %s exceeded its time and cannot be cancelled yet: %s", run_id, e)

    def _give_up_run(self, run: Run) -> None:
        if not run.is_over:
            self._finish_run(run, _final_state_change(run, {"exitCode": INFRASTRUCTURE_FAILED}), self.channel.received)

    def acknowledge(self) -> None:
        """Lets the shim forget the frames that no run still needs."""
        buffered_seqs = [seq for run in self._runs.values() if (seq := run.buffer.first_seq)]
        acknowledged_seq = min(buffered_seqs, default=self.channel.received + 1) - 1
        if acknowledged_seq > self._acked_seq:
            self._acked_seq = acknowledged_seq
            self._persist()
            self._start_task(self.channel.ack(acknowledged_seq))

    def _persist(self) -> None:
        runs = [run.record for run in self._runs.values()]
        self.save(RunsRecord(attempt=self.attempt, acked=self._acked_seq, runs=runs))

    def _start_task(self, coroutine: Any) -> None:
        task = asyncio.create_task(coroutine)
        self._tasks.append(task)
        task.add_done_callback(self._tasks.remove)


def memory_hint(memory_bytes: int) -> str:
    """Returns a message for users with the memory limit of their session, and the option that sets a larger limit."""
    limit, larger_limit = BinarySize(memory_bytes), BinarySize(2 * memory_bytes)
    return f"the session's limit is {limit}; start one with more, such as -r mem={larger_limit}"


def _final_state_change(run: Run, frame: Frame) -> RunResult:
    timed_out = run.cancel_reason == "exec-timeout"
    return run.make_state_change(
        RunStatus.EXEC_TIMEOUT if timed_out else RunStatus.FINISHED,
        exit_code=None if timed_out else frame.get("exitCode"),
        options={name: frame[name] for name in ("raised", "exceptions") if frame.get(name)} or None,
        files=[file for file in frame.get("files") or () if isinstance(file, dict)],
        reason=run.cancel_reason or frame.get("reason"),
    )
