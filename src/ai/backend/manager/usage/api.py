"""REST routes of usage reports (client wire contract 2.9); the names of fields are the published ones."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Annotated, Any, TypedDict
from uuid import UUID

from msgspec import Meta

from ai.backend.common.ids import GroupId
from ai.backend.common.images import split_image
from ai.backend.common.slots import ResourceSlot, format_quantity
from ai.backend.infra.http.routes import Call, Nothing, Schema, route
from ai.backend.manager.access.requests import OBJECT_PROBLEMS, caller_of
from ai.backend.manager.usage.model import METRICS, GroupUsage, Timeline, UsedKernel
from ai.backend.manager.usage.service import UsageService

Date = Annotated[str, Meta(pattern="^[0-9]{8}$", description="a day as YYYYMMDD")]
Month = Annotated[str, Meta(pattern="^[0-9]{6}$", description="a month as YYYYMM")]
_MS_PER_S = 1_000


class MonthQuery(Schema, frozen=True):
    """The month as YYYYMM, and groups; without ``group_ids``, or with an empty list, all that the caller sees."""

    month: Month
    group_ids: Annotated[list[UUID], Meta(max_length=1_000)] | None = None


class PeriodQuery(Schema, frozen=True):
    """A group and two days as YYYYMMDD, both included; 100 days at most."""

    group_id: UUID
    start_date: Date
    end_date: Date


class ContainerUsage(TypedDict):
    """A kernel; sizes are in bytes, ``smp`` is processor cores, ``cpu_used`` seconds of a core."""

    id: str
    session_id: str
    container_id: str | None
    domain_name: str
    group_id: str
    group_name: str
    name: str
    access_key: str
    email: str
    agent: str | None
    cluster_mode: str
    smp: float
    cpu_allocated: float
    mem_allocated: int
    gpu_mem_allocated: int
    cpu_used: float
    mem_used: int
    io_read: int
    io_write: int
    disk_used: int
    slots: dict[str, str]
    device_type: list[str]
    nfs: list[str]
    image_name: str
    image_id: str
    used_time: str
    used_days: int | None
    created_at: str
    started_at: str
    terminated_at: str
    status: str
    status_info: str | None


class GroupUsageReport(TypedDict, total=False):
    """The sums of a group, and its kernels; without any field if there are none in a period."""

    g_id: str
    g_name: str
    domain_name: str
    g_smp: float
    g_cpu_allocated: float
    g_mem_allocated: int
    g_gpu_mem_allocated: int
    g_cpu_used: float
    g_mem_used: int
    g_io_read: int
    g_io_write: int
    g_disk_used: int
    g_device_type: list[str]
    g_slots: dict[str, str]
    g_slot_seconds: dict[str, str]
    c_count: int
    c_infos: list[ContainerUsage]


class Amount(TypedDict):
    value: float
    unit_hint: str


class UsageBin(TypedDict):
    """A quarter of an hour that begins at ``date``, in seconds since 1970."""

    date: float
    num_sessions: Amount
    cpu_allocated: Amount
    mem_allocated: Amount
    gpu_allocated: Amount
    io_read_bytes: Amount
    io_write_bytes: Amount
    disk_used: Amount


class UsageApi:
    """Reports the kernels that ran at any time in a period. Times are in UTC."""

    problems = OBJECT_PROBLEMS

    def __init__(self, usage: UsageService) -> None:
        self._usage = usage

    @route("GET", "/resource/usage/month", query=MonthQuery, reply=list[GroupUsageReport])
    async def month(self, call: Call[Nothing, MonthQuery]) -> list[dict[str, Any]]:
        """Report the usage of groups in a month, for administrators: sums, and the first 10,000 containers."""
        query = call.query
        group_ids = [GroupId(group_id) for group_id in query.group_ids or ()] or None
        usages = await self._usage.month_usage(caller_of(call), query.month, group_ids)
        return await asyncio.to_thread(lambda: [group_report(usage) for usage in usages])

    @route("GET", "/resource/usage/period", query=PeriodQuery, reply=GroupUsageReport)
    async def period(self, call: Call[Nothing, PeriodQuery]) -> dict[str, Any]:
        """Report the usage of a group between two days, for administrators; an empty object if there is none."""
        query = call.query
        usage = await self._usage.period_usage(
            caller_of(call), GroupId(query.group_id), query.start_date, query.end_date
        )
        return await asyncio.to_thread(group_report, usage) if usage is not None else {}

    @route("GET", "/resource/stats/user/month", reply=list[UsageBin])
    async def own_statistics(self, call: Call) -> list[dict[str, Any]]:
        """Report the usage of the caller in each quarter of an hour of the last 30 days."""
        return await asyncio.to_thread(_timeline_report, await self._usage.own_timeline(caller_of(call)))

    @route("GET", "/resource/stats/admin/month", reply=list[UsageBin])
    async def statistics(self, call: Call) -> list[dict[str, Any]]:
        """Report the usage of everybody, or of an administrator's domain, in the same form."""
        return await asyncio.to_thread(_timeline_report, await self._usage.timeline(caller_of(call)))


