"""Usage reports: sums, bounds of metrics, limits of concurrent reports."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID, uuid4

import pytest

from ai.backend.common.errors import Forbidden, RateLimitExceeded
from ai.backend.common.ids import AccessKey, DomainName, GroupId, KernelId, SessionId, UserId
from ai.backend.common.slots import ResourceSlot
from ai.backend.common.states import KernelStatus, UserRole
from ai.backend.manager.access.caller import Caller
from ai.backend.manager.identity.model import Group
from ai.backend.manager.usage.api import group_report
from ai.backend.manager.usage.model import BIN, BINS, Cursor, GroupUsage, Timeline, UsageQuery, UsedClaim, UsedKernel
from ai.backend.manager.usage.service import UsageService

NOW = datetime(2026, 2, 1, tzinfo=UTC)
DAY = timedelta(days=1)
STAT = {
    "cpu_used": {"current": "2500.5"},
    "mem": {"current": "10", "stats.max": "64"},
    "io_read": {"current": "NaN"},
    "io_write": {"current": None},
    "io_scratch_size": "nonsense",
}


def kernel(begin: datetime, end: datetime | None, **changes: Any) -> UsedKernel:
    values: dict[str, Any] = {
        "kernel_id": KernelId(uuid4()),
        "session_id": SessionId(uuid4()),
        "is_main": True,
        "name": "s",
        "access_key": AccessKey("AKIA"),
        "user_id": UserId(UUID(int=1)),
        "email": "a@b",
        "domain_name": DomainName("default"),
        "group_id": GroupId(UUID(int=2)),
        "group_name": "g",
        "image": "python",
        "agent": None,
        "container_id": None,
        "status": KernelStatus.TERMINATED,
        "status_info": None,
        "cluster_mode": "single-node",
        "slots": ResourceSlot.parse({"cpu": "2", "mem": "1024", "cuda.shares": "0.5"}),
        "mounts": (),
        "last_stat": STAT,
        "created_at": begin,
        "started_at": begin,
        "terminated_at": end,
    }
    return UsedKernel(**{**values, **changes})


def test_a_report_counts_only_what_was_held_within_the_period() -> None:
    query = UsageQuery(start=NOW - 10 * DAY, end=NOW)
    usage = GroupUsage(group_id=GroupId(UUID(int=2)), group_name="g", domain_name=DomainName("default"))
    usage.add(kernel(NOW - 20 * DAY, NOW - 9 * DAY), query, NOW, is_listed=True)
    usage.add(kernel(NOW - DAY, None), query, NOW - DAY / 2, is_listed=False)
    assert (usage.count, len(usage.kernels)) == (2, 1)
    assert usage.slots == ResourceSlot.parse({"cpu": "4", "mem": "2048", "cuda.shares": "1"})
    assert usage.slot_seconds["cpu"] == 2 * Decimal((DAY + DAY / 2).total_seconds())
    assert usage.slot_seconds["cuda.shares"] == Decimal((DAY + DAY / 2).total_seconds()) / 2
    assert usage.metrics == {
        "cpu_used": Decimal("5001.0"),
        "mem_used": 128,
        "io_read": 0,
        "io_write": 0,
        "disk_used": 0,
    }
    assert usage.device_types == ["cuda"]


@pytest.mark.timeout(60)  # as an integer, one of them took seconds
@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("9223372036854775807", 2**63 - 1),
        ("9223372036854775808", 0),
        ("-1", 0),
        ("1E+300000", 0),
        ("1E+1000000", 0),
        ("-1E+999999999999999999", 0),
        ("9" * 1_000_000, 0),
        ("sNaN", 0),
        ("Infinity", 0),
        (10**30, 0),
        (1e300, 0),
        (["1"], 0),
    ],
)
def test_what_no_counter_holds_is_not_added_up(text: Any, value: int) -> None:
    stat = {name: {"current": text, "stats.max": text} for name in ("cpu_used", "mem", "io_read", "io_write")}
    used = kernel(NOW - DAY, None, last_stat=stat)
    assert [used.metric("mem", "stats.max"), used.metric("io_read")] == [value, value]
    usage = GroupUsage(group_id=GroupId(UUID(int=2)), group_name="g", domain_name=DomainName("default"))
    usage.add(used, UsageQuery(start=NOW - 10 * DAY, end=NOW), NOW, is_listed=True)
    assert group_report(usage)["g_io_read"] == value
    timeline = Timeline(NOW)
    timeline.add(used)
    assert timeline.bins()[-1][1]["io_write"] == value


@pytest.mark.timeout(60)
def test_what_is_next_to_nothing_is_added_up_at_once() -> None:
    stat = {"io_read": {"current": "1E-999999999"}, "io_write": {"current": "0." + 1_000_000 * "1"}}
    used = kernel(NOW - DAY, None, last_stat=stat)
    usage = GroupUsage(group_id=GroupId(UUID(int=2)), group_name="g", domain_name=DomainName("default"))
    usage.add(used, UsageQuery(start=NOW - 10 * DAY, end=NOW), NOW, is_listed=True)
    view = group_report(usage)
    assert (view["g_io_read"], view["g_io_write"], view["c_infos"][0]["io_read"]) == (0, 0, 0)


def test_a_period_that_a_kernel_did_not_reach_holds_nothing() -> None:
    assert kernel(NOW, None).seconds_within(NOW - DAY, NOW + DAY, NOW - DAY / 2) == 0


@pytest.mark.parametrize(
    ("begin", "end", "bins"),
    [
        (NOW - 40 * DAY, NOW - 30 * DAY + BIN / 2, range(1)),
        (NOW - BIN, NOW - BIN, range(BINS - 1, BINS)),
        (NOW - 2 * BIN, None, range(BINS - 2, BINS)),
        (NOW - 40 * DAY, None, range(BINS)),
        (NOW - 40 * DAY, NOW - 31 * DAY, range(0)),
        (NOW - 10 * BIN, NOW - 9 * BIN, range(BINS - 10, BINS - 8)),
    ],
)
def test_a_kernel_is_in_the_bins_in_which_it_ran(begin: datetime, end: datetime | None, bins: range) -> None:
    timeline = Timeline(NOW)
    timeline.add(kernel(begin, end))
    timeline.add(kernel(begin, end, is_main=False, slots=ResourceSlot.parse({"cpu": "1"})))
    values_of_bins = timeline.bins()
    assert len(values_of_bins) == BINS
    assert values_of_bins[0][0] == NOW - 30 * DAY
    for index, (_, values) in enumerate(values_of_bins):
        ran = index in bins
        assert values["num_sessions"] == ran, index
        assert values["cpu"] == 3 * ran, index
        assert values["devices"] == Decimal("0.5") * ran, index
        assert values["mem"] == 1024 * ran, index


def test_a_claim_counts_its_slots_and_no_kernel() -> None:
    claim = UsedClaim(
        domain_name=DomainName("default"),
        group_id=GroupId(UUID(int=2)),
        group_name="g",
        slots=ResourceSlot.parse({"cuda.device": "2"}),
        started_at=NOW - 2 * DAY,
        terminated_at=NOW - DAY,
    )
    usage = GroupUsage(group_id=claim.group_id, group_name="g", domain_name=claim.domain_name)
    query = UsageQuery(start=NOW - 3 * DAY, end=NOW - DAY - timedelta(hours=12))
    usage.add_claim(claim, query, NOW)
    assert (usage.count, usage.kernels, usage.slots) == (0, [], claim.slots)
    assert usage.slot_seconds == {"cuda.device": 2 * 43_200}
    timeline = Timeline(NOW)
    timeline.add_claim(claim)
    held = [values for _, values in timeline.bins() if values["devices"]]
    assert len(held) == DAY // BIN + 1
    assert {tuple(map(int, values.values())) for values in held} == {(0, 0, 0, 2, 0, 0, 0)}


class Busy:
    """A store that blocks until ``go_on`` is set, an identity service without groups, and a clock."""

    def __init__(self) -> None:
        self.go_on, self.at_work = asyncio.Event(), 0

    async def claimed(self, query: UsageQuery) -> Sequence[UsedClaim]:
        return []

    async def used(self, query: UsageQuery, *, after: Cursor | None = None, limit: int) -> Sequence[UsedKernel]:
        self.at_work += 1
        await self.go_on.wait()
        self.at_work -= 1
        return []

    async def groups(self, caller: Caller) -> list[Group]:
        return []

    def now(self) -> datetime:
        return NOW


def caller(role: UserRole, user: int) -> Caller:
    return Caller(
        user_id=UserId(UUID(int=user)),
        email="x@local",
        username="x",
        role=role,
        domain_name=DomainName("default"),
        access_key=AccessKey(f"AKIA{uuid4().hex[:16].upper()}"),
        is_admin=False,
        resource_policy="default",
        rate_limit=1,
    )


async def test_a_greedy_user_does_not_keep_others_from_reports() -> None:
    busy: Any = Busy()
    service = UsageService(busy, busy, busy)
    greedy, admins = caller(UserRole.USER, 1), [caller(role, 9) for role in (UserRole.ADMIN, UserRole.MONITOR)]
    running: list[asyncio.Task[Any]] = [asyncio.create_task(service.own_timeline(greedy))]
    await asyncio.sleep(0)
    for _ in range(8):
        with pytest.raises(RateLimitExceeded, match="for you"):
            await service.own_timeline(caller(UserRole.USER, 1))
    running += [asyncio.create_task(service.own_timeline(caller(UserRole.USER, n))) for n in (2, 3, 4)]
    await asyncio.sleep(0)
    with pytest.raises(RateLimitExceeded, match="for others"):
        await service.own_timeline(caller(UserRole.USER, 5))
    assert busy.at_work == 2
    running.append(asyncio.create_task(service.month_usage(admins[0], "202601", None)))
    await asyncio.sleep(0)
    assert busy.at_work == 3, "administrators have a limit of their own"
    with pytest.raises(RateLimitExceeded, match="for you"):
        await service.timeline(admins[1])
    with pytest.raises(Forbidden):
        await service.timeline(greedy)
    running.pop().cancel()
    await asyncio.sleep(0)
    running.append(asyncio.create_task(service.timeline(admins[1])))
    await asyncio.sleep(0)
    busy.go_on.set()
    await asyncio.gather(*running)
    await service.own_timeline(greedy)
