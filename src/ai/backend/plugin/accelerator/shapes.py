"""Defines the values that the agent and the host of an accelerator plugin exchange."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from typing import Any, get_args, get_origin

import msgspec

from ai.backend.common.devices import AllocMapSpec, ComputeDevice, DeviceAllocation, SlotDisplay, VariantNamespace
from ai.backend.common.ids import DeviceId, KernelId, SlotName
from ai.backend.plugin.accelerator import (
    AttachedDevice,
    DeviceHealthChange,
    LifecycleCause,
    Measurement,
    NodeInfo,
    PartitionProfile,
    PluginCapabilities,
    StatContext,
    Workload,
    WorkloadConfig,
    WorkloadImage,
)

MAX_FRAME = 16 << 20
MAX_TEXT = 4096
"""Longest text that a host says of a failure, in characters."""


class InvalidResponse(Exception):
    """Raised when the answer of a plugin's method is invalid.

    The message names the field; the caller adds the method.
    """


class KeptState(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """Holds the managed state of a lifecycle hook, encoded as JSON, with its version."""

    data: bytes
    version: int


class LoadRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Selects the plugin that a host loads.

    ``protocols`` are the versions of the protocol that the agent speaks. ``reference`` is the plugin's module or, of an
    executable, its path; ``path`` is where modules are imported from.
    """

    protocols: tuple[int, ...]
    reference: str
    path: tuple[str, ...] = ()


class Hello(msgspec.Struct, frozen=True, kw_only=True):
    """Describes a plugin to the agent, so that the agent need not import the plugin.

    ``protocol`` is the version of the protocol, one of those that the agent speaks, by which the host answers.
    ``powers`` are the optional powers that the plugin has, each a set flag of ``capabilities``. ``options_schema`` is
    the JSON Schema (2020-12), of an object and at most 64 KiB, of the options that a session may give to the plugin;
    None: none.
    """

    protocol: int
    key: str
    version: str
    verified_on: str | None
    key_is_slot_prefix: bool
    capabilities: PluginCapabilities
    powers: tuple[str, ...]
    options_schema: dict[str, Any] | None = None


