"""Holds the simulated world: its time, random numbers, faults and trace."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from contextvars import Context, copy_context
from datetime import UTC, datetime, timedelta
from hashlib import blake2b
from typing import Any, TypeVar
from uuid import UUID

import msgspec

from ai.backend.common.errors import BackendError, Unavailable
from ai.backend.simulator.virtual_time import CURRENT_PROCESS, Process, ProcessDied, VirtualLoop

T = TypeVar("T")
EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
_ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
_LATENCIES_S = (0.0, 0.0, 0.0002, 0.003)


class Faults(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the probabilities of the faults, each for one event.

    Attributes:
        lose_message, repeat_message, late_message: of a message between a manager and an agent, either way.
        refuse_transaction, slow_transaction, lose_answer: of a database transaction; whoever loses an answer does
            not know whether the transaction was committed.
        lose_power: at a transaction, for the manager's host: all transactions that it has begun are one group, which is
            committed or not, and none of them is answered.
        misbehave: of a call of a runtime or a plugin, which fails, hangs or lies.
        write_fails: of a write of an agent: its disk is full, or the agent dies at it.
        skew_s: seconds by which wall clocks may be wrong.
    """

    lose_message: float = 0.03
    repeat_message: float = 0.05
    late_message: float = 0.05
    refuse_transaction: float = 0.01
    slow_transaction: float = 0.03
    lose_answer: float = 0.01
    lose_power: float = 0.0005
    misbehave: float = 0.02
    write_fails: float = 0.004
    skew_s: float = 45.0


NO_FAULTS = Faults(
    lose_message=0.0,
    repeat_message=0.0,
    late_message=0.0,
    refuse_transaction=0.0,
    slow_transaction=0.0,
    lose_answer=0.0,
    lose_power=0.0,
    misbehave=0.0,
    write_fails=0.0,
    skew_s=0.0,
)


class World:
    """Holds the shared state of a simulation. ``faults`` may be replaced while it runs."""

    def __init__(self, seed: int, faults: Faults) -> None:
        self.rng = random.Random(seed)
        self.faults = faults
        self.loop = VirtualLoop()
        self.context = copy_context()
        self.context.run(CURRENT_PROCESS.set, None)
        self.lines: list[str] = []
        """The full trace."""
        self._ids = random.Random(seed ^ 0x5EED)
        self._begun: dict[Process, list[_Transaction]] = {}
        """The transactions of each process that wait for their commit."""

    @property
    def now(self) -> float:
        return self.loop.time()

    def chance(self, probability: float) -> bool:
        return probability > 0 and self.rng.random() < probability

    def trace(self, *words: object) -> None:
        process = CURRENT_PROCESS.get()
        self.lines.append(f"{self.loop.time():.6f} {process.name if process else '-'} {' '.join(map(str, words))}\n")

    def digest(self) -> str:
        return blake2b("".join(self.lines).encode(), digest_size=16).hexdigest()

    # ---- processes

    def spawn(self, process: Process | None, coroutine: Coroutine[Any, Any, T], name: str = "") -> asyncio.Task[T]:
        """Starts a coroutine in a simulated process. Without a process, no fault ends the coroutine."""
        context = (process.context if process is not None else self.context).copy()
        task: asyncio.Task[T] = self.loop.create_task(coroutine, name=name or None, context=context)
        return task

    def call_later(self, delay_s: float, callback: Callable[..., object], *args: Any) -> None:
        """Calls a function after ``delay_s`` simulated seconds, outside of every simulated process."""
        self.loop.call_later(delay_s, callback, *args, context=self.context)

    async def call(self, process: Process, make_coroutine: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Runs a coroutine in another simulated process, and returns its result.

        The work continues if the caller dies, and a cancelled caller cancels the work.
        """
        reply: asyncio.Future[T] = self.loop.create_future()
        task = self.spawn(process, make_coroutine())

        def on_done(task: asyncio.Task[T]) -> None:
            if not reply.done():
                copy_outcome(task, reply)

        task.add_done_callback(on_done, context=self.context)
        try:
            return await reply
        except asyncio.CancelledError:
            task.cancel()
            raise

    # ---- the database

    async def transaction(self, name: str, execute: Callable[[], Awaitable[T]]) -> T:
        """Runs a transaction, which may be slow, refused, or committed without an answer. Raises ProcessDied."""
        faults, rng = self.faults, self.rng
        if self.chance(faults.refuse_transaction):
            self.trace("refused", name)
            raise Unavailable("the database refuses")
        is_slow = self.chance(faults.slow_transaction)
        process, transaction = CURRENT_PROCESS.get(), _Transaction(name, execute, copy_context())
        begun_transactions = self._begun.setdefault(process, []) if process is not None else []
        begun_transactions.append(transaction)
        try:
            await asyncio.sleep(rng.uniform(0.1, 6.0) if is_slow else rng.choice(_LATENCIES_S))
            if process is not None and self.chance(faults.lose_power):
                self._lose_power(process, begun_transactions)
        finally:
            begun_transactions.remove(transaction)
        self.trace("commit", name)
        result = await execute()
        if self.chance(faults.lose_answer):
            await asyncio.sleep(rng.uniform(0.1, 4.0))
            raise Unavailable("nobody knows whether it was committed")
        await asyncio.sleep(0.0)
        return result

    def _lose_power(self, process: Process, begun_transactions: Sequence[_Transaction]) -> None:
        """Kills a process at random before or after the commit of its begun transactions. Raises ProcessDied."""
        is_committed = self.rng.random() < 0.5
        self.trace("power lost", "after" if is_committed else "before", "the commit of", len(begun_transactions))
        for transaction in begun_transactions if is_committed else ():
            self.trace("commit", transaction.name)
            transaction.run()
        process.kill()
        raise ProcessDied


class _Transaction(msgspec.Struct, frozen=True, eq=False):
    """Holds a transaction of a simulated store that has begun, with the context of its caller."""

    name: str
    execute: Callable[[], Awaitable[Any]]
    context: Context

    def run(self) -> None:
        """Runs the transaction at once, because the stores of the simulation never wait. Ignores its error."""
        coroutine_steps = self.execute().__await__()
        with suppress(StopIteration, BackendError):
            self.context.run(next, coroutine_steps)
            raise RuntimeError(f"{self.name} waits within its transaction")


def copy_outcome(task: asyncio.Task[T], reply: asyncio.Future[T]) -> None:
    """Copies the result, error or cancellation of a task to a future."""
    if task.cancelled():
        reply.cancel()
    elif (error := task.exception()) is not None:
        reply.set_exception(error)
    else:
        reply.set_result(task.result())


class SkewedClock:
    """Simulates a :class:`ai.backend.infra.clock.Clock` that is ahead by ``skew_s`` seconds.

    Its monotonic clock drifts.
    """

    def __init__(self, world: World, *, skew_s: float = 0.0, drift: float = 1.0) -> None:
        self._world = world
        self.skew_s = skew_s
        self.drift = drift

    def now(self) -> datetime:
        return EPOCH + timedelta(seconds=self._world.now + self.skew_s)

    def time(self) -> float:
        return self.now().timestamp()

    def monotonic(self) -> float:
        return 1_000.0 + self._world.now * self.drift


class SeededIds:
    """Creates ids that are the same in each run. Implements :class:`ai.backend.infra.clock.IdGenerator`."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)

    def uuid(self) -> UUID:
        return UUID(int=self._rng.getrandbits(128), version=4)

    def token(self, length: int) -> str:
        return "".join(self._rng.choice(_ALPHABET) for _ in range(length))
