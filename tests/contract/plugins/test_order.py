"""An ordering plugin keeps the contract, and decides in the scheduler."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from uuid import UUID

import pytest

from ai.backend.common.ids import ResourceGroupName, SessionId
from ai.backend.common.structs import replace
from ai.backend.core.scheduling.decide import decide
from ai.backend.core.scheduling.policy import Policy
from ai.backend.core.scheduling.snapshot import Snapshot
from ai.backend.manager.resource_groups.model import ResourceGroup
from ai.backend.manager.resource_groups.order_plugins import adapt_order, load_order_plugin
from ai.backend.manager.scheduling.reading import group_policy
from ai.backend.plugin.ordering import AbstractOrder, Usage, Waiting
from ai.backend.plugin.testing.ordering import OrderContract
from tests.plugins.smallest_first import SmallestFirst
from tests.support.entry_points import install_plugins
from tests.unit.core.scheduling.builders import NOW, agent, session, slots


class TestSmallestFirst(OrderContract):
    def make(self) -> AbstractOrder:
        return SmallestFirst()


class Liar(AbstractOrder):
    def order(self, waiting: Sequence[Waiting], usage: Usage) -> Sequence[SessionId]:
        return [SessionId(UUID(int=7))]


class Broken(AbstractOrder):
    def order(self, waiting: Sequence[Waiting], usage: Usage) -> Sequence[SessionId]:
        raise RuntimeError


class Partial(AbstractOrder):
    def order(self, waiting: Sequence[Waiting], usage: Usage) -> Sequence[SessionId]:
        return [waiting[-1].session_id, waiting[-1].session_id]


@pytest.mark.parametrize("plugin", [Liar, Broken])
def test_the_suite_can_fail(plugin: type[AbstractOrder]) -> None:
    suite = OrderContract()
    suite.make = plugin  # type: ignore[method-assign]  # in place of a subclass
    with pytest.raises((AssertionError, RuntimeError)):
        suite.test_it_names_sessions_of_the_queue_and_each_once()


@pytest.mark.parametrize(
    ("plugin", "names"),
    [(SmallestFirst, "cab"), (Partial, "cab"), (Liar, "abc"), (Broken, "abc")],
)
def test_sessions_are_tried_in_the_order_of_the_plugin(plugin: type[AbstractOrder], names: str) -> None:
    pending = (
        session("a", slots(cpu=4), age_s=9),
        session("b", slots(cpu=8), age_s=8),
        session("c", slots(cpu=2), age_s=7),
    )
    by_id = {one.session_id: one.name for one in pending}
    policy = Policy(order="mine", plugged_order=adapt_order("mine", plugin()))
    policy.check()
    snapshot = Snapshot(resource_group="g", agents=(agent("i-1", cpu=16),), pending=pending)
    made = decide(snapshot, policy, now=NOW, rng=random.Random(1))
    assert "".join(by_id[placement.session_id] for placement in made.placements) == names


def test_who_holds_less_goes_first() -> None:
    pending = tuple(replace(session(name, slots(cpu=4), age_s=9), scope=("d", "p", name)) for name in ("rich", "poor"))
    policy = Policy(order="mine", plugged_order=adapt_order("mine", SmallestFirst()))
    snapshot = Snapshot(
        resource_group="g", agents=(agent("i-1", cpu=4),), pending=pending, occupied={"d/p/rich": slots(cpu=9)}
    )
    made = decide(snapshot, policy, now=NOW, rng=random.Random(1))
    by_id = {one.session_id: one.name for one in pending}
    assert [by_id[placement.session_id] for placement in made.placements] == ["poor"]


def test_a_resource_group_names_the_plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load_order_plugin.cache_clear()
    install_plugins(tmp_path, monkeypatch)
    group = ResourceGroup(name=ResourceGroupName("g"), scheduler="smallest-first", created_at=NOW)
    assert group_policy(group).plugged_order is not None
    assert group_policy(group).needs_usage
    assert group_policy(replace(group, scheduler="none")).order == "fifo"
    load_order_plugin.cache_clear()