def _allocated_amounts(slots: ResourceSlot, prefix: str = "") -> dict[str, Any]:
    """Returns the allocated amounts; ``smp`` is processor cores."""
    return {
        f"{prefix}smp": _json_number(slots["cpu"]),
        f"{prefix}cpu_allocated": _json_number(slots["cpu"]),
        f"{prefix}mem_allocated": int(slots["mem"]),
        f"{prefix}gpu_mem_allocated": int(
            sum(amount for name, amount in slots.items() if name.endswith((".mem", ".memory")))
        ),
    }


def _used_amounts(metrics: Mapping[str, Decimal], prefix: str = "") -> dict[str, Any]:
    """Returns the used amounts: ``cpu_used`` in seconds of a core, the others in bytes."""
    used_amounts: dict[str, Any] = {f"{prefix}{name}": int(metrics.get(name, 0)) for name in METRICS}
    return {**used_amounts, f"{prefix}cpu_used": round(float(metrics.get("cpu_used", 0)) / _MS_PER_S, 3)}


def group_report(usage: GroupUsage) -> dict[str, Any]:
    return {
        "g_id": str(usage.group_id),
        "g_name": usage.group_name,
        "domain_name": usage.domain_name,
        **_allocated_amounts(usage.slots, "g_"),
        **_used_amounts(usage.metrics, "g_"),
        "g_device_type": usage.device_types,
        "g_slots": usage.slots.to_json(),
        "g_slot_seconds": {name: format_quantity(amount) for name, amount in sorted(usage.slot_seconds.items())},
        "c_count": usage.count,
        "c_infos": [_container_report(kernel) for kernel in usage.kernels],
    }


_KERNEL_ATTRIBUTES = (
    *("container_id", "domain_name", "group_name", "name", "access_key", "email", "agent", "status_info"),
    "cluster_mode",
)


def _container_report(kernel: UsedKernel) -> dict[str, Any]:
    """Converts a kernel to its item in a usage report.

    ``used_days`` counts begun days. ``created_at`` and ``terminated_at`` are never null, since published clients
    print them.
    """
    ended_at = kernel.terminated_at
    used_time = (ended_at - kernel.started_at) if ended_at is not None else None
    return {
        "id": str(kernel.kernel_id),
        "session_id": str(kernel.session_id),
        "group_id": str(kernel.group_id),
        **{name: getattr(kernel, name) for name in _KERNEL_ATTRIBUTES},
        **_allocated_amounts(kernel.slots),
        **_used_amounts({name: kernel.metric(*metric_key) for name, metric_key in METRICS.items()}),
        "slots": kernel.slots.to_json(),
        "device_type": sorted({name.partition(".")[0] for name in kernel.devices}),
        "nfs": list(kernel.mounts),
        "image_name": split_image(kernel.image)[1],
        "image_id": kernel.image,
        "used_time": str(used_time) if used_time is not None else "",
        "used_days": used_time.days + 1 if used_time is not None else None,
        "created_at": kernel.created_at.isoformat(),
        "started_at": kernel.started_at.isoformat(),
        "terminated_at": ended_at.isoformat() if ended_at is not None else "",
        "status": kernel.status.value,
    }


_SERIES: Sequence[tuple[str, str, str]] = (
    ("num_sessions", "num_sessions", "count"),
    ("cpu_allocated", "cpu", "count"),
    ("mem_allocated", "mem", "bytes"),
    ("gpu_allocated", "devices", "count"),
    ("io_read_bytes", "io_read", "bytes"),
    ("io_write_bytes", "io_write", "bytes"),
    ("disk_used", "disk_used", "bytes"),
)
"""Published name, name in the timeline, and unit."""


def _timeline_report(timeline: Timeline) -> list[dict[str, Any]]:
    return [
        {
            "date": bin_start.timestamp(),
            **{
                name: {"value": _json_number(bin_values[value_key]), "unit_hint": unit_hint}
                for name, value_key, unit_hint in _SERIES
            },
        }
        for bin_start, bin_values in timeline.bins()
    ]


def _json_number(amount: Decimal) -> int | float:
    return int(amount) if amount == amount.to_integral_value() else float(amount)
