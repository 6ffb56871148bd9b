"""The compact form of all agents."""

from __future__ import annotations

import gzip
import json
import random
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import msgspec
import pytest

from ai.backend.common.errors import Forbidden
from ai.backend.common.ids import AccessKey, AgentId, KernelId, ResourceGroupName, SessionId
from ai.backend.common.slots import ResourceSlot
from ai.backend.common.states import AgentStatus, KernelStatus
from ai.backend.common.structs import replace
from ai.backend.manager.agents.fleet import COLUMNS, FleetView, fleet_view
from ai.backend.manager.agents.graphql import devices_json
from ai.backend.manager.agents.model import Agent, KernelOccupancy
from tests.unit.manager.scheduling.memory_manager import Installation, make_agent

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def device(number: int, *, kind: str = "cuda", health: str = "healthy", amount: str = "1") -> dict[str, Any]:
    slot = {"slot_name": f"{kind}.shares", "slot_type": "count", "amount": amount}
    return {"device_name": kind, "device_id": str(number), "model_name": "H100", "health": health, "slots": [slot]}


def machine(name: str, *devices: dict[str, Any], **changes: Any) -> Agent:
    values: dict[str, Any] = {
        "id": AgentId(name),
        "status": AgentStatus.ALIVE,
        "status_changed": NOW,
        "architecture": "x86_64",
        "scaling_group": ResourceGroupName("default"),
        "available_slots": ResourceSlot.parse({"cpu": "64", "mem": "512g", "cuda.shares": str(len(devices))}),
        "occupied_slots": ResourceSlot.parse({"cpu": "6"}),
        "first_contact": NOW,
        "last_heartbeat": NOW,
        "devices": devices,
        "location": ("zone-a", "rack-7"),
    }
    return Agent(**{**values, **changes})


def holding(agent: str, number: int, **shares: str) -> KernelOccupancy:
    return KernelOccupancy(
        kernel_id=KernelId(UUID(int=number)),
        session_id=SessionId(UUID(int=number)),
        agent=AgentId(agent),
        access_key=AccessKey("AKIA"),
        status=KernelStatus.RUNNING,
        status_changed=NOW,
        attempt=1,
        slots=ResourceSlot(),
        devices={"cuda.shares": {name.lstrip("_"): amount for name, amount in shares.items()}},
    )


def row(view: FleetView, number: int) -> dict[str, Any]:
    return dict(zip(view.columns, view.agents[number], strict=True))


def test_a_row_says_what_an_agent_has_and_holds() -> None:
    cpu = {"device_name": "cpu", "device_id": "0", "slots": []}
    first = machine(
        "i-1", cpu, *(device(number, health="unhealthy" if number == 4 else "healthy") for number in range(5))
    )
    second = machine("i-0", status=AgentStatus.LOST, schedulable=False, location=(), devices=())
    second = replace(second, available_slots=ResourceSlot.parse({"cpu": "4"}))
    held = [holding("i-1", 1, _0="1", _1="0.5"), holding("i-1", 2, _1="0.2", _2="0.01")]
    view = fleet_view([first, second], held)
    assert view.columns == list(COLUMNS)
    lost, alive = row(view, 0), row(view, 1)
    assert (lost["id"], view.statuses[lost["status"]], lost["schedulable"], lost["devices"]) == ("i-0", "LOST", 0, "")
    assert view.locations[lost["location"]] == []
    assert lost["available"] == [4, None, None]
    assert (alive["devices"], alive["kernels"]) == ("f710x", 2)
    assert view.hardware[alive["hardware"]] == "5 cuda:H100"
    assert view.slots == ["cpu", "cuda.shares", "mem"]
    assert (alive["available"], alive["occupied"]) == ([64, 6, 512 * 2**30], [6, 0, 0])


def test_what_is_held_of_partitions_shows_at_their_device() -> None:
    cut = {**device(0), "partition_ids": ["0/a", "0/b"]}
    held = [holding("i-1", 1, **{"0/a": "0.25"}), holding("i-1", 2, **{"0/b": "0.25"})]
    assert row(fleet_view([machine("i-1", cut, device(1))], held), 0)["devices"] == "50"
    shown = json.loads(devices_json([cut, device(1)], held))
    assert [each["allocated"] for each in shown] == [{"cuda.shares": "0.5"}, {}]


@pytest.mark.parametrize("broken", [{}, {"slots": [{}]}, {"slots": [{"slot_name": "x", "amount": "much"}]}])
def test_a_device_that_cannot_be_read_is_shown_as_free(broken: dict[str, Any]) -> None:
    assert row(fleet_view([machine("i-1", {"device_name": "odd", **broken})], []), 0)["devices"] == "0"


def test_a_thousand_agents_are_small() -> None:
    dice = random.Random(1)
    agents = [
        machine(
            f"i-gpu-{number:04}",
            *(device(each, health="unhealthy" if dice.random() < 0.01 else "healthy") for each in range(8)),
            location=(f"zone-{number % 4}", f"rack-{number % 40}"),
            occupied_slots=ResourceSlot.parse(
                {
                    "cpu": str(dice.randrange(64)),
                    "mem": f"{dice.randrange(512)}g",
                    "cuda.shares": str(dice.randrange(9)),
                }
            ),
        )
        for number in range(1_000)
    ]
    held = [
        holding(agent.id, number * 8 + each, **{f"_{each}": str(dice.choice(["0.1", "0.5", "1"]))})
        for number, agent in enumerate(agents)
        for each in range(8)
        if dice.random() < 0.7
    ]
    body = msgspec.json.encode(fleet_view(agents, held))
    assert len(gzip.compress(body, 6)) < 60_000
    assert len(gzip.compress(body, 6)) < 25_000, "far below the promise"


async def test_the_fleet_is_for_those_who_see_agents_and_keeps_its_tag() -> None:
    world = await Installation.make(make_agent("i-1", cpu=4, mem=512))
    fleet = world.manager.services.fleet
    with pytest.raises(Forbidden):
        await fleet.fleet(world.callers["user"])
    first = await fleet.fleet(world.callers["admin"])
    world.clock.seconds += 3
    assert (await fleet.fleet(world.callers["admin"])).etag == first.etag
    await world.create("user", "my-own", {"cpu": 1, "mem": "64m"})
    await world.schedule()
    world.clock.seconds += 3
    changed = await fleet.fleet(world.callers["admin"])
    assert changed.etag != first.etag
    assert msgspec.json.decode(changed.body, type=FleetView).agents[0][7][0] == 1
