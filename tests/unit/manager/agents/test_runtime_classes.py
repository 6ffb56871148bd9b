"""Matching of agents and runtime classes: overheads and refusals."""

from __future__ import annotations

import random
from typing import Any
from uuid import UUID

import pytest

from ai.backend.common.errors import BackendError, InvalidInput, UnsupportedResource
from ai.backend.common.ids import FolderId
from ai.backend.common.slots import ResourceSlot
from ai.backend.common.states import ClusterMode
from ai.backend.common.structs import replace
from ai.backend.common.wire.reports import OverlayReport, RuntimeClassReport
from ai.backend.core.scheduling.decide import decide
from ai.backend.core.scheduling.policy import Policy
from ai.backend.manager.agents.capabilities import (
    NETWORKS,
    DeviceReader,
    agents_with_class,
    agents_with_networks,
    features_of,
    needs_of,
)
from ai.backend.manager.agents.model import Agent
from ai.backend.manager.folders.model import FolderMount
from ai.backend.manager.scheduling.snapshot import build_snapshot
from tests.contract.store.builders import NOW, make_agent, make_session

MIB = 1024 * 1024


def agent(name: str, *classes: RuntimeClassReport, **changes: Any) -> Agent:
    sliced = {"slot_name": "cuda.shares", "slot_type": "count", "amount": "1", "quantum": "0.1"}
    devices = tuple(
        {"device_name": "cuda", "device_id": f"gpu{i}", "hw_location": "", "slots": [sliced]} for i in range(2)
    )
    slots = ResourceSlot.parse({"cpu": "8", "mem": "16g", "cuda.shares": "2"})
    return make_agent(id=name, runtime_classes=classes, devices=devices, available_slots=slots, **changes)


def vm(**changes: Any) -> RuntimeClassReport:
    overhead = {"mem": str(150 * MIB)}
    return RuntimeClassReport(name="kata", kind="vm", overhead=overhead, whole_devices=True, max_devices=1, **changes)


def slots(**amounts: str) -> ResourceSlot:
    return ResourceSlot.parse({name.replace("_", "."): amount for name, amount in amounts.items()})


def test_the_largest_overhead_counts() -> None:
    expensive = RuntimeClassReport(name="kata", overhead={"mem": str(200 * MIB), "cpu": "0.5"})
    accepting, overhead = agents_with_class(
        [agent("a", vm()), agent("b", expensive), agent("c")], "kata", [slots(cpu="1")], "default", DeviceReader()
    )
    assert [a.id for a in accepting] == ["a", "b"]
    assert overhead == slots(mem="200m", cpu="0.5")


@pytest.mark.parametrize(
    ("requested", "reason"),
    [
        ({"cuda_shares": "0.5"}, "whole devices only, and 0.5 of cuda.shares is a part of one"),
        ({"cuda_shares": "1.5"}, "whole devices only"),
        ({"cuda_shares": "2"}, "1 device at most"),
        ({"cuda_shares": "1", "tpu_device": "1"}, "1 device at most"),
    ],
)
def test_a_machine_takes_one_whole_device(requested: dict[str, str], reason: str) -> None:
    with pytest.raises(InvalidInput, match=reason):
        agents_with_class([agent("a", vm())], "kata", [slots(cpu="1", **requested)], "default", DeviceReader())


def test_a_class_elsewhere_may_take_more() -> None:
    free = RuntimeClassReport(name="kata")
    accepting, overhead = agents_with_class(
        [agent("a", vm()), agent("b", free)], "kata", [slots(cuda_shares="2")], "default", DeviceReader()
    )
    assert ([a.id for a in accepting], overhead) == (["b"], ResourceSlot())
    assert (
        len(
            agents_with_class(
                [agent("a", vm())], "kata", [slots(cuda_shares="1"), slots(cpu="1")], "g", DeviceReader()
            )[0]
        )
        == 1
    )


@pytest.mark.parametrize(
    ("class_", "needs", "reason"),
    [
        ({"folders": False}, {"has_folders": True}, "mounts no virtual folders"),
        ({"host_network": False}, {"uses_host_network": True}, "network of their node"),
    ],
)
def test_what_a_machine_cannot_share_is_refused_before_a_session_is_accepted(
    class_: dict[str, bool], needs: dict[str, bool], reason: str
) -> None:
    machine, container = agent("a", vm(**class_)), agent("b", RuntimeClassReport(name="kata"))
    with pytest.raises(InvalidInput, match=reason):
        agents_with_class([machine], "kata", [slots(cpu="1")], "default", DeviceReader(), **needs)
    accepting, _ = agents_with_class([machine, container], "kata", [slots(cpu="1")], "default", DeviceReader(), **needs)
    assert [a.id for a in accepting] == ["b"]
    accepting, _ = agents_with_class([machine], "kata", [slots(cpu="1")], "default", DeviceReader())
    assert [a.id for a in accepting] == ["a"]


