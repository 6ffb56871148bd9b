"""Scripted metrics: functions of the time alone, so that tests and demonstrations see the same curves."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal

from ai.backend.common.ids import DeviceId
from ai.backend.plugin.accelerator import Measurement

PERIOD_S = 60.0
_STATS = frozenset({"avg", "max"})


def load(at: float, rank: int, devices: int) -> float:
    """A triangle wave between 0 and 1 of a period of one minute; each device is a little behind the one before."""
    phase = (at / PERIOD_S + rank / max(1, devices)) % 1.0
    return 1.0 - abs(2.0 * phase - 1.0)


def of_device(prefix: str, device_id: DeviceId | None, at_load: float, memory: float) -> list[Measurement]:
    """The four metrics of one device, or of a node or workload as if it were one."""
    values = (
        ("mem", at_load * memory * 0.9, "bytes", memory),
        ("util", at_load * 100.0, "percent", 100.0),
        ("power", 30.0 + at_load * 220.0, "watt", 300.0),
        ("temperature", 35.0 + at_load * 45.0, "celsius", 95.0),
    )
    return [
        Measurement(
            key=f"{prefix}_{key}", value=value, unit_hint=unit, capacity=capacity, stats=_STATS, device_id=device_id
        )
        for key, value, unit, capacity in values
    ]


def of_parts(prefix: str, parts: Sequence[tuple[float, float, Decimal]]) -> list[Measurement]:
    """Memory and utilisation of a workload: ``parts`` are (load, memory, share of the device)."""
    if not parts:
        return []
    memory = sum(m * float(share) for _, m, share in parts)
    used = sum(at_load * m * float(share) * 0.9 for at_load, m, share in parts)
    util = sum(at_load * float(share) * 100.0 for at_load, _, share in parts)
    whole = sum(float(share) for _, _, share in parts) * 100.0
    return [
        Measurement(key=f"{prefix}_mem", value=used, unit_hint="bytes", capacity=memory, stats=_STATS),
        Measurement(key=f"{prefix}_util", value=util, unit_hint="percent", capacity=whole, stats=_STATS),
    ]
