"""Routes of workers and of the coordinator's health (spec 03-14)."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from ai.backend.appproxy.coordinator.workers.schemas import (
    CoordinatorStatus,
    Health,
    Heartbeat,
    SlotList,
    SlotsQuery,
    Success,
    WorkerList,
    WorkerStatus,
)
from ai.backend.appproxy.coordinator.workers.service import Authority, WorkerService, id_of
from ai.backend.common.appproxy_errors import NoSuchObject
from ai.backend.common.structs import replace
from ai.backend.common.wire.appproxy import FrontendMode, Slot, WorkerInfo, WorkerRegistration
from ai.backend.infra.http.routes import Call, route


@dataclass(slots=True)
class WorkersApi:
    """Routes of workers."""

    workers: WorkerService
    authority: Authority

    @route("GET", "/api/worker")
    async def list_workers(self, call: Call) -> WorkerList:
        """Lists all workers."""
        return WorkerList(workers=await self.workers.describe_all())

    @route("PUT", "/api/worker", body=WorkerRegistration)
    async def register(self, call: Call[WorkerRegistration]) -> WorkerInfo:
        """Registers a worker, or changes the one of its authority."""
        worker = await self.workers.register(call.body)
        info = await self.workers.describe(worker)
        certificate = None
        if call.body.certificate_request is not None:
            certificate = await self.authority.sign(call.body.certificate_request)
        own_certificate = await self.authority.certificate() if certificate is not None else None
        return replace(info, certificate=certificate, authority_certificate=own_certificate)

    @route("GET", "/api/worker/{worker_id}")
    async def get(self, call: Call) -> WorkerInfo:
        """Describes a worker."""
        return await self.workers.describe(await self.workers.get(id_of(call.params["worker_id"], "worker")))

    @route("PATCH", "/api/worker/{worker_id}", body=Heartbeat, audited=False)
    async def touch(self, call: Call[Heartbeat]) -> WorkerInfo:
        """Records a heartbeat of a worker."""
        worker = await self.workers.touch(id_of(call.params["worker_id"], "worker"), call.body.node)
        return await self.workers.describe(worker)

    @route("DELETE", "/api/worker/{worker_id}")
    async def delete(self, call: Call) -> Success:
        """Removes a worker with its circuits."""
        await self.workers.delete(id_of(call.params["worker_id"], "worker"))
        return Success()

    @route("GET", "/api/slots", query=SlotsQuery)
    async def slots(self, call: Call[Any, SlotsQuery]) -> SlotList:
        """Lists the slots of one worker or of all; with ``in_use`` false also the free ports."""
        workers = await self.workers.describe_all()
        if call.query.wsproxy_host is not None:
            workers = [worker for worker in workers if worker.authority == call.query.wsproxy_host]
            if not workers:
                raise NoSuchObject("worker")
        return SlotList(slots=[slot for worker in workers for slot in _slots(worker, in_use=call.query.in_use)])

    @route("GET", "/api/gateway-authority")
    async def gateway_authority(self, call: Call) -> dict[str, str]:
        """Returns the certificate by which gateways of agents recognize workers."""
        return {"certificate": await self.authority.certificate()}


def _slots(worker: WorkerInfo, *, in_use: bool) -> list[Slot]:
    if in_use or worker.port_range is None:
        return worker.slots
    used_slots = {slot.port: slot for slot in worker.slots}
    ports = range(worker.port_range[0], worker.port_range[1] + 1)
    return [
        used_slots.get(port) or Slot(frontend_mode=FrontendMode.PORT, in_use=False, port=port)
        for port in sorted({*ports, *(port for port in used_slots if port is not None)})
    ]


@dataclass(slots=True)
class CoordinatorHealthApi:
    """Routes of the health of the coordinator."""

    workers: WorkerService

    @route("GET", "/health", auth=False, limited=False)
    async def health(self, call: Call) -> Health:
        """Reports that the coordinator serves."""
        return Health()

    @route("GET", "/health/status")
    async def status(self, call: Call) -> CoordinatorStatus:
        """Returns the version of the coordinator and its living workers."""
        return CoordinatorStatus(
            coordinator_version=version("backendai"),
            workers=[
                WorkerStatus(
                    authority=worker.authority,
                    available_slots=worker.available_slots,
                    occupied_slots=worker.occupied_slots,
                    ha_setup=worker.nodes > 1,
                )
                for worker in await self.workers.describe_all()
                if worker.nodes > 0
            ],
        )
