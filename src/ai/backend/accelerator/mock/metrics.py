"""Computes scripted metrics from the time alone, so that tests and demonstrations see the same curves."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from ai.backend.common.ids import DeviceId
from ai.backend.plugin.accelerator import Measurement

PERIOD_S = 60.0
_STATS = frozenset({"avg", "max"})
Level = Annotated[float, Field(ge=0)]


class Script(BaseModel):
    """Describes the values of a simulated metric over Unix time: a constant, a ramp, a sine, or a list in turn.

    A number is short for a constant, and a list for a list of values.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    kind: Literal["constant", "ramp", "sine", "list"]
    low: Level = Field(default=0.0, description="Lowest value of ramp and sine.")
    high: Level = Field(default=100.0, description="Highest value of ramp and sine.")
    period: float = Field(default=PERIOD_S, gt=0, description="Seconds of one ramp, one sine, or one pass of the list.")
    values: tuple[Level, ...] = Field(default=(), description="Of constant (one) and list.")

    @model_validator(mode="before")
    @classmethod
    def _expand_shorthand(cls, data: Any) -> Any:
        if isinstance(data, int | float) and not isinstance(data, bool):
            return {"kind": "constant", "values": (data,)}
        if isinstance(data, list | tuple):
            return {"kind": "list", "values": data}
        return data

    @model_validator(mode="after")
    def _check_complete(self) -> Self:
        if self.kind in ("constant", "list") and not self.values:
            raise ValueError(f"values: a {self.kind} needs some")
        if self.high < self.low:
            raise ValueError("high: less than low")
        return self

    def value_at(self, unix_time: float) -> float:
        """Returns the curve's value at a Unix time."""
        phase = unix_time / self.period % 1.0
        match self.kind:
            case "ramp":
                return self.low + (self.high - self.low) * phase
            case "sine":
                return self.low + (self.high - self.low) * (1 + math.sin(2 * math.pi * phase)) / 2
            case _:
                return self.values[min(int(phase * len(self.values)), len(self.values) - 1)]

    @property
    def highest_value(self) -> float:
        """Returns the highest value that the script reaches."""
        return max(self.values) if self.values else self.high


def simulated_load(unix_time: float, rank: int, device_count: int) -> float:
    """Returns a device's simulated load from 0 to 1, a wave of one minute. Each device's wave is later than the one
    before.
    """
    phase = (unix_time / PERIOD_S + rank / max(1, device_count)) % 1.0
    return 1.0 - abs(2.0 * phase - 1.0)


def simulated_readings(
    device_load: float, memory: float, scripts: Mapping[Any, Script], unix_time: float
) -> dict[str, float]:
    """Returns the simulated memory, utilisation, power and temperature of a device.

    Each value comes from its script, or from the device's load if it has no script.
    """
    result = {
        "mem": device_load * memory * 0.9,
        "util": device_load * 100.0,
        "power": 30.0 + device_load * 220.0,
        "temperature": 35.0 + device_load * 45.0,
    }
    result |= {name: script.value_at(unix_time) for name, script in scripts.items()}
    return {**result, "mem": min(result["mem"], memory), "util": min(result["util"], 100.0)}


def device_measurements(
    prefix: str, device_id: DeviceId, values: Mapping[str, float], memory: float, scripts: Mapping[Any, Script]
) -> list[Measurement]:
    """Returns the four metrics of one device. If a script exceeds the usual limit of power or temperature, the limit is
    raised.
    """
    limit_of_metric = {"power": 300.0, "temperature": 95.0}
    limit_of_metric |= {
        name: max(limit, scripts[name].highest_value) for name, limit in limit_of_metric.items() if name in scripts
    }
    metrics = (
        ("mem", "bytes", memory),
        ("util", "percent", 100.0),
        ("power", "watt", limit_of_metric["power"]),
        ("temperature", "celsius", limit_of_metric["temperature"]),
    )
    return [
        Measurement(
            key=f"{prefix}_{key}",
            value=values[key],
            unit_hint=unit,
            capacity=capacity,
            stats=_STATS,
            device_id=device_id,
        )
        for key, unit, capacity in metrics
    ]


def usage_measurements(prefix: str, parts: Sequence[tuple[Mapping[str, float], float, Decimal]]) -> list[Measurement]:
    """Returns the memory and the utilisation of a workload over its devices.

    ``parts`` are (readings of a device, its memory, the held share).
    """
    if not parts:
        return []
    memory_capacity = sum(device_memory * float(share) for _, device_memory, share in parts)
    used_bytes = sum(values["mem"] * float(share) for values, _, share in parts)
    used_percent = sum(values["util"] * float(share) for values, _, share in parts)
    full_percent = sum(float(share) for _, _, share in parts) * 100.0
    return [
        Measurement(key=f"{prefix}_mem", value=used_bytes, unit_hint="bytes", capacity=memory_capacity, stats=_STATS),
        Measurement(key=f"{prefix}_util", value=used_percent, unit_hint="percent", capacity=full_percent, stats=_STATS),
    ]
