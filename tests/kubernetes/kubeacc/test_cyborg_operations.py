"""Operations of the controllers on devices of the real Cyborg: their conditions, and that nothing is left behind."""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from tools.kube.cluster import Cluster

from ai.backend.common.device_operations import OperationPhase as P
from ai.backend.kubeacc.controllers.driver_runner import accelerator_name
from ai.backend.kubeacc.controllers.manager import ControllerManager
from ai.backend.kubeacc.crd.objects import ACCELERATORS
from ai.backend.kubeacc.crd.vocabulary import AttachState, RollbackState
from ai.backend.kubeacc.drivers.artifact_settings import ArtifactSettings
from ai.backend.kubeacc.drivers.artifact_store import ArtifactStore
from ai.backend.kubeacc.drivers.cyborg.driver import CyborgDriver
from ai.backend.node.kube_api.client import KubeApi
from tests.kubernetes.kubeacc.conftest import NODE, Bench, ScriptedNode, running
from tests.kubernetes.kubeacc.cyborg import assert_nothing_left, openstack, settings, unit
from tests.support.openstack_cloud import HOST, PROJECT, Cloud
from tests.support.openstack_standins import Fault

pytestmark = [pytest.mark.slow, pytest.mark.needs("kubernetes"), pytest.mark.needs("cyborg")]
__all__ = ["openstack"]  # a fixture
BITS = b"bits of a bitstream"
SHA256 = hashlib.sha256(BITS).hexdigest()
REQUESTS = "/accelerator_requests"


@pytest.fixture
async def cloud(
    api: KubeApi, controllers_api: KubeApi, acc_cluster: Cluster, namespace: str, openstack: Cloud, tmp_path: Path
) -> AsyncIterator[Bench]:
    """Controllers with the driver of Cyborg; after the test nothing of it may be left in the cloud."""
    for number in range(16):  # with it goes what an earlier test has loaded
        await api.delete(ACCELERATORS, name_of(openstack, number))
    driver = CyborgDriver.from_settings(settings(openstack))
    store = ArtifactStore(tmp_path / "images", ArtifactSettings(), driver.image_sources)
    manager = ControllerManager(controllers_api, drivers=[driver], fetch_image=store.fetch)
    async with running(manager.run):
        bench = Bench(api, acc_cluster, namespace, ScriptedNode(api))
        await bench.wait_until_admitted()
        async with asyncio.timeout(20):
            while await api.find(ACCELERATORS, name_of(openstack, 15)) is None:  # noqa: ASYNC110  # no event
                await asyncio.sleep(0.05)
        yield bench
    openstack.stand_ins.faults.clear()
    assert_nothing_left(openstack)


def name_of(cloud: Cloud, number: int) -> str:
    return accelerator_name("cyborg", unit(cloud, number))


async def attach(bench: Bench, name: str, device: str, **spec: Any) -> None:
    await bench.ask(name, device, "Attach", attach={"nodeName": NODE}, **spec)


async def test_a_device_is_attached_programmed_and_detached(cloud: Bench, openstack: Cloud) -> None:
    image = str(uuid4())
    openstack.stand_ins.images[image] = ({"id": image, "status": "active", "owner": PROJECT}, BITS)
    device = name_of(openstack, 0)
    await attach(cloud, "attach", device)
    assert (await cloud.wait_for_end("attach", 30)).status.phase is P.SUCCEEDED
    shown = await cloud.device(device)
    assert (shown.spec.node_name, shown.status.attach_state) == (NODE, AttachState.ATTACHED)
    artifact = {"uri": f"glance:{image}", "sha256": SHA256}
    await cloud.ask("program", device, "Program", program={"artifact": artifact})
    programmed = await cloud.wait_for_end("program", 30)
    assert programmed.status.phase is P.SUCCEEDED, programmed.status.message
    program = (await cloud.device(device)).status.program
    assert program is not None
    assert program.sha256 == SHA256
    assert (openstack.folder / "programmed").read_bytes() == BITS
    await cloud.ask("other", device, "Program", program={"artifact": artifact | {"sha256": "0" * 64}})
    rejected = await cloud.wait_for_end("other", 30)
    assert (rejected.status.phase, rejected.status.reason) == (P.FAILED, "ArtifactRejected")
    assert rejected.status.rollback is RollbackState.DONE
    await cloud.ask("detach", device, "Detach")
    assert (await cloud.wait_for_end("detach", 30)).status.phase is P.SUCCEEDED


async def test_what_cyborg_refuses_is_a_condition_with_its_reason(cloud: Bench, openstack: Cloud) -> None:
    device = name_of(openstack, 1)
    openstack.stand_ins.faults = [Fault("PATCH", REQUESTS, status=403, times=1)]
    await attach(cloud, "attach", device)
    ended = await cloud.wait_for_end("attach", 30)
    assert (ended.status.phase, ended.status.reason) == (P.FAILED, "CloudRefused")
    assert ended.status.rollback is RollbackState.DONE
    assert "Cyborg answers 403" in ended.status.message
    conditions = {condition.type: condition.status for condition in ended.status.conditions}
    assert conditions["Complete"] == "True"
    freed = await cloud.device(device)
    assert (freed.status.operation, freed.status.attached_by) == (None, None)


