"""Sessions have exactly the devices of their plan, by the driver of kube-acc on a real kubelet; or as many as planned,
where a device plugin chooses."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from tools.kube.cluster import NODE_NAME

from ai.backend.common.errors import CreationDeferred
from ai.backend.common.ids import KernelId, SessionId
from ai.backend.kubeacc.crd.vocabulary import GROUP
from ai.backend.plugin.accelerator import DeviceMapping, WorkloadConfig
from ai.backend.plugin.runtime import WorkloadKey, WorkloadSpec
from ai.backend.plugin.testing.runtime.suite import Talk
from tests.kubernetes.kubeacc.node_plugin import (
    DEVICE_CLASS,
    IS_OLD,
    NodePlugin,
    claiming_pod,
    device_class,
    exact_claim,
    running_node_plugin,
)
from tests.kubernetes.runtime.sites import NAMESPACE, PYTHON_IMAGE, OpenRuntime, Site

pytestmark = pytest.mark.needs("kubernetes")
RESOURCE = "backend.ai/mock"
SHOW = "import os; print(os.environ.get('MOCK_VISIBLE_DEVICES'))"


@pytest.fixture
async def opened(tmp_path: Path, session_site: Site, request: pytest.FixtureRequest) -> AsyncIterator[OpenRuntime]:
    if "driver" in request.fixturenames:  # it gives back what sessions have, so it ends after them
        request.getfixturevalue("driver")
    classes = {GROUP: DEVICE_CLASS}
    opened = session_site.open(tmp_path / "runtime", device_classes=classes, schedule_timeout_s=4.0)
    (tmp_path / "runtime").mkdir()
    await opened.runtime.setup()
    yield opened
    for view in await opened.runtime.list_workloads():
        await opened.runtime.remove(view.key)
    await opened.runtime.shutdown()
    await opened.api.close()
    session_site.require_nothing_left()


@pytest.fixture
def driver(session_site: Site, tmp_path: Path) -> Iterator[NodePlugin]:
    session_site.cluster.apply(device_class())
    with running_node_plugin(session_site.cluster, tmp_path / "plugin") as plugin:
        plugin.wait_for_devices(5)
        yield plugin
        plugin.wait(lambda: not plugin.records(), "release of the devices", 60)


def spec_of(*names: str) -> WorkloadSpec:
    key = WorkloadKey(kernel_id=KernelId(uuid.uuid4()), attempt=1)
    devices = tuple(DeviceMapping(source="", cdi_name=name) for name in names)
    return WorkloadSpec(
        key=key, session_id=SessionId(uuid.uuid4()), image=PYTHON_IMAGE, config=WorkloadConfig(devices=devices)
    )


def exactly(*device_ids: str) -> WorkloadSpec:
    return spec_of(*(f"{GROUP}/uuid={device_id}" for device_id in device_ids))


async def started(opened: OpenRuntime, spec: WorkloadSpec) -> Talk:
    view = await opened.runtime.create(spec)
    talk = Talk(await opened.runtime.open_channel(view.key, epoch=1), 60.0)
    talk.key = view.key
    return talk


def claims(site: Site) -> list[str]:
    listed = site.cluster.request("GET", f"/apis/resource.k8s.io/v1/namespaces/{NAMESPACE}/resourceclaims")
    return [item["metadata"]["name"] for item in listed["items"]]


async def test_a_session_has_exactly_the_devices_of_its_plan(
    opened: OpenRuntime, driver: NodePlugin, session_site: Site
) -> None:
    talk = await started(opened, exactly("GPU-big-3", "GPU-big-0"))
    await talk.run(SHOW)
    assert sorted(talk.text().strip().split(",")) == ["GPU-big-0", "GPU-big-3"]
    other = await started(opened, exactly("GPU-big-1"))
    await other.run(SHOW)
    assert other.text() == "GPU-big-1\n"
    for each in (talk, other):
        await each.close()
        await opened.runtime.remove(each.key)
    await asyncio.to_thread(session_site.cluster.wait_for, lambda: not claims(session_site), "the end of the claims")


async def test_a_device_that_somebody_else_has_defers_the_plan(
    opened: OpenRuntime, driver: NodePlugin, session_site: Site
) -> None:
    cluster = session_site.cluster
    await asyncio.to_thread(cluster.apply, exact_claim("theirs", "GPU-big-1"), claiming_pod("theirs", "theirs"))
    await asyncio.to_thread(cluster.wait_for_phase, "theirs")
    with pytest.raises(CreationDeferred, match="cannot allocate"):
        await opened.runtime.create(exactly("GPU-big-1"))
    assert not session_site.pods()
    assert not claims(session_site), "a plan that did not work holds nothing"
    await asyncio.to_thread(cluster.kubectl, "delete", "pod", "theirs", "--wait=true")
    await asyncio.to_thread(cluster.kubectl, "delete", "resourceclaim", "theirs", "--wait=true")
    talk = await started(opened, exactly("GPU-big-1"))
    await talk.close()


@pytest.mark.skipif(IS_OLD, reason="its feature gate is off before 1.36")
async def test_a_session_whose_device_fails_ends_with_that_reason(opened: OpenRuntime, driver: NodePlugin) -> None:
    talk = await started(opened, exactly("GPU-big-2"))
    await talk.kind("ready")
    driver.fail("GPU-big-2", "Xid 79")
    exited = await talk.kind("exited")
    assert exited["reason"] == "device-failed"
    driver.heal()
    await talk.close()


async def test_a_device_plugin_gives_as_many_as_were_planned(
    opened: OpenRuntime, session_site: Site, tmp_path: Path
) -> None:
    with running_node_plugin(session_site.cluster, tmp_path / "plugin", by="device-plugin") as plugin:

        def offers_five() -> bool:
            node = session_site.cluster.request("GET", f"/api/v1/nodes/{NODE_NAME}")
            return bool(node["status"]["allocatable"].get(RESOURCE) == "5")

        await asyncio.to_thread(plugin.wait, offers_five, "devices at the node", 60)
        talk = await started(opened, spec_of(f"COUNTED.{RESOURCE}=any-0", f"COUNTED.{RESOURCE}=any-4"))
        await talk.run(SHOW)
        assert len(set(talk.text().strip().split(","))) == 2
        with pytest.raises(CreationDeferred, match="Insufficient"):
            await opened.runtime.create(spec_of(*(f"COUNTED.{RESOURCE}=any-{number}" for number in range(4))))
        await talk.close()
        await opened.runtime.remove(talk.key)
