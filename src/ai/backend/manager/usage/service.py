"""Reports of what was used (client wire contract 2.9)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from ai.backend.common.errors import InvalidInput, NotFound, RateLimitExceeded
from ai.backend.common.ids import DomainName, GroupId, UserId
from ai.backend.infra.clock import Clock
from ai.backend.manager.access.caller import Caller
from ai.backend.manager.access.checks import require_any, scope_of
from ai.backend.manager.access.permissions import Operation, Scope
from ai.backend.manager.identity.service import IdentityService
from ai.backend.manager.usage.model import MAX_LISTED, GroupUsage, Timeline, UsageQuery, UsedKernel
from ai.backend.manager.usage.store import UsageStore

MAX_PERIOD = timedelta(days=100)
MAX_AT_ONCE = 2
"""Reports that are made at a time in one manager for administrators, and as many for others; as many again may wait.
Each caller has one."""
_PAGE = 1_000


@dataclass(slots=True)
class _Room:
    """``asked``: whose reports are made or wait."""

    making: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MAX_AT_ONCE))
    asked: set[UserId] = field(default_factory=set)


class UsageService:
    """Superadmins and monitors ask for every group, administrators for those of their domain."""

    def __init__(self, store: UsageStore, identity: IdentityService, clock: Clock) -> None:
        self._store = store
        self._identity = identity
        self._clock = clock
        self._administrators, self._others = _Room(), _Room()

    async def of_month(self, caller: Caller, month: str, group_ids: Sequence[GroupId] | None) -> list[GroupUsage]:
        """What each group used in a month (``YYYYMM``, UTC), those that used something; None is all that the caller
        sees.

        Raises:
            InvalidInput, Forbidden, NotFound, RateLimitExceeded.
        """
        start = _day(month + "01", "month")
        end = (start + timedelta(days=32)).replace(day=1)
        return await self._report(caller, start, end, group_ids)

    async def of_period(self, caller: Caller, group_id: GroupId, first: str, last: str) -> GroupUsage | None:
        """What a group used from one day until another (``YYYYMMDD``, UTC), both included; None for nothing.

        Raises: as :meth:`of_month`.
        """
        start, end = _day(first, "start_date"), _day(last, "end_date") + timedelta(days=1)
        if end <= start:
            raise InvalidInput("The period ends before it begins.", data={"end_date": "before start_date"})
        if end - start > MAX_PERIOD:
            raise InvalidInput(f"A period has {MAX_PERIOD.days} days at most.", data={"end_date": "too late"})
        return next(iter(await self._report(caller, start, end, [group_id])), None)

    async def own_timeline(self, caller: Caller) -> Timeline:
        """Of the caller's sessions. Raises RateLimitExceeded."""
        return await self._timeline(caller, user_id=caller.user_id)

    async def timeline(self, caller: Caller) -> Timeline:
        """Of all sessions, or those of an administrator's domain. Raises Forbidden, RateLimitExceeded."""
        _check(caller)
        is_all = scope_of(caller, Operation.SEE_USAGE) is Scope.ALL
        return await self._timeline(caller, domain_name=None if is_all else caller.domain_name)

    async def _timeline(
        self, caller: Caller, *, user_id: UserId | None = None, domain_name: DomainName | None = None
    ) -> Timeline:
        made = Timeline(self._clock.now())
        query = UsageQuery(start=made.start, end=made.now, user_id=user_id, domain_name=domain_name)
        await self._read(caller, query, made.add)
        return made

    async def _report(
        self, caller: Caller, start: datetime, end: datetime, group_ids: Sequence[GroupId] | None
    ) -> list[GroupUsage]:
        _check(caller)
        is_all = scope_of(caller, Operation.SEE_USAGE) is Scope.ALL
        seen = {group.id: group for group in await self._identity.groups(caller)}
        if group_ids is not None and (unknown := [g for g in group_ids if g not in seen and not is_all]):
            raise NotFound(f"There is no group {unknown[0]}.", data={"group_ids": "unknown"})
        query = UsageQuery(
            start=start,
            end=end,
            group_ids=tuple(group_ids) if group_ids is not None else None,
            domain_name=None if is_all else caller.domain_name,
        )
        found: dict[GroupId, GroupUsage] = {}
        now, listed = self._clock.now(), 0

        def add(kernel: UsedKernel) -> None:
            nonlocal listed
            usage = found.get(kernel.group_id)
            if usage is None:
                usage = found[kernel.group_id] = GroupUsage(
                    group_id=kernel.group_id, group_name=kernel.group_name, domain_name=kernel.domain_name
                )
            usage.add(kernel, query, now, is_listed=listed < MAX_LISTED)
            listed += 1

        await self._read(caller, query, add)
        return sorted(found.values(), key=lambda usage: (usage.domain_name, usage.group_name))

    async def _read(self, caller: Caller, query: UsageQuery, add: Callable[[UsedKernel], None]) -> None:
        """Page by page, so that neither memory nor the loop is held. Raises RateLimitExceeded."""
        room = self._administrators if _is_administrator(caller) else self._others
        if caller.user_id in room.asked:
            raise RateLimitExceeded("Another report is being made for you; try again when you have it.")
        if len(room.asked) >= 2 * MAX_AT_ONCE:
            raise RateLimitExceeded("Reports are being made for others; try again in a moment.")
        room.asked.add(caller.user_id)
        try:
            async with room.making:
                page = await self._store.used(query, limit=_PAGE)
                while page:
                    for kernel in page:
                        add(kernel)
                    page = await self._store.used(query, after=page[-1].cursor, limit=_PAGE)
        finally:
            room.asked.discard(caller.user_id)


def _is_administrator(caller: Caller) -> bool:
    return scope_of(caller, Operation.SEE_USAGE) is not Scope.NONE


def _check(caller: Caller) -> None:
    require_any(caller, Operation.SEE_USAGE)


def _day(text: str, field: str) -> datetime:
    try:
        if not text.isascii() or not text.isdigit() or len(text) != 8 or text[:3] == "999":
            raise ValueError  # the calendar has no end for the last ones
        return datetime.strptime(text, "%Y%m%d").replace(tzinfo=UTC)
    except ValueError:
        wanted = "YYYYMM" if field == "month" else "YYYYMMDD"
        raise InvalidInput(f"{field} is a date as {wanted}.", data={field: "malformed"}) from None
