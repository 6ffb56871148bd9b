"""Computes usage reports (client wire contract 2.9, `usage-per-month`, `usage-per-period`, `stats`).

Reports follow from the history of kernels: their slots, their times, and the metrics that were reported last. Kernels
are added one by one, so that a report needs memory for its result only. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any
from uuid import UUID

import msgspec

from ai.backend.common.ids import AccessKey, AgentId, DomainName, GroupId, KernelId, SessionId, UserId
from ai.backend.common.slots import ResourceSlot
from ai.backend.common.states import KernelStatus

MAX_LISTED = 10_000
"""The maximum number of kernels that a report lists; the sums of the report count all kernels."""
BIN = timedelta(minutes=15)
BINS = 2_880
"""The number of bins in the statistics of a month, which are 30 days."""
_ZERO = Decimal(0)
_COUNTER_LIMIT = 2**63


class UsageQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Selects kernels that ran at any time from ``start`` until before ``end``.

    A field that is None does not restrict the selection.
    """

    start: datetime
    end: datetime
    group_ids: tuple[GroupId, ...] | None = None
    domain_name: DomainName | None = None
    user_id: UserId | None = None


class Cursor(msgspec.Struct, frozen=True, kw_only=True):
    """Identifies the last kernel of a page. Kernels that have ended come first, by their ends, then running kernels."""

    terminated_at: datetime | None
    kernel_id: UUID


class UsedKernel(msgspec.Struct, frozen=True, kw_only=True):
    """Describes a kernel that ran; the fields are those of Kernel and Session. ``is_main``: it counts
    for its session.
    """

    kernel_id: KernelId
    session_id: SessionId
    is_main: bool
    name: str
    access_key: AccessKey
    user_id: UserId
    email: str
    domain_name: DomainName
    group_id: GroupId
    group_name: str
    image: str
    agent: AgentId | None
    container_id: str | None
    status: KernelStatus
    status_info: str | None
    cluster_mode: str
    slots: ResourceSlot
    mounts: tuple[str, ...]
    last_stat: Mapping[str, Any] | None
    created_at: datetime
    started_at: datetime
    terminated_at: datetime | None

    @property
    def cursor(self) -> Cursor:
        return Cursor(terminated_at=self.terminated_at, kernel_id=self.kernel_id)

    def metric(self, name: str, value_name: str = "current") -> Decimal:
        """Returns a value of a metric, or zero if it is missing or no number from 0 to below 2**63.

        Values are checked because agents write them.
        """
        metric = (self.last_stat or {}).get(name)
        try:
            value = (
                Decimal(str(metric[value_name]))
                if isinstance(metric, Mapping) and metric.get(value_name) is not None
                else _ZERO
            )
        except InvalidOperation:
            return _ZERO
        return value if value.is_finite() and 0 <= value < _COUNTER_LIMIT else _ZERO

    @property
    def devices(self) -> ResourceSlot:
        """Returns the slots of the kernel other than processors and memory."""
        return ResourceSlot({name: amount for name, amount in self.slots.items() if name not in ("cpu", "mem")})

    def seconds_within(self, start: datetime, end: datetime, now: datetime) -> Decimal:
        """Returns the seconds for which the kernel ran between ``start`` and ``end``."""
        return _seconds_within(self.started_at, self.terminated_at, start, end, now)


class UsedClaim(msgspec.Struct, frozen=True, kw_only=True):
    """Describes a period in which a device claim held devices, even without a session.

    The fields are those of Claim.
    """

    domain_name: DomainName
    group_id: GroupId
    group_name: str
    slots: ResourceSlot
    started_at: datetime
    terminated_at: datetime | None

    def seconds_within(self, start: datetime, end: datetime, now: datetime) -> Decimal:
        """Returns the seconds for which the claim was held between ``start`` and ``end``."""
        return _seconds_within(self.started_at, self.terminated_at, start, end, now)


def _seconds_within(
    started_at: datetime, ended_at: datetime | None, start: datetime, end: datetime, now: datetime
) -> Decimal:
    counted_until = min(ended_at or now, end, now)
    return max(_ZERO, Decimal(str((counted_until - max(started_at, start)).total_seconds())))


