"""Makes usage reports for administrators and users (client wire contract 2.9)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Protocol

from ai.backend.common.errors import InvalidInput, NotFound, RateLimitExceeded
from ai.backend.common.ids import DomainName, GroupId, UserId
from ai.backend.infra.clock import Clock
from ai.backend.manager.access.caller import Caller
from ai.backend.manager.access.checks import require_any, scope_of
from ai.backend.manager.access.permissions import Operation, Scope
from ai.backend.manager.identity.service import IdentityService
from ai.backend.manager.usage.model import MAX_LISTED, Cursor, GroupUsage, Timeline, UsageQuery, UsedClaim, UsedKernel

MAX_PERIOD = timedelta(days=100)
MAX_CONCURRENT = 2
"""The maximum number of concurrent reports in one manager for administrators, and the same for others. As many again
may wait. A caller may have one.
"""
_PAGE_ROWS = 1_000


@dataclass(slots=True)
class _ReportLimiter:
    """Limits the number of usage reports that are made at the same time.

    ``users`` are the users whose report is being made or waits.
    """

    slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MAX_CONCURRENT))
    users: set[UserId] = field(default_factory=set)


class UsageStore(Protocol):
    """Reads the history of kernels and of device claims."""

    async def used(self, query: UsageQuery, *, after: Cursor | None = None, limit: int = 1_000) -> Sequence[UsedKernel]:
        """Returns a page of the kernels that a query selects, ended kernels first. The page after the last one is
        empty. No kernel is returned twice. One that ends between two pages may be missed.
        """
        ...

    async def claimed(self, query: UsageQuery) -> Sequence[UsedClaim]:
        """Returns the allocations that device claims had at any time in the period."""
        ...


class UsageService:
    """Reports the usage of groups. Superadmins and monitors see every group, administrators those of their domain."""

    def __init__(self, store: UsageStore, identity: IdentityService, clock: Clock) -> None:
        self._store = store
        self._identity = identity
        self._clock = clock
        self._administrators, self._others = _ReportLimiter(), _ReportLimiter()

    async def month_usage(self, caller: Caller, month: str, group_ids: Sequence[GroupId] | None) -> list[GroupUsage]:
        """Returns the usage of groups in a month (``YYYYMM``, UTC), by default of all groups that the caller sees.
        Groups without usage are left out. Raises InvalidInput, Forbidden, NotFound and RateLimitExceeded.
        """
        start = _parse_day(month + "01", "month")
        end = (start + timedelta(days=32)).replace(day=1)
        return await self._report(caller, start, end, group_ids)

    async def period_usage(self, caller: Caller, group_id: GroupId, first_day: str, last_day: str) -> GroupUsage | None:
        """Returns the usage of a group from one day to another (``YYYYMMDD``, UTC), both included. Returns None if
        there is none. Raises as :meth:`month_usage`.
        """
        start, end = _parse_day(first_day, "start_date"), _parse_day(last_day, "end_date") + timedelta(days=1)
        if end <= start:
            raise InvalidInput("The period ends before it begins.", data={"end_date": "before start_date"})
        if end - start > MAX_PERIOD:
            raise InvalidInput(f"A period has {MAX_PERIOD.days} days at most.", data={"end_date": "too late"})
        return next(iter(await self._report(caller, start, end, [group_id])), None)

    async def own_timeline(self, caller: Caller) -> Timeline:
        """Returns the timeline of the caller's sessions. Raises RateLimitExceeded."""
        return await self._timeline(caller, user_id=caller.user_id)

    async def timeline(self, caller: Caller) -> Timeline:
        """Returns the timeline of all sessions, or of the sessions in the caller's domain. Raises Forbidden,
        RateLimitExceeded.
        """
        require_any(caller, Operation.SEE_USAGE)
        return await self._timeline(caller, domain_name=_domain_of(caller))

    async def _timeline(
        self, caller: Caller, *, user_id: UserId | None = None, domain_name: DomainName | None = None
    ) -> Timeline:
        timeline = Timeline(self._clock.now())
        query = UsageQuery(start=timeline.start, end=timeline.now, user_id=user_id, domain_name=domain_name)
        await self._read_usage(caller, query, timeline.add, timeline.add_claim)
        return timeline

    async def _report(
        self, caller: Caller, start: datetime, end: datetime, group_ids: Sequence[GroupId] | None
    ) -> list[GroupUsage]:
        require_any(caller, Operation.SEE_USAGE)
        visible_groups = {group.id: group for group in await self._identity.groups(caller)}
        if group_ids is not None and (
            unknown_ids := [
                group for group in group_ids if group not in visible_groups and _domain_of(caller) is not None
            ]
        ):
            raise NotFound(f"There is no group {unknown_ids[0]}.", data={"group_ids": "unknown"})
        query = UsageQuery(
            start=start,
            end=end,
            group_ids=tuple(group_ids) if group_ids is not None else None,
            domain_name=_domain_of(caller),
        )
        usages: dict[GroupId, GroupUsage] = {}
        now, listed_kernels = self._clock.now(), 0

        def usage_of(holder: UsedKernel | UsedClaim) -> GroupUsage:
            usage = usages.get(holder.group_id)
            if usage is None:
                usage = usages[holder.group_id] = GroupUsage(
                    group_id=holder.group_id, group_name=holder.group_name, domain_name=holder.domain_name
                )
            return usage

        def add(kernel: UsedKernel) -> None:
            nonlocal listed_kernels
            usage_of(kernel).add(kernel, query, now, is_listed=listed_kernels < MAX_LISTED)
            listed_kernels += 1

        await self._read_usage(caller, query, add, lambda claim: usage_of(claim).add_claim(claim, query, now))
        return sorted(usages.values(), key=lambda usage: (usage.domain_name, usage.group_name))

    async def _read_usage(
        self,
        caller: Caller,
        query: UsageQuery,
        add: Callable[[UsedKernel], None],
        add_claim: Callable[[UsedClaim], None],
    ) -> None:
        """Calls ``add`` for all kernels, page by page to bound memory, and ``add_claim`` for allocations of device
        claims. Raises RateLimitExceeded.
        """
        is_administrator = scope_of(caller, Operation.SEE_USAGE) is not Scope.NONE
        limiter = self._administrators if is_administrator else self._others
        if caller.user_id in limiter.users:
            raise RateLimitExceeded("Another report is being made for you; try again when you have it.")
        if len(limiter.users) >= 2 * MAX_CONCURRENT:
            raise RateLimitExceeded("Reports are being made for others; try again in a moment.")
        limiter.users.add(caller.user_id)
        try:
            async with limiter.slots:
                page = await self._store.used(query, limit=_PAGE_ROWS)
                while page:
                    for kernel in page:
                        add(kernel)
                    page = await self._store.used(query, after=page[-1].cursor, limit=_PAGE_ROWS)
                for claim in await self._store.claimed(query):
                    add_claim(claim)
        finally:
            limiter.users.discard(caller.user_id)


def _domain_of(caller: Caller) -> DomainName | None:
    """Returns the domain to which reports for the caller are restricted."""
    return None if scope_of(caller, Operation.SEE_USAGE) is Scope.ALL else caller.domain_name


def _parse_day(text: str, field: str) -> datetime:
    try:
        if not text.isascii() or not text.isdigit() or len(text) != 8 or text[:3] == "999":
            raise ValueError  # the end of a period may lie beyond the last year of the calendar
        return datetime.strptime(text, "%Y%m%d").replace(tzinfo=UTC)
    except ValueError:
        date_format = "YYYYMM" if field == "month" else "YYYYMMDD"
        raise InvalidInput(f"{field} is a date as {date_format}.", data={field: "malformed"}) from None