class Ready(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the properties of a plugin that stay the same once it is initialised."""

    spec: AllocMapSpec | None


class HookCall(msgspec.Struct, frozen=True, kw_only=True):
    """Holds one method call of a lifecycle hook, with everything that constructs the hook."""

    method: str
    workload: Workload
    device_alloc: DeviceAllocation
    cause: LifecycleCause
    attempt: int
    deadline_s: float
    state: KeptState
    previous_allocation: DeviceAllocation | None
    image: WorkloadImage | None = None
    cluster_role: str = "main"
    cluster_rank: int = 0
    cluster_size: int = 1
    end_reason: str = ""
    is_forced: bool = False
    is_diagnostic: bool = False
    options: dict[str, Any] = {}


@dataclass(frozen=True, slots=True)
class ResponseShape:
    """Holds the types of a method's arguments (as one tuple) and of its answer."""

    arguments: Any
    result: Any


_NO_ARGUMENTS = tuple[()]
_ONE_DEVICE = tuple[DeviceId]
PLUGIN_CALLS: Mapping[str, ResponseShape] = {
    "list_devices": ResponseShape(_NO_ARGUMENTS, tuple[ComputeDevice, ...]),
    "configurable_slots": ResponseShape(_NO_ARGUMENTS, tuple[SlotDisplay, ...]),
    "available_slots": ResponseShape(_NO_ARGUMENTS, dict[SlotName, Decimal]),
    "variant_namespaces": ResponseShape(_NO_ARGUMENTS, tuple[VariantNamespace, ...]),
    "alloc_to_devices": ResponseShape(tuple[DeviceAllocation], tuple[AttachedDevice, ...]),
    "gather_node_metrics": ResponseShape(tuple[StatContext], tuple[Measurement, ...]),
    "gather_workload_metrics": ResponseShape(
        tuple[StatContext, tuple[KernelId, ...]], dict[KernelId, tuple[Measurement, ...]]
    ),
    "gather_process_metrics": ResponseShape(
        tuple[StatContext, dict[int, KernelId]], dict[int, tuple[Measurement, ...]]
    ),
    "get_node_info": ResponseShape(_NO_ARGUMENTS, NodeInfo),
}
POWER_CALLS: Mapping[str, Mapping[str, ResponseShape]] = {
    "partitionable": {
        "partition_profiles": ResponseShape(_ONE_DEVICE, tuple[PartitionProfile, ...]),
        "create_partition": ResponseShape(tuple[DeviceId, str], DeviceId),
        "destroy_partition": ResponseShape(_ONE_DEVICE, None),
    },
    "programmable": {
        "program": ResponseShape(tuple[DeviceId, str], None),
        "programmed_image": ResponseShape(_ONE_DEVICE, str | None),
    },
    "power_controllable": {
        call_name: ResponseShape(_ONE_DEVICE, None) for call_name in ("power_on", "power_off", "reset")
    },
    "attachable": {
        "attachable_devices": ResponseShape(_NO_ARGUMENTS, tuple[DeviceId, ...]),
        "attach": ResponseShape(_ONE_DEVICE, None),
        "detach": ResponseShape(_ONE_DEVICE, None),
    },
    "cdi_provider": {"cdi_spec": ResponseShape(_NO_ARGUMENTS, dict[str, Any])},
}
HOST_CALLS: Mapping[str, ResponseShape] = {
    "load": ResponseShape(tuple[LoadRequest], Hello),
    "make": ResponseShape(tuple[dict[str, Any]], None),
    "init": ResponseShape(_NO_ARGUMENTS, Ready),
    "cleanup": ResponseShape(_NO_ARGUMENTS, None),
    "create_alloc_map": ResponseShape(_NO_ARGUMENTS, None),
    "hook": ResponseShape(tuple[HookCall], WorkloadConfig | None),
    "watch_health": ResponseShape(_NO_ARGUMENTS, DeviceHealthChange),
}
"""The calls to a host that are not simply a method of the plugin."""
DIRECT_CALLS: Mapping[str, ResponseShape] = {
    **PLUGIN_CALLS,
    **{call_name: shape for calls in POWER_CALLS.values() for call_name, shape in calls.items()},
}
SHAPES: Mapping[str, ResponseShape] = {**DIRECT_CALLS, **HOST_CALLS}


def write_answer(method: str, answer: Any) -> bytes:
    """Encodes a method's answer. Raises InvalidResponse: foreign objects, inexact quantities, or too large."""
    expected_collection = _expected_collection(method)
    if expected_collection and (isinstance(answer, str | bytes) or not isinstance(answer, expected_collection[0])):
        raise InvalidResponse(f"is a {type(answer).__name__}; {expected_collection[1]} is expected")
    try:
        if method == "list_devices":
            _require_exact(
                (value, f"[{item_number}].slots")
                for item_number, answer_item in enumerate(answer)
                for device_slot in answer_item.slots
                for value in (device_slot.amount, device_slot.quantum)
            )
        elif method == "available_slots":
            _require_exact((value, f"[{slot!r:.80}]") for slot, value in answer.items())
        answer_bytes = msgspec.msgpack.encode(answer)
    except InvalidResponse:
        raise
    except Exception as e:  # noqa: BLE001  # whatever the objects of a plugin do when they are looked at
        raise InvalidResponse(f"cannot be read: {type(e).__name__}: {e}"[:MAX_TEXT]) from None
    if len(answer_bytes) > MAX_FRAME - 1024:
        raise InvalidResponse(f"is {len(answer_bytes) >> 20} MiB large; {MAX_FRAME >> 20} MiB are allowed")
    return answer_bytes


@cache
def _expected_collection(method: str) -> tuple[type, str] | None:
    """Returns the type (Sequence or Mapping) and the description of the collection that a plugin's method returns.

    Returns None for a method that returns another value.
    """
    result = SHAPES[method].result if method in SHAPES else None
    collection_type, arguments = (
        get_origin(result),
        [getattr(item_type, "__name__", str(item_type)) for item_type in get_args(result)],
    )
    if collection_type is tuple and method in DIRECT_CALLS:
        return Sequence, f"a sequence of {arguments[0]}"
    if collection_type is dict and method in DIRECT_CALLS:
        return Mapping, f"a mapping of {arguments[0]} to {arguments[1]}"
    return None


def _require_exact(described_quantities: Any) -> None:
    for value, description in described_quantities:
        if not isinstance(value, Decimal):
            raise InvalidResponse(f"{description} is the {type(value).__name__} {value!r:.40}; quantities are Decimal")


@cache
def _decoder_of(method: str) -> msgspec.msgpack.Decoder[Any]:
    return msgspec.msgpack.Decoder(SHAPES[method].result)


def read_answer(method: str, answer_bytes: bytes) -> Any:
    """Decodes the answer of a plugin's method. Raises InvalidResponse, naming the place of a wrong type."""
    try:
        return _decoder_of(method).decode(answer_bytes)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as e:
        raise InvalidResponse(str(e).replace("`$", "`")[:MAX_TEXT]) from None


def normalized(method: str, answer: Any) -> Any:
    """Returns a plugin's answer as it would be after encoding by a host: plain values of the declared types.

    Raises InvalidResponse.
    """
    return read_answer(method, write_answer(method, answer))
