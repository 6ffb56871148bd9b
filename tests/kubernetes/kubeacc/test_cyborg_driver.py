"""The driver of OpenStack Cyborg against the real Cyborg 17 and Placement 16."""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from ai.backend.common.errors import BackendError, Conflict, InsufficientResource, InvalidInput, NotFound
from ai.backend.kubeacc.crd.vocabulary import AcceleratorType, Attachment, AttachState
from ai.backend.kubeacc.drivers.cyborg.connection import BindFailed, CloudRefused, CloudUnavailable
from ai.backend.kubeacc.drivers.cyborg.driver import CyborgDriver
from ai.backend.kubeacc.drivers.spi import AbstractAcceleratorDriver
from tests.contract.kubeacc.contract import DriverContract
from tests.kubernetes.kubeacc.cyborg import assert_nothing_left, openstack, settings, unit
from tests.support.openstack_cloud import HOST, Cloud
from tests.support.openstack_standins import Fault

pytestmark = [pytest.mark.slow, pytest.mark.needs("cyborg")]
__all__ = ["openstack"]  # a fixture
SERVER = str(uuid4())
BITS = b"bits of a bitstream"


@pytest.fixture
async def cyborg(openstack: Cloud) -> AsyncIterator[CyborgDriver]:
    """The driver, and after the test a cloud as it was before: whatever is left then has leaked."""
    openstack.stand_ins.servers = {SERVER: ("vm-1", HOST), str(uuid4()): ("vm-10", HOST)}
    yield CyborgDriver.from_settings(settings(openstack))
    openstack.stand_ins.faults.clear()
    openstack.stand_ins.is_nova_away = False
    driver = CyborgDriver.from_settings(settings(openstack))
    for device in await driver.discover():
        if device.attach_state is AttachState.ATTACHED:
            await driver.detach(device.device_id)
    assert_nothing_left(openstack)


class TestCyborg(DriverContract):
    @pytest.fixture
    async def driver(self, cyborg: CyborgDriver, openstack: Cloud) -> AbstractAcceleratorDriver:
        self.cloud = openstack
        await cyborg.attach(self.attached_id, self.node)
        return cyborg

    @property
    def attached_id(self) -> str:
        return unit(self.cloud, 0)

    @property
    def detached_id(self) -> str:
        return unit(self.cloud, 1)


async def test_devices_are_the_seats_of_what_cyborg_has(cyborg: CyborgDriver) -> None:
    devices = await cyborg.discover()
    assert len(devices) == 16
    assert {(d.type, d.attachment, d.attach_state) for d in devices} == {
        (AcceleratorType.FPGA, Attachment.REMOTE, AttachState.DETACHED)
    }
    assert devices[0].properties["host"] == HOST


async def test_a_server_of_nova_gets_an_accelerator(cyborg: CyborgDriver, openstack: Cloud) -> None:
    device_id = unit(openstack, 3)
    await cyborg.attach(device_id, "vm-1")
    request = openstack.requests()[0]
    assert (request["state"], request["instance_uuid"], request["hostname"]) == ("Bound", SERVER, HOST)
    assert request["attach_handle_info"]
    assert openstack.used() == 1
    assert openstack.stand_ins.events[-1]["server_uuid"] == SERVER
    with pytest.raises(Conflict, match="bound to the instance"):
        await cyborg.attach(device_id, "vm-10")
    with pytest.raises(Conflict, match="binds no more to it"):
        await cyborg.attach(unit(openstack, 4), "vm-1")
    assert len(openstack.requests()) == 1
    assert openstack.used() == 1
    attached = {d.device_id: d.node_name for d in await cyborg.discover() if d.attach_state is AttachState.ATTACHED}
    assert attached == {device_id: "vm-1"}


