"""Several claims share a device that its plugin can divide."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import cast

import pytest

from ai.backend.kubeacc.node_plugin.devices import name_in_cluster
from ai.backend.node.kube_api.objects import (
    AllocatedDevice,
    ClaimAllocation,
    ClaimDevices,
    ClaimStatus,
    ObjectMeta,
    ResourceClaim,
)
from tests.component.kubeacc.test_node_plugin import DRIVER, Claims, Node, short_folder

__all__ = ["short_folder"]
_SLOT = "mock_shares"


class ShareClaims:
    """The claims of the API server; ``shares`` are device and consumed capacity of each result, None: all of it."""

    def __init__(self) -> None:
        self.shares: dict[str, list[tuple[str, str | None]]] = {}
        self.uids: dict[str, str] = {}

    def allocate(self, name: str, *shares: tuple[str, str | None]) -> None:
        self.shares[name], self.uids[name] = list(shares), str(uuid.uuid4())

    async def get(self, _resource: object, name: str, _namespace: str) -> ResourceClaim:
        results = [
            AllocatedDevice(
                request="gpu",
                driver=DRIVER,
                pool="node",
                device=name_in_cluster("mock", device_id),
                share_id=f"share-{name}-{number}" if amount is not None else None,
                consumed_capacity={_SLOT: amount} if amount is not None else {},
            )
            for number, (device_id, amount) in enumerate(self.shares[name])
        ]
        status = ClaimStatus(allocation=ClaimAllocation(devices=ClaimDevices(results=results)))
        return ResourceClaim(metadata=ObjectMeta(name=name, namespace="default", uid=self.uids[name]), status=status)


@pytest.fixture
async def node(short_folder: Path) -> AsyncIterator[Node]:
    one = Node(short_folder)
    (short_folder / "mock-accelerator.toml").write_text(
        '[[devices]]\nmother_uuid = "GPU"\ncount = 2\nmodel_name = "Mock"\nmemory_size = "8g"\nsubproc_count = 64\n'
        'offers = ["shares"]\n'
    )
    one.claims = cast("Claims", ShareClaims())
    await one.start()
    yield one
    await one.stop()


async def error_of(node: Node, name: str) -> str:
    return str((await node.prepare(name))[name].error)


async def test_shares_are_given_until_the_device_is_used_up(node: Node) -> None:
    claims = cast("ShareClaims", node.claims)
    (slot,) = node.tracker.devices("mock")[0].slots
    half = str(slot.amount / 2)
    claims.allocate("a", ("GPU-0", half))
    claims.allocate("b", ("GPU-0", half))
    claims.allocate("c", ("GPU-0", str(slot.quantum)))
    claims.allocate("whole", ("GPU-0", None))
    answers = await node.prepare("a", "b")
    assert [answer.error for answer in answers.values()] == ["", ""]
    assert [answer.devices[0].share_id for answer in answers.values()] == ["share-a-0", "share-b-0"]
    assert len(node.held()["GPU-0"]) == 2
    assert "is held by default/" in await error_of(node, "c")
    assert "is held by default/" in await error_of(node, "whole")
    await node.restart()
    assert "is held by default/" in await error_of(node, "c")
    assert await node.unprepare("a") == ""
    assert await error_of(node, "c") == ""
    records = [json.loads(path.read_bytes()) for path in (node.folder / "workloads").iterdir()]
    amounts = {r["name"]: next(iter(r["shares"]["mock"]["allocation"]["slots"].values())) for r in records}
    assert set(amounts) == {"b", "c"}
    assert float(amounts["c"]["GPU-0"]) == float(slot.quantum)


async def test_one_claim_may_have_two_shares_of_a_device_and_gets_their_sum(node: Node) -> None:
    claims = cast("ShareClaims", node.claims)
    (slot,) = node.tracker.devices("mock")[0].slots
    claims.allocate("two", ("GPU-1", str(slot.quantum)), ("GPU-1", str(slot.quantum)))
    answer = (await node.prepare("two"))["two"]
    assert answer.error == ""
    assert [device.share_id for device in answer.devices] == ["share-two-0", "share-two-1"]
    (share,) = node.workloads.records[claims.uids["two"]].shares.values()
    assert share.allocation.slots[slot.slot_name] == {"GPU-1": slot.quantum * 2}


@pytest.mark.parametrize("amount", ["0", "1000", "-1", "much"])
async def test_an_amount_that_cannot_be_is_refused(node: Node, amount: str) -> None:
    cast("ShareClaims", node.claims).allocate("bad", ("GPU-0", amount))
    assert "share" in await error_of(node, "bad")
    assert node.files() == []


async def test_a_whole_device_leaves_no_share(node: Node) -> None:
    claims = cast("ShareClaims", node.claims)
    claims.allocate("whole", ("GPU-0", None))
    claims.allocate("part", ("GPU-0", "0.1"))
    assert await error_of(node, "whole") == ""
    assert "is held by default/whole" in await error_of(node, "part")
