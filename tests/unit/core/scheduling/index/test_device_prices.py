"""Scarce devices stay for those that name them, where others find room elsewhere."""

from __future__ import annotations

import random

import pytest

from ai.backend.common.structs import replace
from ai.backend.core.scheduling.decide import IncrementalScheduler, decide
from ai.backend.core.scheduling.policy import Policy
from ai.backend.core.scheduling.snapshot import AgentView, PendingSession, Snapshot
from tests.unit.core.scheduling.builders import NOW, agent, holding, session, slots

POLICY = Policy(placement="least-fragmentation")
ONE = slots(cpu=1, cuda_device=1)


def of_model(view: AgentView, model: str) -> AgentView:
    """The agent with accelerators of a model."""
    plugins = tuple(
        replace(plugin, devices=tuple(replace(device, model_name=model) for device in plugin.devices))
        if plugin.name == "cuda"
        else plugin
        for plugin in view.plugins
    )
    return replace(view, plugins=plugins)


def fleet(cores: int = 64) -> list[AgentView]:
    """Returns a machine of each model; the scarce one comes first, so it is taken among equals."""
    return [of_model(agent("i-1", cpu=cores, cuda=4), "T4"), of_model(agent("i-2", cpu=cores, cuda=4), "G2")]


def place(agents: list[AgentView], *pending: PendingSession, **more: object) -> dict[str, str]:
    snapshot = Snapshot(resource_group="g", agents=tuple(agents), pending=pending)
    snapshot = replace(snapshot, **more)  # type: ignore[arg-type]
    plan = decide(IncrementalScheduler(snapshot), POLICY, now=NOW, rng=random.Random(1))
    names = {who.session_id: who.name for who in pending}
    return {names[placed.session_id]: placed.kernels[0].agent_id for placed in plan.placements}


T4 = ('model in ["T4"]',)
MIX = {"workload": ((ONE, 8),), "device_workload": ((T4, ONE, 4),)}


def test_what_nobody_names_goes_first_come_first_served() -> None:
    assert place(fleet(), session("any", ONE), workload=((ONE, 8),)) == {"any": "i-1"}


def test_a_scarce_model_is_left_to_those_who_name_it() -> None:
    assert place(fleet(), session("any", ONE), **MIX) == {"any": "i-2"}
    assert place(fleet(), session("t4", ONE, device_requests=T4), **MIX) == {"t4": "i-1"}


def test_nobody_waits_for_the_sake_of_a_model() -> None:
    full = [fleet()[0], holding(fleet()[1], cuda_device=4)]
    assert place(full, session("any", ONE), **MIX) == {"any": "i-1"}


def test_without_a_workload_those_who_wait_and_who_hold_tell_what_is_named() -> None:
    waiting = [session(f"t4-{n}", ONE, device_requests=T4) for n in range(3)]
    assert place(fleet(), session("any", ONE, age_s=9), *waiting)["any"] == "i-2"
    agents = fleet()
    held = holding(agents[0], cuda_device=1).held[0]
    agents[0] = replace(agents[0], held=(replace(held, device_requests=T4),))
    assert place(agents, session("any", ONE)) == {"any": "i-2"}


def test_alternatives_count_for_what_either_serves() -> None:
    """Who accepts any model names none that would be scarce."""
    either = ('model == "T4"', 'model == "G2"')
    assert place(fleet(), session("any", ONE), workload=((ONE, 8),), device_workload=((either, ONE, 8),)) == {
        "any": "i-1"
    }


def test_a_union_of_models_is_scarce_though_each_is_not() -> None:
    agents = [
        of_model(agent("i-1", cpu=64, cuda=2), "A"),
        of_model(agent("i-2", cpu=64, cuda=2), "B"),
        of_model(agent("i-3", cpu=64, cuda=4), "C"),
    ]
    named = tuple(((text,), ONE, 3) for text in ('model in ["A", "B"]', 'model == "A"'))
    assert place(agents, session("any", ONE), workload=((ONE, 8),), device_workload=named) == {"any": "i-3"}


@pytest.mark.parametrize("seed", range(3))
def test_a_scheduler_that_is_updated_decides_as_a_new_one(seed: int) -> None:
    rng = random.Random(seed)
    agents = [of_model(agent(f"i-{n}", cpu=16 + n, shares=[1] * (2 + n % 3)), "ABC"[n % 3]) for n in range(9)]
    shapes = [slots(cpu=1, cuda_shares=amount) for amount in ("0.3", "0.5", "0.8", "1")]
    named = tuple(((f'model == "{m}"',), shape, 1 + n) for n, m in enumerate("AB") for shape in shapes)
    usual = Snapshot(resource_group="g", workload=tuple((shape, 9) for shape in shapes), device_workload=named)
    kept = IncrementalScheduler(replace(usual, agents=tuple(agents)))
    held = {view.agent_id: view for view in agents}
    for number in range(40):
        texts = rng.choice([(), *(entry[0] for entry in named)])
        who = session(str(number), rng.choice(shapes), age_s=-number, device_requests=texts)
        new = IncrementalScheduler(replace(usual, agents=tuple(held.values()), pending=(who,)))
        kept.enqueue(who)
        first, second = (decide(one, POLICY, now=NOW, rng=random.Random(1)) for one in (kept, new))
        assert first.placements == second.placements
        kept.withdraw(who.session_id)
        for kernel in (kernel for placed in first.placements for kernel in placed.kernels):
            view = holding(held[kernel.agent_id], **{s.replace(".", "_"): str(q) for s, q in who.total.items()})
            mine = replace(view.held[-1], kernel_id=kernel.kernel_id, devices=kernel.devices)
            held[kernel.agent_id] = replace(view, held=(*view.held[:-1], mine))