async def test_two_clusters_share_a_cloud(cyborg: CyborgDriver, openstack: Cloud) -> None:
    """Each sees its own attachments, Placement counts both, and neither takes back what the other has."""
    device_id = unit(openstack, 0)
    other = CyborgDriver.from_settings(settings(openstack, cluster="other"))
    await cyborg.attach(device_id, "node1")
    await other.attach(device_id, "node1")
    assert openstack.used() == 2
    await other.detach(device_id)
    assert [request["state"] for request in openstack.requests()] == ["Bound"]
    assert openstack.used() == 1


async def test_machines_that_are_not_clear_are_refused(cyborg: CyborgDriver, openstack: Cloud) -> None:
    device_id = unit(openstack, 0)
    with pytest.raises(NotFound, match="no server vm-2"):
        await cyborg.attach(device_id, "vm-2")
    openstack.stand_ins.servers[str(uuid4())] = ("vm-1", HOST)
    with pytest.raises(Conflict, match="2 servers vm-1"):
        await cyborg.attach(device_id, "vm-1")
    openstack.stand_ins.servers[str(uuid4())] = ("vm-3", "compute2")
    with pytest.raises(InvalidInput, match="at the host compute1, vm-3 is at compute2"):
        await cyborg.attach(device_id, "vm-3")
    openstack.stand_ins.servers[str(uuid4())] = ("vm-4", "")
    with pytest.raises(CloudRefused, match="does not show our account"):
        await cyborg.attach(device_id, "vm-4")
    assert openstack.requests() == []


async def test_an_expired_token_is_renewed(cyborg: CyborgDriver, openstack: Cloud) -> None:
    await cyborg.discover()
    logins = openstack.stand_ins.logins
    openstack.stand_ins.expire_tokens()
    await cyborg.attach(unit(openstack, 0), "node1")
    assert openstack.stand_ins.logins > logins


async def test_an_account_without_the_role_of_a_service_is_refused(openstack: Cloud, cyborg: CyborgDriver) -> None:
    table = settings(openstack)
    table["service-auth"] = table["auth"] | {"username": "guest", "password": "guest"}
    driver = CyborgDriver.from_settings(table)
    with pytest.raises(CloudRefused, match=r"answers 40[13]"):
        await driver.attach(unit(openstack, 0), "node1")


async def test_a_wrong_password_is_refused(openstack: Cloud) -> None:
    table = settings(openstack)
    table["auth"]["password"] = "wrong"
    with pytest.raises(CloudRefused, match="does not take our account"):
        await CyborgDriver.from_settings(table).discover()


REFUSALS: list[tuple[str, int, type[BackendError], bool]] = [
    ("POST", 403, CloudRefused, False),
    ("PATCH", 409, Conflict, False),
    ("PATCH", 500, CloudUnavailable, True),
    ("POST", 503, CloudUnavailable, True),
]


@pytest.mark.parametrize(("method", "status", "error", "is_retryable"), REFUSALS)
async def test_what_cyborg_refuses_leaves_nothing(
    cyborg: CyborgDriver, openstack: Cloud, method: str, status: int, error: type[BackendError], is_retryable: bool
) -> None:
    device_id = unit(openstack, 0)
    openstack.stand_ins.faults = [Fault(method, "/accelerator_requests", status=status)]
    with pytest.raises(error, match=f"answers {status}: as the test wants it") as caught:
        await cyborg.attach(device_id, "node1")
    assert caught.value.retryable is is_retryable
    openstack.stand_ins.faults.clear()
    if is_retryable:
        await cyborg.attach(device_id, "node1")
        assert [request["state"] for request in openstack.requests()] == ["Bound"]
    else:
        assert openstack.requests() == []
        assert openstack.used() == 0


@pytest.mark.parametrize("method", ["POST", "PATCH"])
async def test_an_answer_that_is_lost_is_not_done_twice(cyborg: CyborgDriver, openstack: Cloud, method: str) -> None:
    device_id = unit(openstack, 0)
    openstack.stand_ins.faults = [Fault(method, "/accelerator_requests", lost=True, times=1)]
    try:
        await cyborg.attach(device_id, "node1")
    except CloudUnavailable:
        await cyborg.attach(device_id, "node1")
    assert [request["state"] for request in openstack.requests()] == ["Bound"]
    assert openstack.used() == 1


