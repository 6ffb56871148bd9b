"""Defines the interfaces of the worker store, and of queries to the circuits feature."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Protocol
from uuid import UUID

from ai.backend.appproxy.coordinator.workers.model import Worker
from ai.backend.common.wire.appproxy import Slot, WorkerRegistration
from ai.backend.infra.tls.certificates import TlsIdentity


class WorkerStore(Protocol):
    """Stores workers. Every method is one transaction. A node is alive if it was seen after ``alive_since``."""

    async def put(self, registration: WorkerRegistration, now: datetime, alive_since: datetime) -> Worker:
        """Adds a worker, or changes the worker of the same authority. The worker's node counts as alive."""

    async def touch(self, worker_id: UUID, node: str, now: datetime) -> None:
        """Marks a node of a worker as alive. Raises NoSuchObject without the worker."""

    async def delete(self, worker_id: UUID) -> bool:
        """Removes a worker with its circuits. Returns False if there is no such worker."""

    async def worker(self, worker_id: UUID, alive_since: datetime) -> Worker | None: ...
    async def workers(self, alive_since: datetime) -> Sequence[Worker]: ...


class AuthorityStore(Protocol):
    """Stores the certificate authority of workers."""

    async def authority(self, new: TlsIdentity) -> TlsIdentity:
        """Returns the stored authority. Stores and returns ``new`` if there is none."""


class SlotUse(Protocol):
    """Reports which slots of workers are in use."""

    async def slots(self, worker_id: UUID | None = None) -> Mapping[UUID, Sequence[Slot]]:
        """Returns the occupied slots of one worker, or of all workers, by the worker's id."""
