"""A node plugin that is interrupted or refused anywhere leaves nothing behind, and gives no device twice."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from ai.backend.common.structs import replace
from ai.backend.kubeacc.node_plugin import workloads
from ai.backend.kubeacc.node_plugin.checkpoint import Checkpoint, HeldDevice, WorkloadRecord
from ai.backend.node.kube_api.errors import RequestDenied
from tests.component.kubeacc.test_node_plugin import Node, short_folder

__all__ = ["short_folder"]


@pytest.fixture
async def node(short_folder: Path) -> AsyncIterator[Node]:
    one = Node(short_folder)
    await one.start()
    yield one
    await one.stop()


class Killed(Exception):
    """Ends a call where the process would have died."""


@pytest.mark.parametrize(
    ("point", "dies_in_prepare"),
    [("kube-acc.prepare.recorded", True), ("kube-acc.prepare.prepared", True), ("kube-acc.release.undone", False)],
)
async def test_a_call_that_ends_anywhere_is_finished_by_the_next_process(
    node: Node, monkeypatch: pytest.MonkeyPatch, point: str, dies_in_prepare: bool
) -> None:
    node.claims.allocate("a", "GPU-0")
    node.claims.allocate("thief", "GPU-0")

    def die(name: str) -> None:
        if name == point:
            raise Killed(name)

    if not dies_in_prepare:
        assert (await node.prepare("a"))["a"].error == ""
    with monkeypatch.context() as patch:
        patch.setattr(workloads, "crash_point", die)
        error = (await node.prepare("a"))["a"].error if dies_in_prepare else await node.unprepare("a")
        assert "Killed" in error
        await node.restart()
    assert "is held by default/a" in (await node.prepare("thief"))["thief"].error
    if dies_in_prepare:
        assert (await node.prepare("a"))["a"].error == ""
    assert await node.unprepare("a") == ""
    assert (node.files(), node.held()) == ([], {})
    assert (await node.prepare("thief"))["thief"].error == ""


async def test_a_claim_that_may_not_be_read_says_so_and_is_prepared_when_it_may(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.claims.allocate("a", "GPU-0")

    async def refuse(*_: Any) -> None:
        raise RequestDenied('cannot get resource "resourceclaims"')

    with monkeypatch.context() as patch:
        patch.setattr(node.claims, "get", refuse)
        answer = (await node.prepare("a"))["a"]
        assert 'cannot get resource "resourceclaims"' in answer.error
        assert (list(answer.devices), node.files(), node.held()) == ([], [], {})
    prepared = (await node.prepare("a"))["a"]
    assert prepared.error == ""
    with monkeypatch.context() as patch:
        patch.setattr(node.claims, "get", refuse)
        assert (await node.prepare("a"))["a"] == prepared  # needs no answer of the API server
        assert await node.unprepare("a") == ""
    assert (node.files(), node.held()) == ([], {})


async def test_a_device_that_another_plugin_gave_is_not_given_again(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the other plugin does not run now."""
    held = HeldDevice(plugin="sysfs", device_id="pci-1", name="sysfs-pci-1", pci_address="0000:3b:00.0")
    record = WorkloadRecord(uid="other", way="dra", namespace="default", name="other", devices=(held,))
    Checkpoint(node.folder / "workloads").put(record)
    await node.restart()
    listed = node.tracker.devices

    def placed(key: str) -> Any:
        places = {"GPU-0": "0000:3B:00.0", "GPU-1": "0000:5e:00.0"}
        return tuple(replace(one, hw_location=places.get(one.device_id, one.hw_location)) for one in listed(key))

    monkeypatch.setattr(node.tracker, "devices", placed)
    node.claims.allocate("same", "GPU-0")
    node.claims.allocate("next", "GPU-1")
    answers = await node.prepare("same", "next")
    assert "is held by default/other (dra)" in answers["same"].error
    assert answers["next"].error == ""
    (given,) = node.workloads.records[node.claims.uids["next"]].devices
    assert given.pci_address == "0000:5e:00.0"