async def test_a_bind_that_fails_later_is_taken_back(cyborg: CyborgDriver, openstack: Cloud) -> None:
    """All attach handles are in use, of which Placement does not know: Cyborg notices while it binds."""
    deployable = openstack.cyborg("GET", "/deployables")["deployables"][0]
    name = "strangers"
    openstack.cyborg("POST", "/device_profiles", [{"name": name, "groups": [{"resources:FPGA": "16"}]}])
    arqs = openstack.cyborg("POST", "/accelerator_requests", {"device_profile_name": name})["arqs"]
    values = {"hostname": HOST, "device_rp_uuid": deployable["rp_uuid"], "instance_uuid": SERVER}
    patch = [{"path": f"/{key}", "op": "add", "value": value} for key, value in values.items()]
    try:
        openstack.cyborg("PATCH", "/accelerator_requests", {arq["uuid"]: patch for arq in arqs})
        with pytest.raises(BindFailed, match="BindFailed") as caught:
            await cyborg.attach(f"{deployable['uuid']}.0", "node1")
        assert caught.value.retryable
        assert {request["device_profile_name"] for request in openstack.requests()} == {name}
        assert openstack.used() == 0
    finally:
        uuids = ",".join(arq["uuid"] for arq in arqs)
        openstack.cyborg("DELETE", f"/accelerator_requests?arqs={uuids}")
        openstack.cyborg("DELETE", f"/device_profiles?value={name}")


async def test_cyborg_away_is_said_and_survived(cyborg: CyborgDriver, openstack: Cloud) -> None:
    device_id = unit(openstack, 0)
    await cyborg.attach(device_id, "node1")
    openstack.kill()
    try:
        with pytest.raises(CloudUnavailable, match="Cyborg does not answer") as caught:
            await cyborg.detach(device_id)
        assert caught.value.retryable
    finally:
        openstack.start()
    await cyborg.detach(device_id)


async def test_a_slow_cyborg_is_not_awaited_for_ever(cyborg: CyborgDriver, openstack: Cloud) -> None:
    go = threading.Event()
    openstack.stand_ins.faults = [Fault("GET", "/deployables", hold=go, times=1)]
    driver = CyborgDriver.from_settings(settings(openstack, **{"request-timeout": 0.3}))
    with pytest.raises(CloudUnavailable, match="does not answer"):
        await driver.discover()
    go.set()


async def test_a_cancelled_attach_is_over_before_it_is_undone(cyborg: CyborgDriver, openstack: Cloud) -> None:
    device_id, go = unit(openstack, 0), threading.Event()
    openstack.stand_ins.faults = [Fault("PATCH", "/accelerator_requests", hold=go, times=1)]
    attaching = asyncio.ensure_future(cyborg.attach(device_id, "node1"))
    while openstack.stand_ins.faults[0].times:  # noqa: ASYNC110  # no event
        await asyncio.sleep(0.01)
    attaching.cancel()
    detaching = asyncio.ensure_future(cyborg.detach(device_id))
    await asyncio.sleep(0.05)
    assert not attaching.done()
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await attaching
    await detaching
    assert_nothing_left(openstack)


async def test_others_shares_are_not_taken(cyborg: CyborgDriver, openstack: Cloud, image: Path) -> None:
    """Nova has given all but one accelerator to somebody: it is neither attached twice nor programmed."""
    provider = openstack.cyborg("GET", "/deployables")["deployables"][0]["rp_uuid"]
    other = str(uuid4())
    body: dict[str, Any] = {
        "allocations": {provider: {"resources": {"FPGA": 15}}},
        "project_id": "p",
        "user_id": "u",
        "consumer_generation": None,
        "consumer_type": "INSTANCE",
    }
    openstack.placement("PUT", f"/allocations/{other}", body)
    try:
        await cyborg.attach(unit(openstack, 0), "node1")
        with pytest.raises(InsufficientResource, match="does not give 1 of FPGA"):
            await cyborg.attach(unit(openstack, 1), "node1")
        openstack.placement("DELETE", f"/allocations/{other}")
        openstack.placement(
            "PUT", f"/allocations/{other}", body | {"allocations": {provider: {"resources": {"FPGA": 1}}}}
        )
        with pytest.raises(Conflict, match="other machines hold"):
            await cyborg.program(unit(openstack, 0), image)
    finally:
        openstack.placement("DELETE", f"/allocations/{other}")