def test_a_session_with_folders_is_planned_only_where_its_class_mounts_them() -> None:
    machine, container = agent("a", vm(folders=False)), agent("b", RuntimeClassReport(name="kata"))
    needs = needs_of(1, ClusterMode.SINGLE_NODE, "kata", has_folders=True)
    assert not needs <= features_of(machine)
    assert needs <= features_of(container)
    assert needs_of(1, ClusterMode.SINGLE_NODE, "kata") <= features_of(machine)
    folder_id = FolderId(UUID(int=1))
    mount = FolderMount(folder_id=folder_id, name="d", source="/v/d", target="/home/work/d", read_only=False)
    session = make_session(
        starts_at=None, dependencies=(), designated_agents=(), runtime_class="kata", vfolder_mounts=(mount,)
    )
    session = replace(session, kernels=tuple(replace(k, requested_slots=slots(cpu="1")) for k in session.kernels))
    for agents, hosts in ([machine, container], {"b"}), ([machine], set[str]()):
        snapshot = build_snapshot("default", agents, [], [session], {}, {}, DeviceReader())
        plan = decide(snapshot, Policy(), now=NOW, rng=random.Random(1))
        assert {k.agent_id for p in plan.placements for k in p.kernels} == hosts


def test_the_refusal_of_an_unknown_class_lists_the_available_ones() -> None:
    with pytest.raises(UnsupportedResource, match="'gvisor'; there are kata, runc") as refused:
        agents_with_class(
            [agent("a", vm()), agent("b", RuntimeClassReport(name="runc"))], "gvisor", [], "default", DeviceReader()
        )
    assert refused.value.data["runtimeClass"] == "unknown"


def test_networks_are_asked_for_by_clusters_of_one_node() -> None:
    assert needs_of(2, ClusterMode.SINGLE_NODE, "") == {NETWORKS}
    assert needs_of(1, ClusterMode.MULTI_NODE, "") == needs_of(1, ClusterMode.SINGLE_NODE, "") == frozenset()
    without = agent("a", enforcement={NETWORKS: "none"})
    assert NETWORKS not in features_of(without)
    assert agents_with_networks([without, agent("b")], "default", frozenset({NETWORKS})) == [agent("b")]
    with pytest.raises(BackendError, match=r"private network.*network policies"):
        agents_with_networks([without], "default", frozenset({NETWORKS}))


def test_reasons_of_agents_are_shortened_for_users() -> None:
    talkative = [agent(f"agent-{i}", overlay=OverlayReport(why_not="x" * 100_000)) for i in range(50)]
    with pytest.raises(BackendError, match=r"\(and 47 more\)") as refused:
        agents_with_networks(talkative, "default", needs_of(2, ClusterMode.MULTI_NODE, ""))
    assert refused.value.data["agents"] == {f"agent-{i}": "x" * 200 for i in range(3)}
    assert len(refused.value.message) < 1_000


@pytest.mark.parametrize(("runtime_class", "agent_id"), [("kata", "b"), ("runc", "a"), ("gvisor", None)])
def test_the_scheduler_goes_where_the_class_is(runtime_class: str, agent_id: str | None) -> None:
    agents = [agent(n, RuntimeClassReport(name=c)) for n, c in (("a", "runc"), ("b", "kata"))]
    session = make_session(starts_at=None, dependencies=(), designated_agents=(), runtime_class=runtime_class)
    session = replace(session, kernels=tuple(replace(k, requested_slots=slots(cpu="1")) for k in session.kernels))
    plan = decide(
        build_snapshot("default", agents, [], [session], {}, {}, DeviceReader()),
        Policy(),
        now=NOW,
        rng=random.Random(1),
    )
    if agent_id is None:
        assert [skip.reason for skip in plan.skips] == ["no-matching-agent"]
        assert "no agent has runtime class gvisor" in plan.skips[0].message
    else:
        assert {k.agent_id for p in plan.placements for k in p.kernels} == {agent_id}