async def test_a_device_is_attached_to_one_node_of_the_cluster_only(cloud: Bench, openstack: Cloud) -> None:
    """The machine of somebody else gets nothing, and what is attached is not attached a second time."""
    device = name_of(openstack, 7)
    openstack.stand_ins.servers[str(uuid4())] = ("vm-of-others", HOST)
    await cloud.ask("stranger", device, "Attach", attach={"nodeName": "vm-of-others"})
    ended = await cloud.wait_for_end("stranger", 30)
    assert (ended.status.phase, ended.status.reason) == (P.FAILED, "NoSuchNode")
    await attach(cloud, "first", device)
    assert (await cloud.wait_for_end("first", 30)).status.phase is P.SUCCEEDED
    await attach(cloud, "second", device)
    refused = await cloud.wait_for_end("second", 30)
    assert (refused.status.phase, refused.status.reason) == (P.REFUSED, "AlreadyAttached")
    assert len(openstack.requests()) == 1
    await cloud.ask("detach", device, "Detach")
    assert (await cloud.wait_for_end("detach", 30)).status.phase is P.SUCCEEDED


async def test_cyborg_away_is_tried_again_until_it_is_back(cloud: Bench, openstack: Cloud) -> None:
    device = name_of(openstack, 2)
    await asyncio.to_thread(openstack.kill)
    try:
        await attach(cloud, "attach", device)
        waiting = await cloud.wait_for("attach", lambda op: op.status.phase is P.RETRYING, 30)
        assert waiting.status.reason == "CloudUnavailable"
        assert "does not answer" in waiting.status.message
        assert waiting.status.retry_at is not None
    finally:
        await asyncio.to_thread(openstack.start)
    assert (await cloud.wait_for_end("attach", 60)).status.phase is P.SUCCEEDED
    await cloud.ask("detach", device, "Detach")
    assert (await cloud.wait_for_end("detach", 30)).status.phase is P.SUCCEEDED


async def test_a_rollback_waits_for_a_cyborg_that_is_away(cloud: Bench, openstack: Cloud) -> None:
    """The answer of the bind is lost, and then every request: the rollback goes on when Cyborg is back."""
    device = name_of(openstack, 3)
    openstack.stand_ins.faults = [
        Fault("PATCH", REQUESTS, lost=True, times=1),
        Fault("GET", REQUESTS, times=2, hold=None, status=0),  # before the bind
        Fault("GET", REQUESTS, status=503),
    ]
    await attach(cloud, "attach", device, retryLimit=0)
    await cloud.wait_for("attach", lambda op: op.status.phase is P.ROLLING_BACK, 30)
    await asyncio.sleep(1.5)
    assert (await cloud.operation("attach")).status.phase is P.ROLLING_BACK
    openstack.stand_ins.faults.clear()
    ended = await cloud.wait_for_end("attach", 40)
    assert (ended.status.phase, ended.status.reason) == (P.FAILED, "CloudUnavailable")
    assert ended.status.rollback is RollbackState.DONE


@pytest.mark.parametrize("method", ["POST", "PATCH"])
async def test_an_attach_that_is_cancelled_is_taken_back(cloud: Bench, openstack: Cloud, method: str) -> None:
    device, go = name_of(openstack, 4), threading.Event()
    openstack.stand_ins.faults = [Fault(method, REQUESTS, hold=go, times=1)]
    await attach(cloud, "attach", device)
    async with asyncio.timeout(20):
        while openstack.stand_ins.faults[0].times:  # noqa: ASYNC110  # no event
            await asyncio.sleep(0.02)
    await cloud.cancel("attach")
    await cloud.wait_for("attach", lambda op: op.status.phase is P.CANCELLING)
    go.set()
    ended = await cloud.wait_for_end("attach", 30)
    assert (ended.status.phase, ended.status.rollback) == (P.CANCELLED, RollbackState.DONE)
    assert (await cloud.device(device)).status.operation is None


async def test_an_attach_that_is_cancelled_between_two_tries_is_taken_back(cloud: Bench, openstack: Cloud) -> None:
    openstack.stand_ins.faults = [Fault("POST", REQUESTS, status=500)]
    await attach(cloud, "attach", name_of(openstack, 5))
    await cloud.wait_for("attach", lambda op: op.status.phase is P.RETRYING, 30)
    await cloud.cancel("attach")
    assert (await cloud.wait_for_end("attach", 30)).status.phase is P.CANCELLED


async def test_a_programming_that_is_cancelled_leaves_the_device_to_nobody(cloud: Bench, openstack: Cloud) -> None:
    """Cyborg cannot stop it, and nothing was loaded before: the device is quarantined, and a detach frees it."""
    image = str(uuid4())
    openstack.stand_ins.images[image] = ({"id": image, "status": "active", "owner": PROJECT}, BITS)
    device, go = name_of(openstack, 6), threading.Event()
    openstack.stand_ins.faults = [Fault("PATCH", "/program", hold=go, times=1)]
    artifact = {"uri": f"glance:{image}", "sha256": SHA256}
    await cloud.ask("program", device, "Program", program={"artifact": artifact})
    async with asyncio.timeout(20):
        while openstack.stand_ins.faults[0].times:  # noqa: ASYNC110  # no event
            await asyncio.sleep(0.02)
    await cloud.cancel("program")
    go.set()
    ended = await cloud.wait_for_end("program", 30)
    assert (ended.status.phase, ended.status.rollback) == (P.FAILED, RollbackState.FAILED)
    assert "no image before" in ended.status.message
    conditions = {c.type: c.status for c in (await cloud.device(device)).status.conditions}
    assert conditions["Quarantined"] == "True"
    await cloud.ask("detach", device, "Detach")
    assert (await cloud.wait_for_end("detach", 30)).status.phase is P.SUCCEEDED