@pytest.fixture
def image(tmp_path: Path) -> Path:
    path = tmp_path / "image.bit"
    path.write_bytes(BITS)
    return path


def programs(cloud: Cloud) -> list[str]:
    path = cloud.folder / "programs"
    return path.read_text().split() if path.exists() else []


async def test_what_is_programmed_has_the_bits_that_were_checked(
    cyborg: CyborgDriver, openstack: Cloud, image: Path
) -> None:
    """Somebody else's image of the same hash, and one of ours that was not finished, are not used."""
    sha256, sha512 = hashlib.sha256(BITS).hexdigest(), hashlib.sha512(BITS).hexdigest()
    lie = {"status": "active", "os_hash_algo": "sha512", "os_hash_value": sha512, "owner": "somebody"}
    images = openstack.stand_ins.images
    images.clear()
    foreign, unfinished = str(uuid4()), str(uuid4())
    owner = "0" * 31 + "a"
    images[foreign] = ({"id": foreign, "name": "x", **lie}, b"evil")
    images[unfinished] = ({"id": unfinished, "name": f"kube-acc-{sha256}", "status": "queued", "owner": owner}, b"")
    before = len(programs(openstack))
    for _ in range(2):
        await cyborg.program(unit(openstack, 0), image)
    assert programs(openstack)[before:] == [sha256, sha256]
    assert unfinished not in images
    assert len(images) == 2  # the foreign one, and one upload for both
    assert openstack.used() == 0
    images.clear()


async def test_a_device_is_nobodys_while_it_is_programmed(cyborg: CyborgDriver, openstack: Cloud, image: Path) -> None:
    slow = openstack.folder / "slow-program"
    slow.touch()
    try:
        programming = asyncio.ensure_future(cyborg.program(unit(openstack, 0), image))
        while await asyncio.to_thread(openstack.used) < 16:  # noqa: ASYNC110  # no event
            await asyncio.sleep(0.02)
        other = CyborgDriver.from_settings(settings(openstack))  # as another leader, which knows no lock of ours
        with pytest.raises(InsufficientResource):
            await other.attach(unit(openstack, 1), "node1")
    finally:
        slow.unlink()
    await programming
    assert openstack.used() == 0


async def test_a_programming_of_unknown_end_keeps_the_device_until_the_next(
    cyborg: CyborgDriver, openstack: Cloud, image: Path
) -> None:
    openstack.stand_ins.faults = [Fault("PATCH", "/program", lost=True, times=1)]
    with pytest.raises(CloudUnavailable):
        await cyborg.program(unit(openstack, 0), image)
    assert openstack.used() == 16
    await cyborg.program(unit(openstack, 0), image)
    assert openstack.used() == 0
    openstack.stand_ins.faults = [Fault("PATCH", "/program", lost=True, times=1)]
    with pytest.raises(CloudUnavailable):
        await cyborg.program(unit(openstack, 0), image)
    await cyborg.detach(unit(openstack, 0))
    assert openstack.used() == 0


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"auth": {"auth-url": "http://x"}, "colour": 1}, "colour: there is no such key"),
        ({"auth-type": "none-such"}, "not complete"),
        ({"auth": {"password-file": "/none"}}, "auth.password-file: /none cannot be read"),
        ({"endpoints": {"identity": "http://x"}}, "identity: not one of"),
    ],
)
async def test_bad_settings_are_named(table: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        CyborgDriver.from_settings(table)
