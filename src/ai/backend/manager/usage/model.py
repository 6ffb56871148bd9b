"""What kernels used, as reports tell it (client wire contract 2.9, `usage-per-month`, `usage-per-period`, `stats`).

Everything here follows from the kernels' history: what each was given, when it ran, and its metrics as they were last
told. A report is made of one kernel after the other, so that it needs memory for its answer only. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any
from uuid import UUID

from ai.backend.common.ids import AccessKey, AgentId, DomainName, GroupId, KernelId, SessionId, UserId
from ai.backend.common.slots import ResourceSlot
from ai.backend.common.states import KernelStatus

MAX_LISTED = 10_000
"""Kernels that one report lists. Those beyond are counted in its sums."""
BIN = timedelta(minutes=15)
BINS = 2_880
"""Of the statistics of a month: 30 days."""
_NONE = Decimal(0)
_COUNTERS = 2**63


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageQuery:
    """Kernels that ran at some time from ``start`` until before ``end``; None does not narrow."""

    start: datetime
    end: datetime
    group_ids: tuple[GroupId, ...] | None = None
    domain_name: DomainName | None = None
    user_id: UserId | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    """The last kernel of a page: kernels that have ended come first, by their ends, then those that run."""

    terminated_at: datetime | None
    kernel_id: UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class UsedKernel:
    """A kernel that ran; the fields are those of Kernel and Session. ``is_main``: its session is counted by it."""

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

    def metric(self, name: str, part: str = "current") -> Decimal:
        """Zero where nothing was told, or nothing that a counter of 64 bits can hold: agents write this."""
        told = (self.last_stat or {}).get(name)
        try:
            value = Decimal(str(told[part])) if isinstance(told, Mapping) and told.get(part) is not None else _NONE
        except InvalidOperation:
            return _NONE
        return value if value.is_finite() and 0 <= value < _COUNTERS else _NONE

    @property
    def devices(self) -> ResourceSlot:
        """What it has besides processors and memory."""
        return ResourceSlot({name: amount for name, amount in self.slots.items() if name not in ("cpu", "mem")})

    def seconds_within(self, start: datetime, end: datetime, now: datetime) -> Decimal:
        """For how long it ran in that time."""
        until = min(self.terminated_at or now, end, now)
        return max(_NONE, Decimal(str((until - max(self.started_at, start)).total_seconds())))


@dataclass(slots=True, kw_only=True)
class GroupUsage:
    """What the sessions of one group used in a period; ``add`` makes it.

    ``slot_seconds``: for each slot its quantity times the seconds for which it was held within the period.
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
        self.slots += kernel.slots
        held_s = kernel.seconds_within(query.start, query.end, now)
        for name, amount in kernel.slots.items():
            self.slot_seconds[name] = self.slot_seconds.get(name, _NONE) + amount * held_s
        for name, (metric, part) in METRICS.items():
            self.metrics[name] = self.metrics.get(name, _NONE) + kernel.metric(metric, part)

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
"""What a report sums up: its name, the metric, and which value of it. ``cpu_used`` is in milliseconds."""

_SERIES = ("num_sessions", "cpu", "mem", "devices", "io_read", "io_write", "disk_used")


class Timeline:
    """How much was running in each quarter of an hour of the last 30 days.

    Every kernel changes a value where it begins and where it has ended; the sums of these changes are the values.
    """

    def __init__(self, now: datetime) -> None:
        self.now = now
        self.start = now - BINS * BIN
        self._changes: dict[str, list[Decimal]] = {name: [_NONE] * (BINS + 1) for name in _SERIES}

    def add(self, kernel: UsedKernel) -> None:
        first = max(0, (kernel.started_at - self.start) // BIN)
        last = min(BINS - 1, ((kernel.terminated_at or self.now) - self.start) // BIN)
        if last < first:
            return
        told = {
            "num_sessions": Decimal(kernel.is_main),
            "cpu": kernel.slots["cpu"],
            "mem": kernel.slots["mem"],
            "devices": sum(kernel.devices.values(), _NONE),
            **{name: kernel.metric(*METRICS[name]) for name in ("io_read", "io_write", "disk_used")},
        }
        for name, amount in told.items():
            self._changes[name][first] += amount
            self._changes[name][last + 1] -= amount

    def bins(self) -> list[tuple[datetime, dict[str, Decimal]]]:
        """The beginning of each bin, and what ran in it."""
        running = dict.fromkeys(_SERIES, _NONE)
        told = []
        for index in range(BINS):
            for name in _SERIES:
                running[name] += self._changes[name][index]
            told.append((self.start + index * BIN, dict(running)))
        return told
