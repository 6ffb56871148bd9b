"""Serves the kubelet's DRA interface: prepares and unprepares the devices of resource claims (dra v1)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ai.backend.common.devices import ComputeDevice
from ai.backend.common.errors import BackendError, Conflict, InvalidQuantity, Unavailable
from ai.backend.common.slots import format_quantity
from ai.backend.infra.loop import PeriodicLoop
from ai.backend.kubeacc.node_plugin import wire
from ai.backend.kubeacc.node_plugin.checkpoint import HeldDevice, WorkloadRecord
from ai.backend.kubeacc.node_plugin.devices import DeviceTracker, share_slot
from ai.backend.kubeacc.node_plugin.rpc import grpc_server, wait_for_change
from ai.backend.kubeacc.node_plugin.settings import NodePluginSettings
from ai.backend.kubeacc.node_plugin.slices import capacity_name
from ai.backend.kubeacc.node_plugin.workloads import Workloads
from ai.backend.node.kube_api.client import KubeApi
from ai.backend.node.kube_api.objects import AllocatedDevice, ResourceClaim
from ai.backend.node.kube_api.quantities import parse_quantity
from ai.backend.node.kube_api.resources import RESOURCE_CLAIMS

log = logging.getLogger(__name__)
_MAX_ERROR = 1000


class DraDriver:
    """Prepares and unprepares devices for the resource claims of this node when the kubelet calls.

    An answer has an entry for each claim; what fails for one claim is its error alone. Both calls are safe to repeat,
    also by a kubelet or a plugin that was restarted between.

    ``pool`` is the name of the node's pool of devices.
    """

    def __init__(self, api: KubeApi, tracker: DeviceTracker, workloads: Workloads, driver_name: str, pool: str) -> None:
        self._api, self._tracker, self._workloads = api, tracker, workloads
        self._driver_name, self._pool = driver_name, pool

    async def node_prepare_resources(self, request: Any, _context: Any) -> Any:
        answer = wire.dra.NodePrepareResourcesResponse()
        await asyncio.gather(*(self._prepare(claim, answer.claims[claim.uid]) for claim in request.claims))
        return answer

    async def node_unprepare_resources(self, request: Any, _context: Any) -> Any:
        answer = wire.dra.NodeUnprepareResourcesResponse()
        await asyncio.gather(*(self._unprepare(claim, answer.claims[claim.uid]) for claim in request.claims))
        return answer

    async def _prepare(self, claim: Any, entry: Any) -> None:
        try:
            await self._tracker.is_complete.wait()  # the kubelet has a deadline of its own
            record = await self._workloads.prepare(await self._requested_workload(claim))
            for device in record.devices:
                # Without a request, a device would be given to containers that ask for none of it.
                message = entry.devices.add(
                    request_names=device.requests,
                    pool_name=self._pool,
                    device_name=device.name,
                    cdi_device_ids=record.cdi_names.get(device.plugin, ()),
                )
                if device.share_id is not None:
                    message.share_id = device.share_id
        except BackendError as e:
            log.warning("the claim %s/%s is not prepared: %s", claim.namespace, claim.name, e.message)
            del entry.devices[:]
            entry.error = e.message[:_MAX_ERROR]
        except Exception as e:  # no claim may cost another one its answer
            log.exception("the claim %s/%s is not prepared", claim.namespace, claim.name)
            del entry.devices[:]
            entry.error = f"internal error: {type(e).__name__}"

    async def _unprepare(self, claim: Any, entry: Any) -> None:
        entry.error = ""
        try:
            await self._tracker.is_complete.wait()
            await self._workloads.release(claim.uid)
        except BackendError as e:
            log.warning("the claim %s/%s is not released: %s", claim.namespace, claim.name, e.message)
            entry.error = e.message[:_MAX_ERROR]
        except Exception as e:
            log.exception("the claim %s/%s is not released", claim.namespace, claim.name)
            entry.error = f"internal error: {type(e).__name__}"

    async def _requested_workload(self, claim: Any) -> WorkloadRecord:
        """Returns the stored workload record of a claim that is prepared, or a new workload record for any other claim.

        A new record needs an answer of the API server, a stored one does not.
        Raises Conflict: the claim is another one by now, or has no devices of ours.
        """
        existing_record = self._workloads.records.get(claim.uid)
        if existing_record is not None and existing_record.phase == "prepared":
            return existing_record
        claim_object = await self._api.get(RESOURCE_CLAIMS, claim.name, claim.namespace)
        if claim_object.metadata.uid != claim.uid:
            raise Conflict(
                f"the claim {claim.namespace}/{claim.name} is another one by now: {claim_object.metadata.uid}"
            )
        devices = self._devices_of(claim_object)
        if not devices:
            raise Conflict(
                f"the claim {claim.namespace}/{claim.name} has no device of {self._driver_name} on this node"
            )
        pods = [consumer for consumer in claim_object.status.reserved_for if consumer.resource == "pods"]
        return WorkloadRecord(
            uid=claim.uid,
            way="dra",
            namespace=claim.namespace,
            name=claim.name,
            pod_uid=pods[0].uid if pods else "",
            pod=pods[0].name if pods else "",
            devices=devices,
        )

    def _devices_of(self, claim: ResourceClaim) -> tuple[HeldDevice, ...]:
        """Returns the devices of a claim. Each share of a device is a separate entry.

        Raises Unavailable: a device is gone. Raises Conflict: the claim has a share of one that cannot be divided."""
        by_name = self._tracker.by_name()
        requests: dict[tuple[str, str | None], list[str]] = {}
        amounts: dict[tuple[str, str | None], str] = {}
        for result in claim.status.allocation.devices.results if claim.status.allocation is not None else ():
            if result.driver == self._driver_name and result.pool == self._pool:
                if result.device not in by_name:
                    raise Unavailable(f"the device {result.device} is not there any more")
                # A request with alternatives is allocated as "request/alternative"; containers name the request.
                key = (result.device, result.share_id)
                requests.setdefault(key, []).append(result.request.partition("/")[0])
                if result.share_id is not None:
                    amounts[key] = _share_of(by_name[result.device][1], result)
        return tuple(
            HeldDevice(
                plugin=by_name[name][0],
                device_id=by_name[name][1].device_id,
                name=name,
                requests=tuple(dict.fromkeys(names)),
                share_id=share_id,
                amount=amounts.get((name, share_id)),
            )
            for (name, share_id), names in requests.items()
        )


def _share_of(device: ComputeDevice, result: AllocatedDevice) -> str:
    """Returns the amount of a device that one result of a claim's allocation consumes. Raises Conflict."""
    slot = share_slot(device)
    consumed_amount = result.consumed_capacity.get(capacity_name(slot)) if slot is not None else None
    try:
        amount = parse_quantity(consumed_amount) if consumed_amount is not None else None
    except InvalidQuantity as e:
        raise Conflict(f"the share of {result.device} is unclear: {e.message}") from None
    if slot is None or amount is None or not 0 < amount <= slot.amount:
        raise Conflict(f"the claim has a share of {result.device} that its plugin cannot give: {consumed_amount}")
    return format_quantity(amount)


