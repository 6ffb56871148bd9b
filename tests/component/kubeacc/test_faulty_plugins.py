"""Plugins that lie, hang, refuse or die cost a claim an answer at most: nothing is leaked, nothing is given twice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from ai.backend.common.devices import DeviceHealth
from ai.backend.common.ids import DeviceId
from ai.backend.infra.retry import Backoff
from ai.backend.kubeacc.node_plugin.accelerators import AcceleratorReports
from ai.backend.kubeacc.node_plugin.facts import FactStore
from ai.backend.kubeacc.node_plugin.holders import Holders
from ai.backend.kubeacc.node_plugin.measurements import DeviceMeasurements, UsageMeter
from ai.backend.node.kube_api.client import KubeApi
from tests.component.kubeacc.test_node_plugin import ISOLATED, Node, short_folder

__all__ = ["short_folder"]


@pytest.fixture
async def node(short_folder: Path) -> AsyncIterator[Node]:
    one = Node(short_folder)
    one.settings = one.settings.model_copy(update={"plugin_timeout": 0.3})
    await one.start()
    yield one
    await one.stop()


async def fault(node: Node, call: str, behaviour: str, **more: int) -> None:
    extra = "".join(f"{key} = {value}\n" for key, value in more.items())
    node.control.write_text(f'[[faults]]\ncall = "{call}"\nbehaviour = "{behaviour}"\n{extra}')
    await node.tracker.once()


async def mend(node: Node) -> None:
    node.control.write_text("")
    await node.tracker.once()


@pytest.mark.parametrize("behaviour", ["raise", "hang", "deny", "defer", "bad-config", "wrong-type"])
async def test_a_preparation_that_fails_leaves_nothing_and_is_repeated(node: Node, behaviour: str) -> None:
    node.claims.allocate("a", "GPU-0")
    await fault(node, "pre_create", behaviour)
    answer = (await node.prepare("a"))["a"]
    assert answer.error
    assert "internal error" not in answer.error
    await mend(node)
    assert (await node.prepare("a"))["a"].error == ""
    assert await node.unprepare("a") == ""
    assert (node.files(), node.held()) == ([], {})


@pytest.mark.parametrize("behaviour", ["raise", "hang"])
async def test_a_plugin_that_does_not_release_keeps_its_device_from_others(node: Node, behaviour: str) -> None:
    node.claims.allocate("a", "GPU-0")
    node.claims.allocate("next", "GPU-0")
    assert (await node.prepare("a"))["a"].error == ""
    await fault(node, "post_terminate", behaviour)
    assert await node.unprepare("a")
    assert "is held by default/a" in (await node.prepare("next"))["next"].error
    await mend(node)
    assert await node.unprepare("a") == ""
    assert (await node.prepare("next"))["next"].error == ""


@pytest.mark.parametrize(
    "behaviour",
    ["raise", "hang", "duplicate-ids", "changed-ids", "unknown-slot", "negative", "nan", "wrong-type", "empty"],
)
async def test_a_list_that_lies_takes_no_device_from_its_holder(node: Node, behaviour: str) -> None:
    node.claims.allocate("a", "GPU-0")
    node.claims.allocate("thief", "GPU-0")
    first = (await node.prepare("a"))["a"]
    await fault(node, "list_devices", behaviour)
    assert (await node.prepare("a"))["a"] == first
    assert (await node.prepare("thief"))["thief"].error
    await mend(node)
    # Where the device was away, it must be well for a while before it counts as healthy.
    error = (await node.prepare("thief"))["thief"].error
    assert "is held by default/a" in error or "has failed" in error
    assert await node.unprepare("a") == ""
    assert (node.files(), node.held()) == ([], {})


async def test_a_plugin_that_dies_after_the_preparation_is_started_again_and_releases(short_folder: Path) -> None:
    node = Node(short_folder)
    node.settings = node.settings.model_copy(update={"compute_plugins": ISOLATED})
    await node.start()
    try:
        node.claims.allocate("a", "GPU-0")
        first = (await node.prepare("a"))["a"]
        assert first.error == ""
        node.control.write_text('[[faults]]\ncall = "post_create"\nbehaviour = "exit"\n')
        await node.tracker.once()
        await node.workloads.record_running(node.claims.uids["a"])
        async with asyncio.timeout(20):
            while node.tracker.plugin_handle("mock") is not None:  # noqa: ASYNC110  # until the death of its process is noted
                await asyncio.sleep(0.01)
        assert (await node.prepare("a"))["a"] == first
        node.control.write_text("")
        async with asyncio.timeout(20):
            while await node.unprepare("a"):
                await asyncio.sleep(0.1)
                await node.tracker.once()
        assert (node.files(), node.held()) == ([], {})
    finally:
        await node.stop()


async def test_a_device_that_vanishes_in_use_stays_unhealthy_until_it_is_given_back(node: Node) -> None:
    node.claims.allocate("a", "GPU-3")
    await node.prepare("a")
    await fault(node, "list_devices", "empty")
    devices = {device.device_id: device for device in node.tracker.devices("mock")}
    assert {key: device.health for key, device in devices.items()} == {"GPU-3": DeviceHealth.UNHEALTHY}
    assert await node.unprepare("a") == ""
    await node.tracker.once()
    assert node.tracker.devices("mock") == ()
    assert (node.files(), node.held()) == ([], {})


async def test_a_plugin_that_lies_about_what_it_can_attach_attaches_nothing(node: Node) -> None:
    api = cast("KubeApi", SimpleNamespace(delays=lambda: Backoff(1.0, 1.0)))
    holders = cast("Holders", SimpleNamespace(holders={}, foreign_offer=lambda key: ""))
    facts = FactStore(node.folder / "facts.json")
    reports = AcceleratorReports(api, node.tracker, node.workloads, holders, facts, node.settings, "node")
    await fault(node, "attachable_devices", "wrong-type")
    assert await reports._attachable("mock") == ()


@pytest.mark.parametrize("behaviour", ["raise", "hang", "negative", "nan", "wrong-type"])
async def test_a_plugin_that_lies_about_the_use_of_devices_is_asked_again(node: Node, behaviour: str) -> None:
    meter = UsageMeter(node.tracker, DeviceMeasurements(node.tracker))
    await fault(node, "gather_node_metrics", behaviour)
    await meter.once()
    assert meter.usage(("mock", DeviceId("GPU-0"))) is None
    await mend(node)
    meter = UsageMeter(node.tracker, DeviceMeasurements(node.tracker))
    await meter.once()
    usage = meter.usage(("mock", DeviceId("GPU-0")))
    assert usage is not None
    assert usage.power_watts is not None
