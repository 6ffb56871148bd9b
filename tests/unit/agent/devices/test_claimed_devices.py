"""Devices of claims on their node: bound once, kept from others, and shared by kernels where that is allowed."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from ai.backend.agent.devices.holdings import ClaimedDevices
from ai.backend.common.devices import AllocMapSpec, DeviceAllocation
from ai.backend.common.errors import InsufficientResource
from ai.backend.common.ids import DeviceId
from ai.backend.common.slots import ResourceSlot
from tests.unit.agent.devices.test_inventory import DEVICE, SHARES, Node, node

__all__ = ["node"]


def allocation(*device_ids: str, slot: Any = DEVICE) -> DeviceAllocation:
    return DeviceAllocation(slots={slot: {DeviceId(device_id): Decimal(1) for device_id in device_ids}})


def bind(
    node: Node,
    kernel: str,
    amount: int = 1,
    *,
    bound: DeviceAllocation | None = None,
    claim: str | None = "c",
    kept: dict[str, DeviceAllocation] | None = None,
    slot: Any = DEVICE,
) -> set[str]:
    claimed = (
        ClaimedDevices(claim_id=claim, slots=frozenset({slot}), bound_devices=bound) if claim is not None else None
    )
    request = ResourceSlot({slot: Decimal(amount)})
    node.inventory.bind(kernel, request, bound or DeviceAllocation(), -1, claim=claimed, devices_of_claims=kept or {})
    return set(node.inventory.holding(kernel).device_ids())


async def test_kernels_in_turn_get_the_same_device(node: Node) -> None:
    await node.refresh()
    first = bind(node, "k-1")
    node.inventory.free("k-1")
    other = "g-0" if first == {"g-1"} else "g-1"
    assert bind(node, "k-2", claim=None, kept={"c": allocation(*first)}) == {other}
    assert bind(node, "k-3", bound=allocation(*first)) == first


async def test_what_a_claim_keeps_is_not_given_to_others(node: Node) -> None:
    await node.refresh()
    kept = {"c": allocation("g-0", "g-1")}
    with pytest.raises(InsufficientResource):
        bind(node, "k-1", claim=None, kept=kept)
    with pytest.raises(InsufficientResource):
        bind(node, "k-1", claim="other", kept=kept)
    assert bind(node, "k-1", 2, claim=None) == {"g-0", "g-1"}, "nothing of it stays taken"


async def test_a_bound_claim_gets_no_other_device(node: Node) -> None:
    await node.refresh()
    assert bind(node, "k-1", claim=None, kept={"x": allocation("g-1")}) == {"g-0"}
    with pytest.raises(InsufficientResource, match="are taken"):
        bind(node, "k-2", bound=allocation("g-0"))
    node.gpu.ill = {"g-1"}
    await node.refresh()
    with pytest.raises(InsufficientResource, match="missing or have failed: g-1"):
        bind(node, "k-2", bound=allocation("g-1"))
    assert not node.inventory.holds("k-2")


@pytest.mark.parametrize("shareable", [True, False])
async def test_kernels_hold_a_claim_at_once_where_the_plugin_allows_it(node: Node, shareable: bool) -> None:
    node.gpu.alloc_map_spec = lambda self: AllocMapSpec(kind="discrete", shareable=shareable)
    await node.refresh()
    first = bind(node, "k-1")
    if not shareable:
        with pytest.raises(InsufficientResource, match="not shared"):
            bind(node, "k-2", bound=allocation(*first))
        node.inventory.free("k-1")
        assert bind(node, "k-3", 2, claim=None) == {"g-0", "g-1"}
        return
    assert bind(node, "k-2", bound=allocation(*first)) == first
    assert bind(node, "k-5") == first, "also a kernel of the session that binds it"
    node.inventory.free("k-5")
    assert node.inventory.holders("gpu", DeviceId(next(iter(first)))) == ["k-1", "k-2"]
    node.inventory.free("k-1")
    assert len(bind(node, "k-3", claim=None)) == 1
    with pytest.raises(InsufficientResource):
        bind(node, "k-4", claim=None)
    node.inventory.free("k-2")
    assert bind(node, "k-4", claim=None) == first


async def test_a_part_of_a_device_is_not_shared(node: Node) -> None:
    node.gpu.slot = SHARES
    node.gpu.alloc_map_spec = lambda self: AllocMapSpec(kind="fractional", shareable=True)
    await node.refresh()
    half = DeviceAllocation(slots={SHARES: {DeviceId("g-0"): Decimal("0.5")}})
    claimed = ClaimedDevices(claim_id="c", slots=frozenset({SHARES}), bound_devices=half)
    request = ResourceSlot({SHARES: Decimal("0.5")})
    node.inventory.bind("k-1", request, half, -1, claim=claimed)
    with pytest.raises(InsufficientResource, match="not shared"):
        node.inventory.bind("k-2", request, half, -1, claim=claimed)


async def test_an_agent_that_starts_again_counts_a_shared_claim_once(node: Node) -> None:
    node.gpu.alloc_map_spec = lambda self: AllocMapSpec(kind="discrete", shareable=True)
    await node.refresh()
    claim = ClaimedDevices(claim_id="c", slots=frozenset({DEVICE}), bound_devices=allocation("g-0"))
    for kernel in ("k-1", "k-2"):
        node.inventory.adopt(kernel, allocation("g-0"), claim)
    assert bind(node, "k-3", claim=None) == {"g-1"}
    await node.inventory.rebuild()
    for kernel in ("k-1", "k-2", "k-3"):
        node.inventory.free(kernel)
    assert bind(node, "k-4", 2, claim=None) == {"g-0", "g-1"}


async def test_a_claim_whose_own_part_does_not_fit_is_not_taken(node: Node) -> None:
    await node.refresh()
    claimed = ClaimedDevices(claim_id="c", slots=frozenset({DEVICE}), bound_devices=allocation("g-0"))
    request = ResourceSlot({DEVICE: Decimal(1), SHARES: Decimal(1)})
    with pytest.raises(Exception, match=r"gpu\.shares"):
        node.inventory.bind("k-1", request, allocation("g-0"), -1, claim=claimed)
    assert bind(node, "k-2", 2, claim=None) == {"g-0", "g-1"}