@dataclass(slots=True, kw_only=True)
class GroupUsage:
    """Sums up the use by sessions and device claims of one group in a period. ``slot_seconds``: for each slot its
    quantity times the seconds for which it was held within the period.
    """

    group_id: GroupId
    group_name: str
    domain_name: DomainName
    count: int = 0
    kernels: list[UsedKernel] = field(default_factory=list)
    slots: ResourceSlot = field(default_factory=ResourceSlot)
    slot_seconds: dict[str, Decimal] = field(default_factory=dict)
    metrics: dict[str, Decimal] = field(default_factory=dict)

    def add(self, kernel: UsedKernel, query: UsageQuery, now: datetime, *, is_listed: bool) -> None:
        self.count += 1
        if is_listed:
            self.kernels.append(kernel)
        self._add_slots(kernel, query, now)
        for name, (metric, value_name) in METRICS.items():
            self.metrics[name] = self.metrics.get(name, _ZERO) + kernel.metric(metric, value_name)

    def add_claim(self, claim: UsedClaim, query: UsageQuery, now: datetime) -> None:
        """Adds the slots of a device claim to the sums, without counting a kernel."""
        self._add_slots(claim, query, now)

    def _add_slots(self, holder: UsedKernel | UsedClaim, query: UsageQuery, now: datetime) -> None:
        self.slots += holder.slots
        held_s = holder.seconds_within(query.start, query.end, now)
        for name, amount in holder.slots.items():
            self.slot_seconds[name] = self.slot_seconds.get(name, _ZERO) + amount * held_s

    @property
    def device_types(self) -> list[str]:
        return sorted({name.partition(".")[0] for name in self.slots if name not in ("cpu", "mem")})


METRICS: Mapping[str, tuple[str, str]] = {
    "cpu_used": ("cpu_used", "current"),
    "mem_used": ("mem", "stats.max"),
    "io_read": ("io_read", "current"),
    "io_write": ("io_write", "current"),
    "disk_used": ("io_scratch_size", "stats.max"),
}
"""Maps a name in reports to the metric, and its value, that is summed up. ``cpu_used`` is in milliseconds."""

_SERIES = ("num_sessions", "cpu", "mem", "devices", "io_read", "io_write", "disk_used")


class Timeline:
    """Sums up the usage in each quarter of an hour of the last 30 days. Every kernel adds its amounts to the bin of its
    start and subtracts them after the bin of its end; the prefix sums are the values.
    """

    def __init__(self, now: datetime) -> None:
        self.now = now
        self.start = now - BINS * BIN
        self._changes: dict[str, list[Decimal]] = {name: [_ZERO] * (BINS + 1) for name in _SERIES}

    def add(self, kernel: UsedKernel) -> None:
        amounts = {
            "num_sessions": Decimal(kernel.is_main),
            "cpu": kernel.slots["cpu"],
            "mem": kernel.slots["mem"],
            "devices": sum(kernel.devices.values(), _ZERO),
            **{name: kernel.metric(*METRICS[name]) for name in ("io_read", "io_write", "disk_used")},
        }
        self._add_amounts(kernel, amounts)

    def add_claim(self, claim: UsedClaim) -> None:
        self._add_amounts(claim, {"devices": sum(claim.slots.values(), _ZERO)})

    def _add_amounts(self, holder: UsedKernel | UsedClaim, amounts: Mapping[str, Decimal]) -> None:
        first_bin = max(0, (holder.started_at - self.start) // BIN)
        last_bin = min(BINS - 1, ((holder.terminated_at or self.now) - self.start) // BIN)
        if last_bin < first_bin:
            return
        for name, amount in amounts.items():
            self._changes[name][first_bin] += amount
            self._changes[name][last_bin + 1] -= amount

    def bins(self) -> list[tuple[datetime, dict[str, Decimal]]]:
        """Returns the start and the amounts of each quarter of an hour."""
        running_sums = dict.fromkeys(_SERIES, _ZERO)
        bins = []
        for index in range(BINS):
            for name in _SERIES:
                running_sums[name] += self._changes[name][index]
            bins.append((self.start + index * BIN, dict(running_sums)))
        return bins
