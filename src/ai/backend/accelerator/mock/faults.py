"""Makes calls of the plugin fail on purpose, as faults declare it."""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from decimal import Decimal
from typing import Any, NoReturn, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, model_validator

from ai.backend.common.devices import ComputeDevice
from ai.backend.common.errors import CreationDeferred, CreationDenied
from ai.backend.common.ids import DeviceId, SlotName
from ai.backend.common.structs import replace
from ai.backend.plugin.accelerator import POWERS, Measurement, Mount, TerminationDeferred, WorkloadConfig

R = TypeVar("R")
HOOKS = ("pre_create", "post_create", "pre_terminate", "post_terminate")
PLUGIN_CALLS = (
    "init", "cleanup", "list_devices", "configurable_slots", "available_slots", "variant_namespaces",
    "create_alloc_map", "alloc_to_devices", "gather_node_metrics", "gather_workload_metrics", "get_node_info",
)  # fmt: skip
POWER_CALLS = tuple(
    sorted({name for power in POWERS.values() for name in vars(power) if not name.startswith("_")} - {"watch_health"})
)
CALLS = (*PLUGIN_CALLS, *HOOKS, *POWER_CALLS, "watch_health")
NOT_A_NUMBER = Decimal("NaN")


def _change_slots(change_slot: Callable[[Any], Any]) -> Callable[[Sequence[ComputeDevice]], list[ComputeDevice]]:
    return lambda devices: [
        replace(device, slots=tuple(change_slot(slot) for slot in device.slots)) for device in devices
    ]


def _with_value(value: float) -> Callable[[Sequence[Measurement]], list[Measurement]]:
    return lambda measurements: [replace(measurement, value=value) for measurement in measurements]


_ID_SUFFIXES = iter(range(1, 1 << 62))

ANSWER_CHANGES: Mapping[str, Mapping[str, Callable[[Any], Any]]] = {
    "duplicate-ids": {"list_devices": lambda devices: [*devices, *devices]},
    "changed-ids": {
        "list_devices": lambda devices: [
            replace(device, device_id=DeviceId(f"{device.device_id}.{id_suffix}"))
            for id_suffix in [next(_ID_SUFFIXES)]
            for device in devices
        ]
    },
    "unknown-slot": {
        "list_devices": _change_slots(lambda s: replace(s, slot_name=SlotName("no-such.slot"))),
        "available_slots": lambda slots: {**slots, SlotName("no-such.slot"): Decimal(1)},
    },
    "negative": {
        "list_devices": _change_slots(lambda s: replace(s, amount=Decimal(-1))),
        "available_slots": lambda slots: dict.fromkeys(slots, Decimal(-1)),
        "gather_node_metrics": _with_value(-1.0),
        "gather_workload_metrics": lambda by_kernel: {
            key: _with_value(-1.0)(measurements) for key, measurements in by_kernel.items()
        },
    },
    "nan": {
        "list_devices": _change_slots(lambda s: replace(s, amount=NOT_A_NUMBER)),
        "available_slots": lambda slots: dict.fromkeys(slots, NOT_A_NUMBER),
        "gather_node_metrics": _with_value(math.nan),
        "gather_workload_metrics": lambda by_kernel: {
            key: _with_value(math.nan)(measurements) for key, measurements in by_kernel.items()
        },
    },
    "too-much": {"available_slots": lambda slots: {name: 1000 + amount for name, amount in slots.items()}},
    "bad-config": {
        "pre_create": lambda _: WorkloadConfig(
            mounts=(Mount(source="relative", target="../escape"),), env_vars={"BAD NAME": "1", "X": "a\nb"}
        )
    },
    "conflict": {"pre_create": lambda _: WorkloadConfig(env_vars={"HOME": "/nowhere"})},
    "wrong-type": {call: lambda _: 7 for call in CALLS if call not in ("init", "cleanup", *HOOKS[1:])},
    "empty": {"list_devices": lambda _: [], "available_slots": lambda _: {}},
}
"""Maps each wrong behaviour to the calls that it falsifies, and each call to the function that changes the true
answer.
"""

_ALL_CALLS = frozenset(CALLS)
BEHAVIOURS: Mapping[str, frozenset[str]] = {
    "raise": _ALL_CALLS,
    "hang": _ALL_CALLS,
    "slow": _ALL_CALLS - {"watch_health"},
    "block": _ALL_CALLS,
    "exit": _ALL_CALLS,
    "deny": frozenset({"pre_create"}),
    "defer": frozenset({"pre_create", "pre_terminate"}),
    "end": frozenset({"watch_health"}),
    "unknown-device": frozenset({"watch_health"}),
    **{name: frozenset(calls_and_changes) - {"watch_health"} for name, calls_and_changes in ANSWER_CHANGES.items()},
}
"""Maps each behaviour to the calls that it applies to."""
NEEDS_ISOLATION = frozenset({"block", "exit"})


