"""Tests what every ordering plugin must satisfy. A subclass of the contract makes the plugin::

class TestMine(OrderContract):
    def make(self) -> AbstractOrder:
        return Mine()
"""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from uuid import UUID

import pytest

from ai.backend.common.ids import SessionId
from ai.backend.common.slots import ResourceSlot
from ai.backend.common.states import SessionType
from ai.backend.plugin.ordering import AbstractOrder, Usage, Waiting


def random_sessions(seed: int, session_count: int) -> list[Waiting]:
    """Returns random pending sessions of three users. Larger priorities come first, then older sessions."""
    rng = random.Random(seed)
    first_time = datetime(2026, 1, 1, tzinfo=UTC)
    pending_sessions = [
        Waiting(
            session_id=SessionId(UUID(int=rng.getrandbits(128))),
            session_type=rng.choice(list(SessionType)),
            priority=rng.choice((0, 10, 10, 50)),
            enqueued_at=first_time + timedelta(seconds=rng.randint(0, 9999)),
            requested=ResourceSlot({"cpu": Decimal(rng.randint(1, 64)), "mem": Decimal(2 ** rng.randint(28, 38))}),
            kernels=rng.choice((1, 1, 4)),
            scope=("default", "project", f"user{rng.randint(1, 3)}"),
        )
        for _ in range(session_count)
    ]
    return sorted(pending_sessions, key=lambda one: (-one.priority, one.enqueued_at, one.session_id.int))


def random_usage(seed: int) -> Usage:
    rng = random.Random(seed)
    slots_of_user = {
        f"default/project/user{user_number}": ResourceSlot({"cpu": Decimal(rng.randint(0, 99))})
        for user_number in (1, 2)
    }
    return Usage(capacity=ResourceSlot({"cpu": Decimal(128), "mem": Decimal(2**40)}), occupied=slots_of_user)


class OrderContract:
    """Tests an ordering plugin that a subclass makes."""

    def make(self) -> AbstractOrder:
        pytest.fail("override make()")

    def test_it_names_sessions_of_the_queue_and_each_once(self) -> None:
        plugin = self.make()
        for seed in range(50):
            pending_sessions = random_sessions(seed, seed % 17)
            ordered_ids = list(plugin.order(pending_sessions, random_usage(seed)))
            assert len(set(ordered_ids)) == len(ordered_ids)
            assert set(ordered_ids) <= {session.session_id for session in pending_sessions}

    def test_equal_arguments_give_an_equal_answer_whatever_was_asked_before(self) -> None:
        plugin, other_plugin = self.make(), self.make()
        for seed in range(50):
            pending_sessions = random_sessions(seed, 12)
            first_order = list(plugin.order(pending_sessions, random_usage(seed)))
            assert (
                first_order
                == list(plugin.order(pending_sessions, random_usage(seed)))
                == list(other_plugin.order(pending_sessions, random_usage(seed)))
            )

    def test_it_changes_none_of_its_arguments(self) -> None:
        pending_sessions, group_usage = random_sessions(1, 9), random_usage(1)
        copies_before = list(pending_sessions), dict(group_usage.occupied)
        self.make().order(pending_sessions, group_usage)
        assert (pending_sessions, group_usage.occupied) == copies_before

    def test_nobody_is_left_behind_for_ever(self) -> None:
        """The order of one pending session contains that session or is empty."""
        for seed in range(20):
            [only_session] = random_sessions(seed, 1)
            assert list(self.make().order([only_session], random_usage(seed))) in ([], [only_session.session_id])
