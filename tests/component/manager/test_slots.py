"""The slots that a cluster knows, agents that differ in them, and what users hear who ask for the wrong ones."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from ai.backend.common.errors import InsufficientResource, UnsupportedResource
from ai.backend.common.ids import ResourceGroupName
from ai.backend.common.states import SessionStatus, SlotType
from ai.backend.common.wire.agent import KernelSpec
from ai.backend.common.wire.reports import AgentReport, PluginReport, SlotReport
from ai.backend.infra.rpc.memory import MemoryLink
from ai.backend.manager.agents.model import SlotTypeInfo
from ai.backend.manager.resource_groups.model import ResourceGroup
from ai.backend.manager.sessions.model import CreateSession
from tests.component.manager.conftest import SETTINGS, Cluster, start_manager
from tests.component.manager.fakes import FakeAgent

BASE = {"cpu": "8", "mem": "17179869184"}


class Machine(FakeAgent):
    """An agent whose slots have the types and displays that a test gives them."""

    types: dict[str, str]
    displays: dict[str, dict[str, Any]]

    def __init__(self, agent_id: str, *, group: str = "default", **slots: str) -> None:
        super().__init__(agent_id=agent_id, resource_group=group, slots={**BASE, **_dotted(slots)})
        self.types, self.displays = {"mem": "bytes"}, {}

    def report(self, **changes: Any) -> AgentReport:
        slots = [
            SlotReport(slot_name=n, slot_type=self.types.get(n, "count"), amount=q, display=self.displays.get(n, {}))
            for n, q in self.slots.items()
        ]
        devices = [
            {
                "device_name": n.partition(".")[0],
                "device_id": f"{n}-0",
                "hw_location": "",
                "slots": [{"slot_name": n, "slot_type": self.types.get(n, "count"), "amount": q}],
            }
            for n, q in self.slots.items()
        ]
        kinds = {n.partition(".")[0] for n in self.slots}
        plugins = [PluginReport(name=k, version="1", alloc_map={"kind": "discrete"}) for k in sorted(kinds)]
        return super().report(**{"slots": slots, "devices": devices, "plugins": plugins, **changes})


def _dotted(slots: dict[str, str]) -> dict[str, str]:
    return {name.replace("_", "."): quantity for name, quantity in slots.items()}


def request(**resources: Any) -> CreateSession:
    return CreateSession(image="python", resources=_dotted(resources), max_wait_s=5)


def known(cluster: Cluster) -> dict[str, str]:
    return {s.slot_name: s.slot_type.value for s in cluster.manager.services.resources.slot_types()}


async def test_slots_accumulate_and_outlive_their_agents_and_the_manager(cluster: Cluster, tmp_path: Path) -> None:
    first, second = Machine("a-1", cuda_device="2"), Machine("a-2", rocm_device="1")
    await cluster.join(first)
    await cluster.join(second)
    everything = {"cpu": "count", "mem": "bytes", "cuda.device": "count", "rocm.device": "count"}
    assert known(cluster) == everything
    second.slots = dict(BASE)
    await second.beat()
    await cluster.leave(first)
    assert known(cluster) == everything
    manager, database = await start_manager(tmp_path / "manager.db", MemoryLink(), SETTINGS)
    assert {s.slot_name: s.slot_type.value for s in manager.services.resources.slot_types()} == everything
    await manager.stop()
    await database.close()


async def test_a_slot_in_use_keeps_its_type_and_the_agent_is_told_of(cluster: Cluster) -> None:
    first, liar = Machine("a-1", cuda_shares="4"), Machine("a-2", cuda_shares="4000")
    liar.types["cuda.shares"] = "bytes"
    await cluster.join(first)
    await cluster.join(liar)
    assert known(cluster)["cuda.shares"] == "count"
    agent = await cluster.manager.services.agents.agent(cluster.admin, "a-2")
    assert agent.available_slots.to_json() == BASE, "its other slots are as good as any"
    reason = agent.compute_plugins["cuda"]["reason"]
    assert reason == "cuda.shares is of type bytes here, but agent a-1 uses it as count"
    sessions = cluster.manager.services.sessions
    placed = [(await sessions.create(cluster.user, request(cuda_shares="2"))).session.main.agent for _ in range(2)]
    assert placed == ["a-1", "a-1"]
    with pytest.raises(InsufficientResource):
        await sessions.create(cluster.user, request(cuda_shares="400"))


async def test_of_two_that_join_at_once_one_decides_the_type(cluster: Cluster) -> None:
    count, size = Machine("a-1", cuda_shares="4"), Machine("a-2", cuda_shares="4000")
    size.types["cuda.shares"] = "bytes"
    await asyncio.gather(cluster.join(count), cluster.join(size))
    agents = {a.id: a for a in await cluster.manager.stores.agents.agents()}
    offering = [a for a in ("a-1", "a-2") if agents[a].available_slots["cuda.shares"]]  # type: ignore[index]  # an id
    assert len(offering) == 1
    assert known(cluster)["cuda.shares"] == {"a-1": "count", "a-2": "bytes"}[offering[0]]


async def test_a_slot_that_nobody_uses_may_change_its_type(cluster: Cluster) -> None:
    agent = Machine("a-1", cuda_shares="4")
    await cluster.join(agent)
    session = (await cluster.manager.services.sessions.create(cluster.user, request(cuda_shares="1"))).session
    agent.types["cuda.shares"] = "bytes"
    await agent.beat()
    assert known(cluster)["cuda.shares"] == "count", "a live session counts in it"
    await cluster.manager.services.sessions.destroy(cluster.user, str(session.id))
    agent.epoch += 1
    await agent.beat()
    assert known(cluster)["cuda.shares"] == "bytes"


async def test_the_newest_display_wins_and_one_that_cannot_be_read_is_none(cluster: Cluster) -> None:
    def shown(name: str) -> dict[str, Any]:
        return {"slot_name": "cuda.device", "slot_type": "count", "human_readable_name": name, "number_round_length": 1}

    def name() -> str:
        told = {str(s.slot_name): s.metadata for s in cluster.manager.services.resources.slot_types()}
        return str(told["cuda.device"]["human_readable_name"])

    first, second = Machine("a-1", cuda_device="2"), Machine("a-2", cuda_device="1")
    await cluster.join(first)
    assert name() == "cuda.device", "a plugin that says nothing"
    first.displays["cuda.device"], second.displays["cuda.device"] = shown("GPU"), shown("Graphics")
    await first.beat()
    assert name() == "GPU"
    await cluster.join(second)
    assert name() == "Graphics"
    for nothing in ({}, {"human_readable_name": ["a", "list"]}):
        second.displays["cuda.device"] = nothing
        await second.beat()
        assert name() == "Graphics"


@pytest.mark.parametrize("quantity", ["0", 0, "0.0"])
async def test_nothing_of_an_unknown_slot_is_nothing(cluster: Cluster, agent: FakeAgent, quantity: Any) -> None:
    reply = await cluster.manager.services.sessions.create(cluster.user, request(cpu=1, tpu_device=quantity))
    assert reply.status == "RUNNING"
    assert "tpu.device" not in reply.session.requested_slots.to_json()


async def test_agents_with_different_plugins_serve_side_by_side(cluster: Cluster) -> None:
    for agent in (Machine("a-1", cuda_device="1"), Machine("a-2", rocm_device="1"), Machine("a-3")):
        await cluster.join(agent)
    sessions = cluster.manager.services.sessions

    async def where(**resources: Any) -> str | None:
        return (await sessions.create(cluster.user, request(**resources))).session.main.agent

    assert [await where(cuda_device=1), await where(rocm_device=1), await where(cpu=1)] == ["a-1", "a-2", "a-3"]
    with pytest.raises(InsufficientResource) as caught:
        await where(cuda_device=1, rocm_device=1)
    assert caught.value.message == (
        "No agent of default could hold this even if it were empty; "
        "the one that comes closest lacks rocm.device (1 short)."
    )


async def _group(cluster: Cluster, name: str, *, is_public: bool) -> None:
    group = ResourceGroup(
        name=ResourceGroupName(name), created_at=cluster.manager.services.identity._clock.now(), is_public=is_public
    )
    await cluster.manager.stores.resource_groups.put_resource_group(group)


@pytest.mark.parametrize("is_public", [True, False])
async def test_a_slot_of_another_resource_group_is_named_only_if_it_is_open(cluster: Cluster, is_public: bool) -> None:
    await _group(cluster, "secret", is_public=is_public)
    for agent in (Machine("a-1"), Machine("a-2", group="secret", cuda_device="1")):
        await cluster.join(agent)
    with pytest.raises(UnsupportedResource) as caught:
        await cluster.manager.services.sessions.create(
            cluster.user, CreateSession(image="python", scaling_group="default", resources={"cuda.device": 1})
        )
    error = caught.value
    assert "The resource group default has no resource slot cuda.device" in error.message
    assert error.data["slot"] == "cuda.device"
    assert ("secret" in error.message, error.data["resource_groups"]) == (is_public, ["secret"] if is_public else [])
    assert "a-2" not in error.message


async def test_a_refusal_of_an_agent_reaches_the_user_with_slot_and_agent(cluster: Cluster) -> None:
    """The agent has lost its plugin, and the manager does not know yet."""
    agent = Machine("a-1", cuda_device="1")

    def refuse(spec: KernelSpec) -> UnsupportedResource:
        data = {"slot": "cuda.device", "agent": "a-1"}
        return UnsupportedResource("the agent a-1 has no resource slot cuda.device", data=data)

    agent.refuse = refuse
    await cluster.join(agent)
    session = (await cluster.manager.services.sessions.create(cluster.user, request(cuda_device=1))).session
    assert session.status is SessionStatus.ERROR
    expected = {
        "code": "unsupported-resource",
        "message": "the agent a-1 has no resource slot cuda.device",
        "agent": "a-1",
        "data": {"slot": "cuda.device", "agent": "a-1"},
    }
    for told in (session, session.main):
        assert told.status_info == expected["message"]
        assert told.status_data["error"] == expected


def test_metadata_is_complete_without_a_display() -> None:
    mem = SlotTypeInfo(slot_name="mem", slot_type=SlotType.BYTES)  # type: ignore[arg-type]  # a name
    assert mem.metadata == {
        "slot_name": "mem",
        "slot_type": "bytes",
        "description": "",
        "human_readable_name": "mem",
        "display_unit": "GiB",
        "number_format": {"binary": True, "round_length": 0},
        "display_icon": "",
    }
