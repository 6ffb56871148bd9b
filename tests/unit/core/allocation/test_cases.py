"""Every row of docs/reference/allocation-cases.md."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

import pytest

from ai.backend.common import errors
from ai.backend.common.devices import AffinityPolicy, AllocationStrategy, AllocMapSpec, ComputeDevice, DeviceSlot
from ai.backend.common.ids import DeviceId, SlotName
from ai.backend.common.states import SlotType
from ai.backend.core.allocation.alloc_map import AffinityHint
from ai.backend.core.allocation.stock_maps import build_alloc_map
from tests.unit.core.allocation.builders import alloc, device, slot

PAGE = Path(__file__).parents[4] / "docs" / "reference" / "allocation-cases.md"
DEVICE = re.compile(r"(?P<name>\w+)(?:@(?P<node>\d+))?(?P<sick>!)?=(?P<slots>\S+)")
MAP = re.compile(
    r"(?P<kind>discrete|fractional)(?: (?P<quantum>[\d.]+))? (?P<strategy>[a-z-]+)"
    r"(?P<interleaved> interleaved)?(?: near (?P<near>\d))?(?: only (?P<only>[\w ]+))?"
)
COLUMNS = ("devices", "links", "taken", "request", "map", "result", "why")


@dataclass(frozen=True)
class Row:
    line: int
    cells: Mapping[str, str]

    def __str__(self) -> str:
        return f"line-{self.line}"


def rows() -> list[Row]:
    found = []
    for number, line in enumerate(PAGE.read_text().splitlines(), 1):
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("|") and cells[0] not in {"devices", "---"}:
            found.append(Row(number, dict(zip(COLUMNS, cells, strict=True))))
    return found


def parts_of(text: str) -> dict[str, str]:
    """``a:1,b:2`` or ``a:1/b:2`` as a map; a bare number is of the slot x."""
    pairs = (part.split(":") if ":" in part else ("x", part) for part in re.split("[,/]", text))
    return {name: quantity for name, quantity in pairs}  # noqa: C416  # dict() of pairs is not typed


def holdings(text: str) -> dict[str, dict[str, str | int]]:
    """``a=1 b=shares:2`` as slot -> device -> quantity."""
    found: dict[str, dict[str, str | int]] = {}
    for word in text.split():
        name, _, amounts = word.partition("=")
        for slot_name, quantity in parts_of(amounts).items():
            found.setdefault(slot_name, {})[name] = quantity
    return found


def devices_of(text: str, links: str, quantum: str) -> list[ComputeDevice]:
    def slots(amounts: str) -> list[DeviceSlot]:
        group = "mode" if "/" in amounts else None
        return [
            slot(name, amount, quantum, group, SlotType.UNIQUE if name.endswith("-mig") else SlotType.COUNT)
            for name, amount in parts_of(amounts).items()
        ]

    joined: dict[str, dict[str, tuple[str, float | None]]] = {}
    for link in links.split():
        pair, kind, *width = link.split(":")
        a, b = pair.split("-")
        joined.setdefault(a, {})[b] = (kind, float(width[0]) if width else None)
    return [
        device(
            m["name"],
            *slots(m["slots"]),
            numa=int(m["node"]) if m["node"] else None,
            healthy=not m["sick"],
            links=joined.get(m["name"]),
        )
        for word in text.split()
        if (m := DEVICE.fullmatch(word)) is not None
    ]


def request_of(text: str, devices: list[ComputeDevice]) -> dict[SlotName, Decimal]:
    if ":" not in text:
        return {devices[0].slots[0].slot_name: Decimal(text)}
    return {SlotName(name): Decimal(quantity) for name, _, quantity in (word.partition(":") for word in text.split())}


def test_the_page_has_rows() -> None:
    assert len(rows()) > 70
    assert all(row.cells["map"].startswith(("discrete", "fractional")) for row in rows())


@pytest.mark.parametrize("row", rows(), ids=str)
def test_case(row: Row) -> None:
    cells = row.cells
    how = MAP.fullmatch(cells["map"])
    assert how is not None, cells["map"]
    devices = devices_of(cells["devices"], cells["links"], how["quantum"] or "1")
    assert len(devices) == len(cells["devices"].split())
    only_slot = devices[0].slots[0].slot_name
    policy = AffinityPolicy.INTERLEAVED if how["interleaved"] else AffinityPolicy.PREFER_SINGLE_NODE
    strategy = AllocationStrategy(how["strategy"])
    alloc_map = build_alloc_map(AllocMapSpec(kind=how["kind"], strategy=strategy, affinity_policy=policy), devices)
    alloc_map.apply(alloc({only_slot if s == "x" else s: per for s, per in holdings(cells["taken"]).items()}))
    hint = AffinityHint(numa_nodes=frozenset({int(how["near"])}) if how["near"] else frozenset())
    eligible = frozenset(map(DeviceId, how["only"].split())) if how["only"] else None
    request = request_of(cells["request"], devices)
    before = alloc_map.snapshot()
    if hasattr(errors, cells["result"]):
        with pytest.raises(getattr(errors, cells["result"])):
            alloc_map.allocate(request, hint=hint, eligible=eligible)
        assert alloc_map.snapshot() == before, "a refusal takes nothing"
    else:
        expected = {only_slot if s == "x" else s: per for s, per in holdings(cells["result"]).items()}
        assert alloc_map.allocate(request, hint=hint, eligible=eligible) == alloc(expected)
