"""Sessions on several nodes: devices near the network first, and agents of one fabric first."""

from __future__ import annotations

import random

import pytest

from ai.backend.common.devices import VariantProperty
from ai.backend.common.structs import replace
from ai.backend.core.scheduling.decide import decide
from ai.backend.core.scheduling.plan import Plan
from ai.backend.core.scheduling.policy import Policy
from ai.backend.core.scheduling.snapshot import AgentView, PendingSession, Snapshot
from tests.unit.core.scheduling.builders import NOW, agent, holding, session, slots

ONE = slots(cpu=1, cuda_device=1)


def stating(view: AgentView, *features: str | None) -> AgentView:
    """The agent whose accelerators state a property each, such as ``network::distance::numa``."""
    plugins = []
    for plugin in view.plugins:
        if plugin.name == "cuda":
            devices = tuple(
                replace(device, variant_properties=(VariantProperty.parse(text),) if text else ())
                for device, text in zip(plugin.devices, features, strict=True)
            )
            plugin = replace(plugin, devices=devices)
        plugins.append(plugin)
    return replace(view, plugins=tuple(plugins))


def plan(agents: list[AgentView], *pending: PendingSession, policy: Policy | None = None) -> Plan:
    snapshot = Snapshot(resource_group="g", agents=tuple(agents), pending=pending)
    return decide(snapshot, policy or Policy(placement="concentrated"), now=NOW, rng=random.Random(1))


def devices_of(made: Plan) -> list[set[str]]:
    return [set(kernel.devices.slots["cuda.device"]) for placed in made.placements for kernel in placed.kernels]  # type: ignore[index]


def agents_of(made: Plan) -> list[str]:
    return [kernel.agent_id for placed in made.placements for kernel in placed.kernels]


NEAR = ("network::distance::system", None, "network::distance::pcie-switch", "network::distance::pcie-root")


def test_kernels_on_several_nodes_get_devices_near_the_network() -> None:
    agents = [stating(agent(f"i-{n}", cpu=4, cuda=4), *NEAR) for n in range(2)]
    together, apart = session("together", ONE, ONE), session("apart", *[slots(cpu=3, cuda_device=1)] * 2, multi=True)
    assert devices_of(plan(agents, apart)) == [{"2"}, {"2"}]
    assert devices_of(plan(agents, together)) == [{"0"}, {"1"}]
    assert devices_of(plan(agents, session("two", *[slots(cpu=3, cuda_device=2)] * 2, multi=True))) == [{"2", "3"}] * 2


def test_a_kernel_that_finds_nothing_near_takes_what_there_is() -> None:
    agents = [stating(agent(f"i-{n}", cpu=4, cuda=4), *NEAR) for n in range(2)]
    everything = session("all", *[slots(cpu=3, cuda_device=4)] * 2, multi=True)
    assert devices_of(plan(agents, everything)) == [{"0", "1", "2", "3"}] * 2


def test_a_device_request_comes_before_nearness() -> None:
    agents = [stating(agent(f"i-{n}", cpu=4, cuda=4), *NEAR) for n in range(2)]
    far = session("far", *[slots(cpu=3, cuda_device=1)] * 2, multi=True, device_requests=('id in ["0", "3"]',))
    assert devices_of(plan(agents, far)) == [{"3"}, {"3"}]
    same = session("same", *[slots(cpu=3, cuda_device=1)] * 2, multi=True, device_requests=("distinct(id)",))
    assert devices_of(plan(agents, same)) == [{"2"}, {"2"}]


@pytest.mark.parametrize("placement", ["concentrated", "dispersed", "least-fragmentation", "topology"])
def test_kernels_of_a_session_share_a_fabric_under_any_policy(placement: str) -> None:
    domains = ["a", "b", "a", "b", "b", "a"]
    agents = [stating(agent(f"i-{n}", cuda=1), f"fabric::domain::{d}") for n, d in enumerate(domains)]
    agents[0] = holding(agents[0], cuda_device=1)
    made = plan(agents, session("s", ONE, ONE, ONE, multi=True), policy=Policy(placement=placement))
    assert sorted(agents_of(made)) == ["i-1", "i-3", "i-4"], "the only domain with three free"


def test_a_session_that_no_fabric_holds_starts_anyway() -> None:
    agents = [stating(agent(f"i-{n}", cuda=1), f"fabric::domain::{d}") for n, d in enumerate("aabb")]
    assert len(agents_of(plan(agents, session("s", ONE, ONE, ONE, multi=True)))) == 3


def test_sessions_without_accelerators_and_spread_ones_are_placed_as_before() -> None:
    agents = [stating(agent(f"i-{n}", cpu=2, cuda=1), f"fabric::domain::{d}") for n, d in enumerate("ab" * 2)]
    cores = session("c", slots(cpu=2), slots(cpu=2), multi=True)
    assert agents_of(plan(agents, cores)) == ["i-0", "i-1"]
    spread = plan(agents, session("s", ONE, ONE, multi=True), policy=Policy(placement="topology-spread"))
    assert len({int(name[-1]) % 2 for name in agents_of(spread)}) == 2
