"""Defines the interface of the circuit store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Protocol
from uuid import UUID

from ai.backend.appproxy.coordinator.circuits.model import Delivery, Setup, StoredCircuit
from ai.backend.common.wire.appproxy import Ack, Circuit, EndpointLoads, Slot, UsageReport, UsageRow


class CircuitStore(Protocol):
    """Stores circuits. Every method is one transaction; a change of circuits raises the version of their worker."""

    async def add(self, circuit: Circuit, now: datetime) -> None:
        """Adds a circuit. Raises SlotTaken: its slot is in use, or rests or is reserved for another user;
        NoSuchObject: its worker is gone."""

    async def replace(self, circuit: Circuit) -> None:
        """Changes a circuit. The circuit keeps its slot. Raises NoSuchObject."""

    async def remove(self, ids: Sequence[UUID], *, now: datetime, rest_until: datetime) -> Sequence[UUID]:
        """Removes circuits and returns those that existed.

        Their ports rest until ``rest_until``; owners keep their subdomain names.
        """

    async def circuit(self, circuit_id: UUID) -> StoredCircuit | None: ...
    async def of_endpoint(self, endpoint_id: UUID) -> StoredCircuit | None: ...
    async def of_session(self, session_id: UUID, app: str) -> Sequence[StoredCircuit]:
        """Returns the interactive circuits of an app of a session."""

    async def of_worker(self, worker_id: UUID) -> Sequence[Circuit]:
        """Returns the circuits of a worker. Raises NoSuchObject."""

    async def changes(self, worker_id: UUID, since: int) -> tuple[int, Sequence[UUID], Sequence[Circuit]]:
        """Returns a worker's version, its circuits' ids, and the circuits that changed after version ``since``.

        Raises NoSuchObject.
        """

    async def ids_of_sessions(self, session_ids: Sequence[UUID]) -> Sequence[UUID]:
        """Returns the ids of the interactive circuits of these sessions."""

    async def sessions(self) -> Sequence[UUID]:
        """Returns the ids of the sessions that have interactive circuits or set-ups."""

    async def unused_since(self, moment: datetime) -> Sequence[UUID]:
        """Returns the interactive circuits that were used last before a moment."""

    async def circuits_without_slot(self) -> Sequence[UUID]:
        """Returns the circuits whose worker no longer has their slot."""

    async def slots(self, worker_id: UUID | None = None) -> Mapping[UUID, Sequence[Slot]]:
        """Returns the occupied slots of one worker, or of all workers, by the worker's id."""

    async def resting_ports(self, worker_id: UUID, now: datetime, user_id: UUID | None) -> frozenset[int]:
        """Returns the ports of a worker that this user may not use yet, since another user has used them lately."""

    async def versions(self) -> Mapping[UUID, int]:
        """Returns the versions of all workers."""

    async def link(self, worker_id: UUID, node: str, *, is_linked: bool, now: datetime) -> None:
        """Records that a node opened or closed its link. A new link has acknowledged no version."""

    async def acknowledge(self, worker_id: UUID, node: str, ack: Ack) -> None: ...
    async def delivery(self, circuit_id: UUID, alive_since: datetime) -> Delivery | None: ...
    async def count(self, worker_id: UUID, node: str, usage: UsageReport, now: datetime) -> int:
        """Stores a usage report if it is new. Returns the sequence number of the node's last stored report."""

    async def loads(self, alive_since: datetime) -> EndpointLoads:
        """Returns the loads of all endpoints, such as open and waiting requests, by the last reports of nodes.

        Open and waiting requests only count at nodes that are linked and have been alive since ``alive_since``.
        """

    async def usage(self, after: int, limit: int) -> Sequence[UsageRow]:
        """Returns the reports of endpoints after an id, oldest first."""

    async def add_setup(self, token_hash: str, setup: Setup, expires_at: datetime) -> None: ...
    async def setup(self, token_hash: str, now: datetime) -> Setup | None:
        """Returns the set-up of a token by its hash, or None if it is used, expired or unknown."""

    async def use_setup(self, token_hash: str, now: datetime) -> bool:
        """Marks a set-up as used. Returns True if it was valid: neither used nor expired."""

    async def release_setup(self, token_hash: str) -> None:
        """Permits the use of a set-up once more after a failed use."""

    async def remove_setups(self, session_ids: Sequence[UUID]) -> None: ...
    async def purge(self, now: datetime) -> None:
        """Removes expired set-ups, ports that may be given out again, and nodes and endpoint reports of a day ago."""
