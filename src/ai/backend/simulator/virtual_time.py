"""Provides an event loop of asyncio with simulated time, and simulated processes that own its tasks.

When nothing is ready the time jumps to the next timer. There are no threads and no sockets: what asks for a thread runs
at once, in place. A task belongs to the process in whose context it was made; the tasks of a process that has died are
never run again, not even their ``finally`` blocks, as after SIGKILL.
"""

from __future__ import annotations

import asyncio
import heapq
from asyncio import events
from collections import deque
from collections.abc import Callable
from contextvars import Context, ContextVar, copy_context
from typing import Any, Self

import msgspec

CURRENT_PROCESS: ContextVar[Process | None] = ContextVar("simulated_process", default=None)
_MAX_STEPS = 100_000
"""The number of steps at one point in time that counts as an endless loop."""


class ProcessDied(BaseException):
    """Raised when the simulated process is killed between two instructions of one step."""


class Process:
    """Simulates an operating system process that dies after ``fuse`` more steps. None means that it does not die."""

    def __init__(self, name: str, on_death: Callable[[], None] = lambda: None) -> None:
        self.name = name
        self.is_alive = True
        self.fuse: int | None = None
        self.on_death = on_death
        self._is_stopped = False
        self._held: list[_Step] = []
        self._loop: VirtualLoop | None = None
        self.context: Context = copy_context()
        self.context.run(CURRENT_PROCESS.set, self)

    def enter(self, step: _Step, loop: VirtualLoop) -> bool:
        """Counts a step of the process, and returns True if the process may run the step now.

        A stopped process runs the step later. A dead process, or one that dies at this step, never runs it.
        """
        if not self.is_alive:
            return False
        if self._is_stopped:
            self._loop = loop
            self._held.append(step)
            return False
        if self.fuse is not None:
            self.fuse -= 1
            if self.fuse <= 0:
                self.kill()
                return False
        return True

    def kill(self) -> None:
        if self.is_alive:
            self.is_alive = False
            self.on_death()

    def stop(self) -> None:
        """Stops the process until :meth:`go_on`, as SIGSTOP does."""
        self._is_stopped = True

    def go_on(self) -> None:
        self._is_stopped = False
        held_steps, self._held = self._held, []
        if self._loop is not None:
            self._loop.run_soon(held_steps)


class _Future(asyncio.Future[Any]):
    """A future with a serial number as hash, so that sets have the same order in each run."""

    __slots__ = ("serial",)
    serial: int

    def __hash__(self) -> int:
        return self.serial


class _Task(asyncio.Task[Any]):
    __slots__ = ("serial",)
    serial: int

    def __new__(cls, *_: Any, loop: VirtualLoop, **__: Any) -> Self:
        task = super().__new__(cls)
        task.serial = loop.next_serial()
        return task

    def __hash__(self) -> int:
        return self.serial


class _Step(msgspec.Struct, eq=False):
    """The handle of a call: as one of asyncio, but small, since a simulation makes thousands of them each second."""

    due_at: float
    callback: Callable[..., Any]
    args: tuple[Any, ...]
    context: Context
    is_cancelled: bool = False

    def cancel(self) -> None:
        """Prevents the call, and releases at once what it would have called and passed."""
        self.is_cancelled = True
        self.callback, self.args = _do_nothing, ()

    def cancelled(self) -> bool:
        return self.is_cancelled

    def when(self) -> float:
        return self.due_at


def _do_nothing() -> None: ...