class _Registration:
    """Registers the DRA driver with the kubelet's plugin watcher, which connects to every socket in
    ``plugins_registry``."""

    def __init__(self, driver_name: str, endpoint: Path) -> None:
        self._driver_name, self._endpoint = driver_name, endpoint
        self.is_registered = asyncio.Event()

    async def get_info(self, _request: Any, _context: Any) -> Any:
        return wire.registration.PluginInfo(
            type="DRAPlugin",
            name=self._driver_name,
            endpoint=str(self._endpoint),
            supported_versions=["v1.DRAPlugin"],
        )

    async def notify_registration_status(self, request: Any, _context: Any) -> Any:
        if request.plugin_registered:
            log.info("the kubelet has registered the DRA driver %s", self._driver_name)
            self.is_registered.set()
        else:
            log.error("the kubelet refuses the DRA driver %s: %s", self._driver_name, request.error[:_MAX_ERROR])
            self.is_registered.clear()
        return wire.registration.RegistrationStatusResponse()


async def serve_dra(settings: NodePluginSettings, driver: DraDriver, *, ready: Callable[[], None]) -> None:
    """Serves the DRA driver until cancelled.

    Creates sockets again that somebody has removed. ``ready`` is called each time when the kubelet can dial.
    """
    folder = settings.kubelet_directory
    endpoint = folder / "plugins" / settings.driver_name / "dra.sock"
    registration_socket = folder / "plugins_registry" / f"{settings.driver_name}-reg.sock"
    registration = _Registration(settings.driver_name, endpoint)
    while True:
        async with (
            grpc_server(endpoint, {wire.DRA_PLUGIN: driver}),
            grpc_server(registration_socket, {wire.PLUGIN_REGISTRATION: registration}),
        ):
            ready()
            await wait_for_change(endpoint, registration_socket)
        log.warning("a socket of the DRA driver was removed: both are made anew")


class OrphanSweep(PeriodicLoop):
    """Releases claims that nobody will unprepare, because their object is gone, replaced, or no longer allocated.

    The kubelet unprepares all others, also after a restart.
    """

    period_s = 60.0

    def __init__(self, api: KubeApi, workloads: Workloads) -> None:
        self._api, self._workloads = api, workloads

    async def once(self) -> None:
        for record in list(self._workloads.records.values()):
            if record.way != "dra":
                continue
            claim = await self._api.find(RESOURCE_CLAIMS, record.name, record.namespace)
            has_ended = claim is None or claim.metadata.uid != record.uid or claim.status.allocation is None
            if has_ended or record.phase == "releasing":
                log.warning("the claim %s/%s is over: its devices are released", record.namespace, record.name)
                try:
                    await self._workloads.release(record.uid)
                except BackendError as e:  # a plugin that fails keeps the devices of no other claim
                    log.warning("the devices of %s/%s stay: %s", record.namespace, record.name, e.message)
