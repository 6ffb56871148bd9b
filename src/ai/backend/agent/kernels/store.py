"""The ports by which the state of kernels is stored; it survives a crash of the agent. Every call is a small write."""

from __future__ import annotations

from typing import Protocol

from ai.backend.agent.channel.model import RunsRecord
from ai.backend.agent.kernels.model import KernelRecord
from ai.backend.common.wire.reports import KernelObservation


class KernelRecords(Protocol):
    """Stores one record for each kernel and one record of each kernel's runs."""

    def load(self) -> list[KernelRecord]:
        """Reads every kernel record; unreadable records are left out."""
        ...

    def get(self, kernel_id: str) -> KernelRecord | None: ...
    def put(self, record: KernelRecord) -> None: ...
    def forget(self, kernel_id: str) -> None: ...
    def forget_runs(self, kernel_id: str) -> None: ...
    def load_runs(self, kernel_id: str) -> RunsRecord | None: ...
    def put_runs(self, kernel_id: str, runs: RunsRecord) -> None: ...


class Leftovers(Protocol):
    """Stores records of removed workloads with hook calls to repeat, one for each attempt of a kernel."""

    def load(self) -> list[KernelRecord]: ...
    def put(self, record: KernelRecord) -> None: ...
    def forget(self, record: KernelRecord) -> None: ...


class Outbox(Protocol):
    """Stores observations that the manager has not acknowledged, in order."""

    def load(self) -> list[KernelObservation]: ...
    def append(self, observation: KernelObservation) -> None: ...
    def replace(self, observations: list[KernelObservation]) -> None:
        """Stores ``observations``; may drop earlier observations, and drops all if ``observations`` is empty."""

    def rewrite(self, observations: list[KernelObservation]) -> None:
        """Replaces the stored observations by ``observations``."""

    def close(self) -> None: ...


class DurableState(Protocol):
    """Stores the state of an agent that survives a restart. One agent at a time uses it."""

    def open(self) -> None:
        """Opens the state. Raises Conflict if another agent uses it."""

    def close(self) -> None: ...
    def next_epoch(self) -> int:
        """Returns a number that is larger than at any earlier start."""
        ...

    def secret(self) -> bytes:
        """Returns the secret of this agent, which is created at the first start."""
        ...

    def kernel_records(self) -> KernelRecords: ...
    def leftovers(self) -> Leftovers: ...
    def outbox(self) -> Outbox: ...