class VirtualLoop(asyncio.BaseEventLoop):
    """An event loop whose time jumps to the next timer when nothing is ready."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = 0
        self._now = 0.0
        self._serial = 0
        self._steps_now = 0
        self._timers: list[tuple[float, int, _Step]] = []
        self._ready: deque[_Step]
        self._stopping: bool
        self._tasks: list[_Task] = []
        self.set_exception_handler(lambda *_: None)  # the log of the product tells

    def next_serial(self) -> int:
        self._serial += 1
        return self._serial

    # ---- time

    def time(self) -> float:
        return self._now

    def call_soon(  # type: ignore[override]  # without the types of the arguments
        self, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> Any:
        step = _Step(self._now, callback, args, copy_context() if context is None else context)
        self._ready.append(step)
        return step

    call_soon_threadsafe = call_soon  # type: ignore[assignment]  # there are no threads

    def call_later(  # type: ignore[override]  # without the types of the arguments
        self, delay: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> Any:
        return self._add_timer(_Step(self._now + delay, callback, args, copy_context() if context is None else context))

    def call_at(  # type: ignore[override]  # without the types of the arguments
        self, when: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> Any:
        """Calls at a time, unless the handle is cancelled; it is then dropped when it is due."""
        return self._add_timer(_Step(when, callback, args, copy_context() if context is None else context))

    def _add_timer(self, step: _Step) -> _Step:
        self._serial += 1
        heapq.heappush(self._timers, (step.due_at, self._serial, step))
        return step

    def _advance(self) -> None:
        """Advances the time to the next timer that is due."""
        timers = self._timers
        while timers and timers[0][2].is_cancelled:
            heapq.heappop(timers)
        if not timers:
            raise RuntimeError("nothing will ever happen in this simulation")
        now = self._now = max(self._now, timers[0][0])
        self._steps_now = 0
        while timers and timers[0][0] <= now:
            step = heapq.heappop(timers)[2]
            if not step.is_cancelled:
                self._ready.append(step)

    # ---- running

    def run_soon(self, steps: list[_Step]) -> None:
        self._ready.extend(steps)

    def _run_once(self) -> None:
        ready_steps = self._ready
        while not self._stopping:
            if not ready_steps:
                self._advance()
            step = ready_steps.popleft()
            if step.is_cancelled:
                continue
            context = step.context
            process = context.get(CURRENT_PROCESS)
            if process is not None and not process.enter(step, self):
                continue
            self.steps += 1
            self._steps_now += 1
            if self._steps_now > _MAX_STEPS:
                raise RuntimeError(f"an endless loop at {self._now:.3f} s: {step!r}")
            try:
                context.run(step.callback, *step.args)
            except (SystemExit, KeyboardInterrupt):
                raise
            except BaseException:  # noqa: BLE001  # the log of the product tells
                continue

    def run_in_executor(  # type: ignore[override]  # without the types of the arguments
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> Any:
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as e:  # noqa: BLE001  # it is the caller's
            future.set_exception(e)
        return future

    def create_future(self) -> _Future:
        future = _Future(loop=self)
        self._serial += 1
        future.serial = self._serial
        return future

    def create_task(self, coro: Any, *, name: object = None, context: Context | None = None) -> Any:
        task = _Task(coro, loop=self, name=str(name) if name is not None else None, context=context)
        self._tasks.append(task)
        return task

    def _write_to_self(self) -> None:
        """Does nothing: the loop has no selector."""

    def _check_closed(self) -> None:
        """Does nothing, so that calls after the end of the loop are accepted; :meth:`tear_down` causes such calls.

        They are not run.
        """

    def _process_events(self, event_list: Any) -> None:
        """Does nothing: there are no events of sockets."""

    def sweep(self) -> None:
        """Forgets tasks that have ended."""
        self._tasks = [task for task in self._tasks if not task.done()]

    def tear_down(self) -> None:
        """Closes every remaining coroutine, whatever its ``finally`` blocks do, and then closes the loop."""
        events._set_running_loop(self)
        try:
            for task in self._tasks:
                task._log_destroy_pending = False  # type: ignore[attr-defined]  # typeshed hides it
                coroutine = task.get_coro()
                for _ in range(20):
                    try:
                        coroutine.close()
                        break
                    except BaseException:  # noqa: BLE001  # it waits again, or its loop is over
                        continue
        finally:
            events._set_running_loop(None)
        self._tasks.clear()
        self._ready.clear()
        self._timers.clear()
        self.close()
