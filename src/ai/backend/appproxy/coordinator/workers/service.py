"""Registers workers, tracks their heartbeats, and treats workers without heartbeats as lost."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from uuid import UUID

from ai.backend.appproxy.coordinator.workers.model import Worker
from ai.backend.appproxy.coordinator.workers.store import AuthorityStore, SlotUse, WorkerStore
from ai.backend.common.appproxy_errors import NoSuchObject
from ai.backend.common.errors import InvalidInput
from ai.backend.common.structs import replace
from ai.backend.common.wire.appproxy import FrontendMode, Slot, WorkerInfo, WorkerRegistration
from ai.backend.infra.clock import Clock
from ai.backend.infra.tls.certificates import TlsIdentity, create_authority, issue_client_certificate

_HOST_PATTERN = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?|[0-9A-Fa-f:]+")
_DOMAIN_PATTERN = re.compile(r"(?:\.[a-z0-9](?:[a-z0-9-]*[a-z0-9])?)+")


@dataclass(slots=True)
class WorkerService:
    """Registers and lists workers. A worker whose last heartbeat is older than ``timeout_s`` counts as lost."""

    store: WorkerStore
    use: SlotUse
    clock: Clock
    timeout_s: float

    def alive_since(self) -> datetime:
        """Returns the earliest time of a heartbeat at which a node still counts as alive."""
        return self.clock.now() - timedelta(seconds=self.timeout_s)

    async def register(self, registration: WorkerRegistration) -> Worker:
        """Adds a worker, or changes the worker that has the same authority. Raises InvalidInput."""
        valid_registration = _check_registration(registration)
        return await self.store.put(valid_registration, self.clock.now(), self.alive_since())

    async def touch(self, worker_id: UUID, node: str) -> Worker:
        """Records a heartbeat of a worker's node. Raises NoSuchObject: the worker registers again."""
        await self.store.touch(worker_id, node, self.clock.now())
        return await self.get(worker_id)

    async def get(self, worker_id: UUID) -> Worker:
        """Returns a worker. Raises NoSuchObject."""
        worker = await self.store.worker(worker_id, self.alive_since())
        if worker is None:
            raise NoSuchObject("worker")
        return worker

    async def all(self) -> Sequence[Worker]:
        return await self.store.workers(self.alive_since())

    async def delete(self, worker_id: UUID) -> None:
        """Removes a worker with its circuits. Raises NoSuchObject."""
        if not await self.store.delete(worker_id):
            raise NoSuchObject("worker")

    async def describe(self, worker: Worker) -> WorkerInfo:
        """Returns a worker with its occupied slots."""
        slots_of_worker = await self.use.slots(worker.id)
        return info_of(worker, slots_of_worker.get(worker.id, ()))

    async def describe_all(self) -> list[WorkerInfo]:
        slots_of_worker = await self.use.slots()
        return [info_of(worker, slots_of_worker.get(worker.id, ())) for worker in await self.all()]


def id_of(text: str, noun: str) -> UUID:
    """Parses the id in a URL path. Raises NoSuchObject for anything else."""
    try:
        return UUID(text)
    except ValueError:
        raise NoSuchObject(noun) from None


def info_of(worker: Worker, used_slots: Sequence[Slot]) -> WorkerInfo:
    return WorkerInfo(
        authority=worker.authority,
        frontend_mode=worker.frontend_mode,
        protocol=worker.protocol,
        hostname=worker.hostname,
        use_tls=worker.use_tls,
        api_port=worker.api_port,
        port_range=worker.port_range,
        wildcard_domain=worker.wildcard_domain,
        filtered_apps_only=worker.filtered_apps_only,
        accepted_traffics=list(worker.accepted_traffics),
        id=worker.id,
        created_at=worker.created_at.isoformat(),
        updated_at=worker.updated_at.isoformat(),
        available_slots=worker.capacity,
        occupied_slots=len(used_slots),
        nodes=worker.nodes,
        slots=list(used_slots),
    )


def _check_registration(registration: WorkerRegistration) -> WorkerRegistration:
    """Checks a worker's registration, and returns it without the fields of the other frontend mode.

    Raises InvalidInput.
    """
    problems: dict[str, str] = {}
    if _HOST_PATTERN.fullmatch(registration.hostname) is None:
        problems["hostname"] = "not a host name or address"
    if registration.frontend_mode is FrontendMode.PORT:
        first_port, last_port = registration.port_range or (1, 0)
        if first_port > last_port:
            problems["port_range"] = "a port frontend needs [first, last]"
        registration = replace(registration, wildcard_domain=None, wildcard_port=None)
    else:
        if _DOMAIN_PATTERN.fullmatch(registration.wildcard_domain or "") is None:
            problems["wildcard_domain"] = "a wildcard frontend needs a domain in lower case that begins with a dot"
        registration = replace(registration, port_range=None)
    if problems:
        raise InvalidInput("; ".join(f"{name}: {problem}" for name, problem in problems.items()), data=problems)
    return registration


@dataclass(slots=True)
class Authority:
    """Represents the certificate authority of the workers, which is created at its first use.

    All coordinators of a database share it.
    """

    store: AuthorityStore
    _identity: TlsIdentity | None = field(default=None, init=False)

    async def certificate(self) -> str:
        """Returns the certificate of the authority as PEM."""
        return (await self._load()).certificate

    async def sign(self, request: str) -> str:
        """Returns a client certificate of a worker. Raises InvalidInput for a malformed request."""
        return issue_client_certificate(await self._load(), request, "app proxy worker")

    async def _load(self) -> TlsIdentity:
        if self._identity is None:
            self._identity = await self.store.authority(create_authority("app proxy"))
        return self._identity