class Fault(BaseModel):
    """Declares a fault, an entry of ``[[faults]]``."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    call: str = Field(description="Method of the plugin, a power or a hook.")
    behaviour: str = Field(description="What happens, see the table of behaviours.")
    message: str = Field(default="mocked", description="Text of what is raised.")
    after: int = Field(default=0, ge=0, description="Calls that go well before.")
    times: int | None = Field(default=None, ge=1, description="Calls that go wrong; default: all.")
    seconds: float = Field(default=1.0, ge=0, le=3600, description="Of slow and block; retry_after of defer.")
    device: str | None = Field(default=None, description="Only hook calls of workloads that hold this device.")

    @model_validator(mode="after")
    def _check_behaviour(self) -> Self:
        if self.call not in _ALL_CALLS:
            raise ValueError(f"call: there is no {self.call!r}; known are {', '.join(CALLS)}")
        if self.behaviour not in BEHAVIOURS:
            raise ValueError(f"behaviour: there is no {self.behaviour!r}; known are {', '.join(BEHAVIOURS)}")
        if self.call not in BEHAVIOURS[self.behaviour]:
            allowed_behaviours = ", ".join(behaviour for behaviour, calls in BEHAVIOURS.items() if self.call in calls)
            raise ValueError(f"behaviour: {self.call} cannot {self.behaviour}; it can {allowed_behaviours}")
        return self


class FaultSchedule:
    """Holds the declared faults of the mock plugin, each with its count of calls.

    ``isolated``: the plugin has a process of its own.
    """

    def __init__(self, *, isolated: bool) -> None:
        self._isolated = isolated
        self._faults: list[Fault] = []
        self._counts: list[int] = []

    def describe_refused_fault(self, faults: Sequence[Fault]) -> str | None:
        """Returns a description of the first fault that would harm the agent, or None if there is none."""
        refused_behaviours = [
            fault.behaviour for fault in faults if fault.behaviour in NEEDS_ISOLATION and not self._isolated
        ]
        if not refused_behaviours:
            return None
        return (
            f"faults: {refused_behaviours[0]} is only for a plugin in a process of its own; "
            "allow ai.backend.accelerator.mock.isolated instead of ai.backend.accelerator.mock"
        )

    def replace_all(self, faults: Sequence[Fault]) -> None:
        """Replaces all faults and resets their counts."""
        self._faults, self._counts = list(faults), [0] * len(faults)

    def take_fault(self, call: str, devices: Collection[str] = ()) -> Fault | None:
        """Returns the fault in force for a call, and counts the call."""
        for position, fault in enumerate(self._faults):
            if fault.call != call or (fault.device is not None and fault.device not in devices):
                continue
            self._counts[position] += 1
            past_calls = self._counts[position] - fault.after
            if past_calls > 0 and (fault.times is None or past_calls <= fault.times):
                return fault
        return None

    async def run_call(self, call: str, make: Callable[[], Awaitable[R]], devices: Collection[str] = ()) -> R:
        """Runs a call of the plugin, changed by the call's fault if there is one."""
        fault = self.take_fault(call, devices)
        if fault is None:
            return await make()
        if fault.behaviour in ANSWER_CHANGES:
            changed_answer: R = ANSWER_CHANGES[fault.behaviour][call](await make())
            return changed_answer
        await execute_fault(fault)
        return await make()


async def execute_fault(fault: Fault) -> None:
    """Executes a fault that delays, blocks, ends or fails a call. Other faults change the call's answer.

    Returns only for ``slow`` and ``block``. Raises CreationDenied, CreationDeferred, TerminationDeferred, RuntimeError:
    as the fault says.
    """
    match fault.behaviour:
        case "hang":
            await asyncio.Event().wait()
        case "slow":
            await asyncio.sleep(fault.seconds)
        case "block":
            time.sleep(fault.seconds)  # noqa: ASYNC251  # blocking the thread is what is asked for
        case "exit":
            os._exit(70)
        case _:
            _raise(fault)


def _raise(fault: Fault) -> NoReturn:
    match fault.behaviour, fault.call:
        case "deny", _:
            raise CreationDenied(fault.message)
        case "defer", "pre_create":
            raise CreationDeferred(fault.message, retry_after=fault.seconds)
        case "defer", _:
            raise TerminationDeferred(fault.message, retry_after=fault.seconds)
        case _:
            raise RuntimeError(fault.message)
