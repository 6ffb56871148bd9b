"""Runs code in one kernel, one run at a time, and stores results until they are fetched.

A frame is acknowledged to the shim once a reply has carried all of its output. A restarted agent therefore finds every
run and all output that was not fetched in the shim's replay buffer. A reply that is lost on the link is not repeated.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec

from ai.backend.agent.channel.channel import Frame, KernelChannel, describe_exit
from ai.backend.agent.channel.model import RunRecord, RunsRecord
from ai.backend.agent.channel.output_buffer import ConsoleBuffer, Mark
from ai.backend.agent.config.settings import RunSettings
from ai.backend.common.errors import BackendError, LimitExceeded, RunError
from ai.backend.common.states import RunMode, RunStatus
from ai.backend.common.wire.execution import Execute, RunResult

log = logging.getLogger(__name__)
_KEPT_RESULTS = 64
_FOLLOW_S = 2.0
_ENDINGS = {"clean-finished": RunStatus.CLEAN_FINISHED, "build-finished": RunStatus.BUILD_FINISHED}
INFRASTRUCTURE_FAILED = -1
"""The exit code of a run that ended by no fault of its program (spec 03-07: negative is our side's error)."""


class Run:
    """A run and its output. It is ``over`` once its last mark is buffered, and removed once that mark was fetched."""

    __slots__ = (
        "buffer",
        "cancel_reason",
        "changed",
        "lock",
        "over",
        "record",
        "sent",
        "timer",
    )

    def __init__(self, record: RunRecord) -> None:
        self.record = record
        self.buffer = ConsoleBuffer()
        self.changed = asyncio.Event()
        self.lock = asyncio.Lock()
        self.over = False
        self.sent = record.started
        self.cancel_reason: str | None = None
        self.timer: asyncio.TimerHandle | None = None

    @property
    def run_id(self) -> str:
        return self.record.run_id

    @property
    def waiting(self) -> dict[str, Any] | None:
        return self.record.waiting

    def note(self, **changes: Any) -> None:
        self.record = msgspec.structs.replace(self.record, **changes)

    def add_mark(self, mark: Mark, seq: int) -> None:
        self.buffer.mark(mark, seq)
        self.changed.set()


class RunQueue:
    """Queues the runs of one kernel and follows their frames."""

    __slots__ = (
        "_acked",
        "_attempt",
        "_channel",
        "_exec_timeout_s",
        "_is_settled",
        "_runs",
        "_save",
        "_settings",
        "_tasks",
        "_wall_clock",
    )

    def __init__(
        self,
        channel: KernelChannel,
        *,
        attempt: int,
        settings: RunSettings,
        exec_timeout_s: float | None,
        save: Callable[[RunsRecord], None],
        restored: RunsRecord | None = None,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._channel = channel
        self._attempt = attempt
        self._settings = settings
        self._exec_timeout_s = exec_timeout_s
        self._save = save
        self._wall_clock = wall_clock
        self._acked = 0
        self._runs: dict[str, Run] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._is_settled = True
        if restored is not None and restored.attempt == attempt:
            self._acked = restored.acked
            self._runs = {record.run_id: Run(record) for record in restored.runs}
            self._is_settled = not self._runs
        channel.add_sink(self)

    async def execute(self, req: Execute) -> RunResult:
        """Starts a run, sends it input or polls it; returns at a change of its state or after the flush time.

        Raises:
            RunError: an unknown run, or input to one that does not wait for it. LimitExceeded: too many runs wait.
        """
        run = self._runs.get(req.run_id)
        if req.mode in (RunMode.QUERY, RunMode.BATCH):
            if run is None or run.over:
                run = self._enqueue(req)
        elif run is None:
            raise RunError(f"there is no run {req.run_id!r}; it has ended or never began", data={"runId": req.run_id})
        async with run.lock:
            if req.mode is RunMode.INPUT:
                await self._feed(run, req.code)
            try:
                async with asyncio.timeout(max(0.0, req.flush_timeout_s)):
                    while not (run.buffer.has_mark or run.waiting is not None):
                        run.changed.clear()
                        await run.changed.wait()
            except TimeoutError:
                pass  # the program is still busy: answer with what there is
            return self._collect(run)

    def _enqueue(self, req: Execute) -> Run:
        if sum(1 for run in self._runs.values() if not run.over) > self._settings.max_queued:
            raise LimitExceeded(f"more than {self._settings.max_queued} runs wait in this session")
        frame: dict[str, Any] = {"t": "run", "id": req.run_id, "mode": req.mode.value}
        if req.mode is RunMode.QUERY:
            frame["code"] = req.code
        else:
            options = req.options
            frame["options"] = {
                "clean": options.get("clean"),
                "build": options.get("build"),
                "buildLog": bool(options.get("buildLog", options.get("build_log", False))),
                "exec": options.get("exec"),
            }
            frame["env"] = dict(options.get("env") or {})
        run = self._runs[req.run_id] = Run(RunRecord(run_id=req.run_id, frame=frame))
        self._drop_old_results()
        self._persist()
        self._pump()
        return run

    async def _feed(self, run: Run, text: str) -> None:
        if run.waiting is None:
            raise RunError(f"the run {run.run_id!r} does not wait for input", data={"runId": run.run_id})
        run.note(waiting=None)
        run.buffer.drop_waiting()
        self._persist()
        await self._channel.send({"t": "input", "id": run.run_id, "text": text})

    def _collect(self, run: Run) -> RunResult:
        items, mark = run.buffer.take()
        first_left = run.buffer.first_seq
        run.note(consumed=self._channel.received if first_left is None else max(run.record.consumed, first_left - 1))
        if mark is None and run.waiting is not None:
            mark = Mark(status=RunStatus.WAITING_INPUT, options=run.waiting)
        if run.over and not run.buffer.has_mark and mark is not None:
            self._runs.pop(run.run_id, None)
            if run.buffer.dropped:
                mark = replace(mark, options={**(mark.options or {}), "dropped": dict(run.buffer.dropped)})
        self._acknowledge()
        if mark is None:
            return RunResult(run_id=run.run_id, status=RunStatus.CONTINUED, console=items)
        return RunResult(
            run_id=run.run_id,
            status=mark.status,
            exit_code=mark.exit_code,
            console=items,
            options=mark.options,
            files=list(mark.files),
            reason=mark.reason,
        )

    async def follow(self, run_id: str, command: str) -> Mark:
        """Runs a shell command to its end; its output is only in the session's log.

        The result stays stored until :meth:`forget`, so that a restarted agent follows the same run.
        """
        run = self._runs.get(run_id)
        if run is None:
            options = {"clean": None, "build": None, "exec": command}
            run = self._enqueue(Execute(kernel_id="", run_id=run_id, mode=RunMode.BATCH, options=options))
        while True:
            mark = run.buffer.next_mark
            if mark is not None and mark.status in (RunStatus.FINISHED, RunStatus.EXEC_TIMEOUT):
                return mark
            if run.waiting is not None:
                run.note(waiting=None)
                await self.cancel(run_id, "nobody can give input here")
            self._collect(run)
            run.changed.clear()
            try:
                async with asyncio.timeout(_FOLLOW_S):
                    await run.changed.wait()
            except TimeoutError:
                continue  # drop what it has printed meanwhile

    def forget(self, run_id: str) -> None:
        """Drops the result of a followed run."""
        if self._runs.pop(run_id, None) is not None:
            self._acknowledge()
            self._persist()

    async def interrupt(self) -> None:
        """Sends SIGINT to the present program, if there is one."""
        if self.current is not None:
            await self._channel.send({"t": "interrupt"})

    async def cancel(self, run_id: str, reason: str) -> None:
        """Cancels a run, which then ends with exec-timeout or the reason; the session goes on."""
        run = self._runs.get(run_id)
        if run is None or run.over:
            return
        run.cancel_reason = reason
        if not run.sent:
            self._finish(run, Mark(status=RunStatus.FINISHED, exit_code=INFRASTRUCTURE_FAILED, reason=reason), 0)
            return
        run.timer = asyncio.get_running_loop().call_later(self._settings.cancel_grace, self._give_up, run)
        await self._channel.send({"t": "cancel", "id": run_id, "reason": reason})

    async def reconcile(self) -> None:
        """Finds out after a restart which runs reached the runner, and continues with the others."""
        if self._is_settled:
            return
        await self._channel.request({"t": "ping"}, self._settings.request_timeout)
        self._is_settled = True
        for run in self._runs.values():
            if run.record.deadline_at is not None and not run.over:
                self._arm(run, run.record.deadline_at - self._wall_clock())
        self._pump()

    def close(self) -> None:
        for run in self._runs.values():
            if run.timer is not None:
                run.timer.cancel()
        for task in self._tasks:
            task.cancel()

    @property
    def current(self) -> Run | None:
        """The run that the runner executes."""
        return next((run for run in self._runs.values() if run.sent and not run.over), None)

    def live(self) -> int:
        return sum(1 for run in self._runs.values() if not run.over)

    def on_frame(self, frame: Frame, seq: int) -> None:
        kind = frame.get("t")
        run = self._runs.get(str(frame.get("id")))
        if run is None or run.over:
            return
        if kind == "started":
            self._started(run)
        elif seq <= run.record.consumed:
            return  # replayed after a restart of the agent, and given out before it
        elif kind == "console":
            for item in frame.get("items", ()):
                run.buffer.add(str(item[0]), item[1], seq)
        elif kind == "truncated":
            run.buffer.lose(str(frame.get("stream")), int(frame.get("dropped") or 0))
        elif kind == "waiting-input":
            run.note(waiting={"is_password": bool(frame.get("is_password"))})
            self._persist()
            run.add_mark(Mark(status=RunStatus.WAITING_INPUT, options=run.waiting), seq)
        elif kind in _ENDINGS:
            run.add_mark(Mark(status=_ENDINGS[kind], exit_code=frame.get("exitCode")), seq)
        elif kind == "finished":
            self._finish(run, self._last_mark(run, frame), seq)

    def _started(self, run: Run) -> None:
        run.sent = True
        if run.record.started:
            return
        limit = self._exec_timeout_s
        deadline = self._wall_clock() + limit if limit is not None else None
        run.note(started=True, deadline_at=deadline)
        if limit is not None:
            self._persist()
            self._arm(run, limit)

    @staticmethod
    def _last_mark(run: Run, frame: Frame) -> Mark:
        timed_out = run.cancel_reason == "exec-timeout"
        return Mark(
            status=RunStatus.EXEC_TIMEOUT if timed_out else RunStatus.FINISHED,
            exit_code=None if timed_out else frame.get("exitCode"),
            options={"raised": True} if frame.get("raised") else None,
            files=tuple(f for f in frame.get("files") or () if isinstance(f, dict)),
            reason=run.cancel_reason or frame.get("reason"),
        )

    def _finish(self, run: Run, mark: Mark, seq: int) -> None:
        if run.timer is not None:
            run.timer.cancel()
        run.over = True
        run.note(waiting=None)
        run.add_mark(mark, seq)
        self._pump()

    def on_exit(self, frame: Frame | None) -> None:
        why = describe_exit(frame) if frame is not None else "unknown reason"
        for run in list(self._runs.values()):
            if not run.over:
                run.sent = True
                reason = f"the session's workload has ended: {why}"
                mark = Mark(status=RunStatus.FINISHED, exit_code=INFRASTRUCTURE_FAILED, reason=reason)
                self._finish(run, mark, self._channel.received)

    def _pump(self) -> None:
        """Sends the next run if the runner is idle."""
        if not self._is_settled or self._channel.ended or self.current is not None:
            return
        run = next((run for run in self._runs.values() if not run.over), None)
        if run is not None:
            run.sent = True
            self._spawn(self._send(run))

    async def _send(self, run: Run) -> None:
        try:
            await self._channel.send(run.record.frame)
        except BackendError as e:
            if not run.over:
                self._finish(run, Mark(status=RunStatus.FINISHED, exit_code=INFRASTRUCTURE_FAILED, reason=str(e)), 0)

    def _arm(self, run: Run, after_s: float) -> None:
        if run.timer is not None:
            run.timer.cancel()
        run.timer = asyncio.get_running_loop().call_later(
            max(0.0, after_s), lambda: self._spawn(self._time_out(run.run_id))
        )

    async def _time_out(self, run_id: str) -> None:
        try:
            await self.cancel(run_id, "exec-timeout")
        except BackendError as e:
            log.warning("the run %s exceeded its time and cannot be cancelled yet: %s", run_id, e)

    def _give_up(self, run: Run) -> None:
        """Ends a run whose cancellation the runner has not confirmed."""
        if not run.over:
            self._finish(run, self._last_mark(run, {"exitCode": INFRASTRUCTURE_FAILED}), self._channel.received)

    def _drop_old_results(self) -> None:
        over = [run for run in self._runs.values() if run.over]
        for run in over[: max(0, len(over) - _KEPT_RESULTS)]:
            del self._runs[run.run_id]

    def _acknowledge(self) -> None:
        kept = [seq for run in self._runs.values() if (seq := run.buffer.first_seq)]
        upto = min(kept, default=self._channel.received + 1) - 1
        if upto > self._acked:
            self._acked = upto
            self._persist()
            self._spawn(self._channel.ack(upto))

    def _persist(self) -> None:
        runs = [run.record for run in self._runs.values()]
        self._save(RunsRecord(attempt=self._attempt, acked=self._acked, runs=runs))

    def _spawn(self, coroutine: Any) -> None:
        task = asyncio.create_task(coroutine)
        self._tasks.append(task)
        task.add_done_callback(self._tasks.remove)
