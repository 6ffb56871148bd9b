"""Attaches accelerators of OpenStack Cyborg to the machines of nodes, and programs FPGAs through Cyborg (spec 02,
goals).

A device of Cyborg serves several machines; each place in it, a *unit*, is an Accelerator. Nothing is remembered here:
the names of a unit's device profile and of its consumer in Placement say what belongs to it, and the description of
the profile to which node it is attached. So each action can be repeated after a crash, and removes what an earlier one
left. Cyborg gives an accelerator to a machine of Nova once only: what is bound together, and nothing after it.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar, Self
from urllib.parse import quote

from pydantic import ValidationError

from ai.backend.common.device_operations import OperationVerb
from ai.backend.common.errors import BackendError, Conflict, InsufficientResource, InvalidInput, NotFound
from ai.backend.infra.retry import Backoff
from ai.backend.kubeacc.crd.vocabulary import AcceleratorType, Attachment, AttachState
from ai.backend.kubeacc.drivers.cyborg.connection import BindFailed, Cloud, CloudRefused, CloudUnavailable
from ai.backend.kubeacc.drivers.cyborg.images import ImageLibrary
from ai.backend.kubeacc.drivers.cyborg.model import (
    BIND_STARTED,
    BOUND,
    TYPES,
    AcceleratorRequest,
    AcceleratorRequests,
    Deployable,
    Deployables,
    DeviceProfile,
    DeviceProfiles,
    Machine,
    Servers,
    Unit,
)
from ai.backend.kubeacc.drivers.cyborg.placement import Placement, Stock
from ai.backend.kubeacc.drivers.cyborg.settings import CyborgSettings
from ai.backend.kubeacc.drivers.spi import AbstractAcceleratorDriver, DriverDevice, ImageSource
from ai.backend.plugin.settings import problems_of

log = logging.getLogger(__name__)
V = OperationVerb
_REQUESTS, _PROFILES = "/accelerator_requests", "/device_profiles"
_FPGA = "FPGA"
_BIND_FAILED = "BindFailed"
_MAX_UNITS = 4096


class CyborgDriver(AbstractAcceleratorDriver):
    name: ClassVar[str] = "cyborg"
    operations = frozenset({V.ATTACH, V.DETACH, V.PROGRAM, V.DIAGNOSE})

    def __init__(self, settings: CyborgSettings) -> None:
        self._settings = settings
        self._cloud = Cloud(settings)
        self._placement = Placement(self._cloud)
        self._images = ImageLibrary(self._cloud)
        self._locks: dict[str, asyncio.Lock] = {}
        self._programs: dict[str, str] = {}

    @classmethod
    def from_settings(cls, table: Mapping[str, Any]) -> Self:
        try:
            return cls(CyborgSettings.model_validate(table))
        except ValidationError as e:
            problems = problems_of(e)
            texts = "; ".join(f"{key}: {problem}" for key, problem in problems.items())
            raise InvalidInput(f"drivers.{cls.name}: {texts}", data=problems) from None

    @property
    def image_sources(self) -> Mapping[str, ImageSource]:
        return {"glance": self._images.fetch}

    async def discover(self) -> Sequence[DriverDevice]:
        deployables = await self._deployables()
        request_by_profile: dict[str, AcceleratorRequest] = {}
        for request in await self._requests():
            if request.state == BOUND and request.device_profile_name:
                request_by_profile[request.device_profile_name] = request
        profile_list = await self._cloud.request("accelerator", "GET", _PROFILES, DeviceProfiles)
        node_of_profile = {profile.name: profile.description or "" for profile in profile_list.device_profiles}
        devices: list[DriverDevice] = []
        for deployable in deployables:
            stock = await self._stock_if_any(deployable)
            for number in range(min(deployable.num_accelerators, _MAX_UNITS)):
                unit = Unit(deployable.uuid, number, self._settings.cluster)
                request_of_unit = request_by_profile.get(unit.profile)
                devices.append(
                    self._describe(unit, deployable, stock, request_of_unit, node_of_profile.get(unit.profile, ""))
                )
        return devices

    def _describe(
        self, unit: Unit, deployable: Deployable, stock: Stock | None, request: AcceleratorRequest | None, node: str
    ) -> DriverDevice:
        properties = {"deployable": deployable.name, "driver": deployable.driver_name or ""}
        if stock is not None:
            properties |= {"host": stock.host, "resource": stock.resource}
            if not stock.usable:
                properties["maintenance"] = "true"
        if request is not None:
            properties |= {"instance": request.instance_uuid or "", "request": request.uuid}
        return DriverDevice(
            device_id=unit.device_id,
            type=TYPES.get(stock.resource if stock else "", AcceleratorType.OTHER),
            attachment=Attachment.REMOTE,
            node_name=(node or None) if request is not None else None,
            model=deployable.name,
            attach_state=AttachState.ATTACHED if request is not None else AttachState.DETACHED,
            program=self._programs.get(deployable.uuid),
            properties=properties,
        )

    async def attach(self, device_id: str, node_name: str) -> None:
        """Binds an accelerator to the machine of a node. A Nova machine sees the accelerator after a hard reboot.

        Raises InsufficientResource: others have all accelerators of the device; Conflict: the unit is attached
        elsewhere, or Cyborg binds nothing more to the machine; BindFailed.
        """
        unit = Unit.parse(device_id, self._settings.cluster)
        deployable, stock = await self._device_and_stock(unit)
        async with self._lock(deployable):
            machine = await self._machine(node_name)
            if stock.host not in (machine.host, machine.hypervisor):
                raise InvalidInput(f"the device is at the host {stock.host}, {node_name} is at {machine.host}")
            if await self._is_bound(unit, machine):
                if not await self._placement.has(unit.consumer):
                    await self._placement.allocate(unit.consumer, stock, 1)
                return
            try:
                await self._placement.allocate(unit.consumer, stock, 1)
                await self._make_profile(unit, stock, node_name)
                await self._bind_unit(unit, stock, machine)
            except BackendError as e:
                if isinstance(e, BindFailed) or not isinstance(e, CloudUnavailable):
                    with suppress(BackendError):  # the first error is the reason; a rollback tries again
                        await self._free_unit(unit)
                raise

    async def detach(self, device_id: str) -> None:
        """Unbinds the accelerator, and frees everything that the unit has in Cyborg and Placement."""
        unit = Unit.parse(device_id, self._settings.cluster)
        async with self._lock(unit):
            await self._free_unit(unit)
            await self._placement.release(unit.programming_consumer)

    async def program(self, device_id: str, image: Path) -> None:
        """Loads an image into the whole FPGA. Nobody else may hold a unit of the FPGA.

        Raises Conflict: other machines hold accelerators of it.
        """
        unit = Unit.parse(device_id, self._settings.cluster)
        deployable, stock = await self._device_and_stock(unit)
        if stock.resource != _FPGA:
            raise InvalidInput(f"{deployable.name} is of {stock.resource}; Cyborg programs FPGAs only")
        image_id = await self._images.put(image)
        async with self._lock(deployable), self._reserve_whole_device(unit, stock):
            body = [{"path": "/program", "op": "replace", "value": [{"image_uuid": image_id}]}]
            path = f"/deployables/{deployable.uuid}/program"
            timeout_s = self._settings.program_timeout
            await self._cloud.request("accelerator", "PATCH", path, type(None), body=body, timeout_s=timeout_s)
        self._programs[deployable.uuid] = str(image)

    @asynccontextmanager
    async def _reserve_whole_device(self, unit: Unit, stock: Stock) -> AsyncIterator[None]:
        """Takes all free shares of a device, so that no other consumer gets a share meanwhile.

        They are kept where nobody knows whether the device is still being programmed: the unit's next program or detach
        gives them back.
        """
        consumer = unit.programming_consumer
        amount = stock.usable - (1 if await self._placement.has(unit.consumer) else 0)
        try:
            if amount > 0:
                await self._placement.allocate(consumer, stock, amount)
        except InsufficientResource as e:
            raise Conflict(f"other machines hold accelerators of this FPGA: {e.message}") from None
        try:
            yield
        except (CloudUnavailable, asyncio.CancelledError):
            raise
        except BaseException:
            with suppress(BackendError):
                await self._placement.release(consumer)
            raise
        await self._placement.release(consumer)

    async def _bind_unit(self, unit: Unit, stock: Stock, machine: Machine) -> None:
        created_requests = await self._cloud.request(
            "accelerator", "POST", _REQUESTS, AcceleratorRequests, body={"device_profile_name": unit.profile}
        )
        if len(created_requests.arqs) != 1:
            raise CloudUnavailable(f"Cyborg has made {len(created_requests.arqs)} requests for one accelerator")
        request = created_requests.arqs[0]
        bind_values = {
            "hostname": machine.host,
            "device_rp_uuid": stock.provider,
            "instance_uuid": machine.instance or unit.host_instance,
        }
        patch = [{"path": f"/{name}", "op": "add", "value": value} for name, value in bind_values.items()]
        problem: BackendError | None = None
        try:
            await self._cloud.request("accelerator", "PATCH", _REQUESTS, type(None), body={request.uuid: patch})
        except BackendError as e:  # it may have been done: Cyborg also refuses where it has bound and cannot tell Nova
            problem = e
        final_state = next(
            (
                resolved_request.state
                for resolved_request in await self._resolved_requests(unit)
                if resolved_request.uuid == request.uuid
            ),
            "",
        )
        if final_state == BOUND:
            if problem is not None:
                log.warning("Cyborg has bound %s, although: %s", unit.device_id, problem)
        elif final_state == _BIND_FAILED or problem is None:
            raise BindFailed(
                f"the request of {unit.device_id} is {final_state or 'gone'}: {problem or 'Cyborg does not say why'}"
            )
        elif isinstance(problem, InvalidInput):
            raise Conflict(f"Cyborg does not bind it to {machine.node}: {problem.message}")
        else:
            raise problem

    async def _is_bound(self, unit: Unit, machine: Machine) -> bool:
        """Returns True if the unit is already bound to the machine. Removes the remains of earlier attempts.

        Raises Conflict: it is bound elsewhere, or the machine has other accelerators.
        """
        requests = await self._resolved_requests(unit)
        instance_id = machine.instance or unit.host_instance
        bound_requests = [request for request in requests if request.state == BOUND]
        if any(request.instance_uuid == instance_id for request in bound_requests):
            await self._delete_requests([request for request in requests if request not in bound_requests])
            return True
        if bound_requests:
            raise Conflict(f"{unit.device_id} is bound to the instance {bound_requests[0].instance_uuid}")
        await self._delete_requests(requests)
        if any(request.instance_uuid == instance_id for request in await self._requests()):
            raise Conflict(f"{machine.node} has accelerators, and Cyborg binds no more to it: detach them first")
        return False

    async def _free_unit(self, unit: Unit) -> None:
        requests = await self._resolved_requests(unit)
        bound_requests = [request for request in requests if request.state == BOUND]
        if bound_requests:
            bind_fields = ("hostname", "device_rp_uuid", "instance_uuid")
            patch = [{"path": f"/{name}", "op": "remove"} for name in bind_fields]
            body = {request.uuid: patch for request in bound_requests}
            await self._cloud.request("accelerator", "PATCH", _REQUESTS, type(None), body=body)
        await self._delete_requests(requests)
        with suppress(NotFound):
            await self._cloud.request("accelerator", "DELETE", f"{_PROFILES}?value={unit.profile}", type(None))
        await self._placement.release(unit.consumer)

    async def _delete_requests(self, requests: Sequence[AcceleratorRequest]) -> None:
        for request in requests:
            with suppress(NotFound):
                path = f"{_REQUESTS}?arqs={quote(request.uuid, safe='')}"
                await self._cloud.request("accelerator", "DELETE", path, type(None))

    async def _resolved_requests(self, unit: Unit) -> list[AcceleratorRequest]:
        """Returns the requests of a unit once none of them is being bound.

        Deleting a request while it is being bound would leak the accelerator that it gets. Raises CloudUnavailable:
        Cyborg takes too long.
        """
        deadline, delays = time.monotonic() + self._settings.bind_timeout, Backoff(0.1, 5.0)
        while True:
            requests = [
                any_request for any_request in await self._requests() if any_request.device_profile_name == unit.profile
            ]
            if all(request.state != BIND_STARTED for request in requests):
                return requests
            if time.monotonic() > deadline:
                raise CloudUnavailable(f"Cyborg does not finish binding {unit.device_id}")
            await delays.wait()

    async def _make_profile(self, unit: Unit, stock: Stock, node_name: str) -> None:
        resource_groups = [{f"resources:{stock.resource}": "1"}]
        profile = DeviceProfile(name=unit.profile, description=node_name, groups=resource_groups)
        path = f"{_PROFILES}?name={unit.profile}"
        present_profiles = (await self._cloud.request("accelerator", "GET", path, DeviceProfiles)).device_profiles
        if present_profiles == [profile]:
            return
        if present_profiles:
            path = f"{_PROFILES}?value={unit.profile}"
            await self._cloud.request("accelerator", "DELETE", path, type(None))
        body = [{"name": unit.profile, "description": node_name, "groups": resource_groups}]
        await self._cloud.request("accelerator", "POST", _PROFILES, type(None), body=body)

    async def _machine(self, node_name: str) -> Machine:
        """Returns the machine of a node. Raises NotFound, Conflict: Nova has none of this name, or several."""
        configured_node = self._settings.nodes.get(node_name)
        if configured_node is not None:
            return Machine(node_name, configured_node.instance, configured_node.host)
        path = f"/servers/detail?name={quote(f'^{re.escape(node_name)}$', safe='')}"
        server_list = await self._cloud.request("compute", "GET", path, Servers)
        servers = [server for server in server_list.servers if server.name == node_name]
        if not servers:
            raise NotFound(f"Nova has no server {node_name}, and drivers.cyborg.nodes does not name it")
        if len(servers) > 1:
            raise Conflict(f"Nova has {len(servers)} servers {node_name}: say in drivers.cyborg.nodes which one it is")
        server = servers[0]
        if not server.host:
            raise CloudRefused(f"Nova does not show our account at which host {node_name} is")
        return Machine(node_name, server.id, server.host, server.hypervisor)

    async def _device_and_stock(self, unit: Unit) -> tuple[Deployable, Stock]:
        """Returns the device of a unit in Cyborg, and what Placement counts of this device.

        Raises NotFound: Cyborg has no such device, or has not reported it to Placement.
        """
        for deployable in await self._deployables():
            if deployable.uuid == unit.deployable and unit.number < deployable.num_accelerators:
                if deployable.rp_uuid is None:
                    break
                return deployable, await self._placement.stock(deployable.rp_uuid)
        raise NotFound(f"Cyborg has no device {unit.device_id}")

    async def _stock_if_any(self, deployable: Deployable) -> Stock | None:
        if deployable.rp_uuid is None:
            return None
        with suppress(NotFound):
            return await self._placement.stock(deployable.rp_uuid)
        return None

    async def _deployables(self) -> list[Deployable]:
        deployable_list = await self._cloud.request("accelerator", "GET", "/deployables", Deployables)
        return sorted(deployable_list.deployables, key=lambda deployable: deployable.uuid)

    async def _requests(self) -> list[AcceleratorRequest]:
        return (await self._cloud.request("accelerator", "GET", _REQUESTS, AcceleratorRequests)).arqs

    def _lock(self, deployable: Deployable | Unit) -> asyncio.Lock:
        uuid = deployable.uuid if isinstance(deployable, Deployable) else deployable.deployable
        return self._locks.setdefault(uuid, asyncio.Lock())
