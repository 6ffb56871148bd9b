"""Queues observations of kernels for the manager. They are stored first, and sent until they are acknowledged."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from ai.backend.agent.kernels.store import Outbox
from ai.backend.common.errors import BackendError
from ai.backend.common.states import KernelEventReason, KernelStatus
from ai.backend.common.structs import replace
from ai.backend.common.wire.link import ManagerReports
from ai.backend.common.wire.reports import KernelObservation, ObservationReport
from ai.backend.infra.retry import Backoff
from ai.backend.infra.telemetry.tracing import current_traceparent

log = logging.getLogger(__name__)
_MAX_BATCH = 200
_RETRY_FIRST_S, _RETRY_MAX_S = 0.1, 5.0
_TRANSIENT_STATUSES = frozenset(
    {KernelStatus.PREPARING, KernelStatus.PREPARED, KernelStatus.CREATING, KernelStatus.TERMINATING}
)
"""Statuses that usually end within milliseconds."""
_LINGER_S = 0.05
"""How long a report of passing statuses waits for the next one, which shares its transaction in the manager."""


@dataclass(slots=True, eq=False)
class ObservationQueue:
    """Stores observations of kernels and delivers all to the manager in order."""

    outbox: Outbox
    manager: ManagerReports
    agent_id: str
    epoch: int
    wall_clock: Callable[[], float] = time.time
    _pending: list[KernelObservation] = field(default_factory=list, init=False)
    _wake: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _lasting: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    """An event that is set by every observation that must be sent without delay."""
    _acknowledged: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    """Set by the next acknowledgement, and replaced then."""
    _seq: int = field(default=0, init=False)
    _is_outbox_stale: bool = field(default=False, init=False)
    """True while the outbox holds delivered observations because a write failed."""

    def restore(self) -> None:
        """Loads the observations that were not delivered before the restart, and numbers them for this epoch."""
        for observation in self.outbox.load():
            self._seq += 1
            self._pending.append(replace(observation, seq=self._seq))
        self.outbox.rewrite(self._pending)
        self._lasting.set()
        self._wake.set()

    def report(
        self, kernel_id: str, attempt: int, status: KernelStatus, reason: KernelEventReason, **details: Any
    ) -> None:
        """Stores an observation of a kernel for delivery in the background."""
        self._seq += 1
        details |= {"kernel_id": kernel_id, "attempt": attempt, "status": status, "reason": reason}
        trace = current_traceparent()
        observation = KernelObservation(at=self.wall_clock(), seq=self._seq, trace=trace, **details)
        self.outbox.append(observation)
        self._pending.append(observation)
        self._wake.set()
        if status not in _TRANSIENT_STATUSES:
            self._lasting.set()

    @property
    def last_seq(self) -> int:
        """The number of the newest observation; 0 before the first."""
        return self._seq

    def undelivered_ends(self) -> list[KernelObservation]:
        """Returns the observations of ended kernels that the manager has not acknowledged yet."""
        return [observation for observation in self._pending if observation.status.is_final]

    async def wait_acknowledged(self) -> None:
        """Returns once the manager has acknowledged everything that has been observed until now."""
        seq = self._seq
        while self._pending and self._pending[0].seq <= seq:
            await self._acknowledged.wait()

    async def deliver(self) -> None:
        """Sends observations in order until cancelled, with growing delays after failures."""
        backoff = Backoff(_RETRY_FIRST_S, _RETRY_MAX_S)
        while True:
            await self._wake.wait()
            if not self._pending:
                if self._is_outbox_stale and not self._store_pending():
                    await backoff.wait()
                    continue
                self._wake.clear()
                self._lasting.clear()
                continue
            if not self._lasting.is_set():
                with suppress(TimeoutError):
                    async with asyncio.timeout(_LINGER_S):  # wait_for of Python 3.11 may swallow a cancellation
                        await self._lasting.wait()
            pending_batch = self._pending[:_MAX_BATCH]
            try:
                acknowledged = await self.manager.observe(
                    ObservationReport(agent_id=self.agent_id, epoch=self.epoch, observations=pending_batch)
                )
            except BackendError as e:
                log.log(
                    logging.INFO if backoff.failures else logging.WARNING, "observations wait for the manager: %s", e
                )
            except Exception:
                log.exception("observations cannot be delivered")
            else:
                if acknowledged >= pending_batch[0].seq:
                    backoff.reset()
                    self._forget_acknowledged(acknowledged)
                    continue
            await backoff.wait()

    def _forget_acknowledged(self, seq: int) -> None:
        self._pending = [observation for observation in self._pending if observation.seq > seq]
        self._store_pending()
        self._acknowledged.set()
        self._acknowledged = asyncio.Event()

    def _store_pending(self) -> bool:
        """Removes delivered observations from the outbox. Returns False if the outbox cannot be written.

        The observations would then only be sent once more after a restart.
        """
        try:
            self.outbox.replace(self._pending)
        except OSError as e:
            if not self._is_outbox_stale:
                log.warning("delivered observations stay in the outbox until it can be written: %s", e)
            self._is_outbox_stale = True
            return False
        self._is_outbox_stale = False
        return True
