"""What travels between an agent and a plugin's host: frames, and the shape of every call.

A frame is a big-endian length of four bytes and a msgpack body. Arguments and answers are bytes inside of it, so that
each side can read them by the shape of their method. Nothing is ever pickled.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import msgspec

from ai.backend.common.devices import (
    AllocMapSpec,
    ComputeDevice,
    DeviceAllocation,
    SlotDisplay,
    VariantNamespace,
)
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
)

MAX_FRAME = 16 << 20
MAX_TEXT = 4096
"""Longest text that a host says of a failure, in characters."""


class BadAnswer(Exception):
    """A plugin's answer cannot be used. The message names the field; the caller adds the method."""


def told(error: BaseException) -> str:
    """What an error says, as text that can travel, whatever its class does and whatever characters are in it."""
    try:
        text = str(error)
    except Exception:  # noqa: BLE001  # a plugin's own class
        return "it cannot say what"
    return text[:MAX_TEXT].encode(errors="replace").decode()


# ---- frames


class Frame(msgspec.Struct, frozen=True, kw_only=True, array_like=True, tag=True):
    """``id`` is chosen by the agent; every frame about one call has the same."""

    id: int


class Call(Frame, frozen=True, kw_only=True, array_like=True):
    """Agent to host. ``deadline_s`` 0: none, the call is a stream of items."""

    method: str
    arguments: bytes
    deadline_s: float


class Cancel(Frame, frozen=True, kw_only=True, array_like=True):
    """Agent to host: nobody waits for this call any more."""


class KeptState(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """A managed state as JSON, since that is how it is kept."""

    data: bytes
    version: int


class Answer(Frame, frozen=True, kw_only=True, array_like=True):
    """Host to agent: the call has returned. ``state`` is there after a hook."""

    result: bytes
    state: KeptState | None = None


class Failure(Frame, frozen=True, kw_only=True, array_like=True):
    """Host to agent: the call has raised.

    ``kind`` is ``backend`` (``name`` is the code of a BackendError), ``deferred`` (TerminationDeferred), ``deadline``,
    ``nonsense`` (a BadAnswer) or ``other`` (``name`` is the exception's class).
    """

    kind: str
    name: str
    message: str
    data: bytes = b"\x80"
    trace: str = ""
    state: KeptState | None = None


class Item(Frame, frozen=True, kw_only=True, array_like=True):
    """Host to agent: one more item of a stream."""

    value: bytes


class Save(Frame, frozen=True, kw_only=True, array_like=True):
    """Host to agent: keep the state of this hook call now."""

    state: KeptState


class Saved(Frame, frozen=True, kw_only=True, array_like=True):
    """Agent to host: it is kept, or why not."""

    error: str = ""


ToHost = Call | Cancel | Saved
ToAgent = Answer | Failure | Item | Save

# ---- calls


class Hello(msgspec.Struct, frozen=True, kw_only=True):
    """What the agent wants to know of a plugin without importing it."""

    key: str
    version: str
    verified_on: str | None
    key_is_slot_prefix: bool
    capabilities: PluginCapabilities
    powers: tuple[str, ...]


class Ready(msgspec.Struct, frozen=True, kw_only=True):
    """What stays the same once a plugin is initialised."""

    spec: AllocMapSpec | None


class HookCall(msgspec.Struct, frozen=True, kw_only=True):
    """One method of a lifecycle hook, with everything that the hook is made of."""

    method: str
    workload: Workload
    device_alloc: DeviceAllocation
    cause: LifecycleCause
    attempt: int
    deadline_s: float
    state: KeptState
    previous_allocation: DeviceAllocation | None


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """Choose devices for a request, given what is held of them (see :mod:`.choosing`)."""

    held: DeviceAllocation
    request: dict[SlotName, Decimal]
    numa_nodes: frozenset[int]
    eligible: frozenset[DeviceId] | None


@dataclass(frozen=True, slots=True)
class Shape:
    """Types of a method's arguments (as one tuple) and of its answer."""

    arguments: Any
    result: Any


_NONE = tuple[()]
_ONE_DEVICE = tuple[DeviceId]

PLUGIN_CALLS: Mapping[str, Shape] = {
    "list_devices": Shape(_NONE, tuple[ComputeDevice, ...]),
    "configurable_slots": Shape(_NONE, tuple[SlotDisplay, ...]),
    "available_slots": Shape(_NONE, dict[SlotName, Decimal]),
    "variant_namespaces": Shape(_NONE, tuple[VariantNamespace, ...]),
    "alloc_to_devices": Shape(tuple[DeviceAllocation], tuple[AttachedDevice, ...]),
    "gather_node_metrics": Shape(tuple[StatContext], tuple[Measurement, ...]),
    "gather_workload_metrics": Shape(tuple[StatContext, tuple[KernelId, ...]], dict[KernelId, tuple[Measurement, ...]]),
    "gather_process_metrics": Shape(tuple[StatContext, dict[int, KernelId]], dict[int, tuple[Measurement, ...]]),
    "get_node_info": Shape(_NONE, NodeInfo),
}
POWER_CALLS: Mapping[str, Mapping[str, Shape]] = {
    "partitionable": {
        "partition_profiles": Shape(_ONE_DEVICE, tuple[PartitionProfile, ...]),
        "create_partition": Shape(tuple[DeviceId, str], DeviceId),
        "destroy_partition": Shape(_ONE_DEVICE, None),
    },
    "programmable": {
        "program": Shape(tuple[DeviceId, str], None),
        "programmed_image": Shape(_ONE_DEVICE, str | None),
    },
    "power_controllable": {name: Shape(_ONE_DEVICE, None) for name in ("power_on", "power_off", "reset")},
    "attachable": {
        "attachable_devices": Shape(_NONE, tuple[DeviceId, ...]),
        "attach": Shape(_ONE_DEVICE, None),
        "detach": Shape(_ONE_DEVICE, None),
    },
    "cdi_provider": {"cdi_spec": Shape(_NONE, dict[str, Any])},
}
HOST_CALLS: Mapping[str, Shape] = {
    "load": Shape(tuple[str, tuple[str, ...]], Hello),
    "make": Shape(tuple[dict[str, Any]], None),
    "init": Shape(_NONE, Ready),
    "cleanup": Shape(_NONE, None),
    "create_alloc_map": Shape(_NONE, None),
    "hook": Shape(tuple[HookCall], WorkloadConfig | None),
    "watch_health": Shape(_NONE, DeviceHealthChange),
}
"""What is not simply a method of the plugin."""

DIRECT: Mapping[str, Shape] = {**PLUGIN_CALLS, **{n: s for calls in POWER_CALLS.values() for n, s in calls.items()}}
SHAPES: Mapping[str, Shape] = {**DIRECT, **HOST_CALLS}


def write_answer(method: str, answer: Any) -> bytes:
    """Raises BadAnswer for what cannot travel: foreign objects, inexact quantities, too much."""
    try:
        if method == "list_devices":
            _require_exact(
                (q, f"[{i}].slots") for i, d in enumerate(answer) for s in d.slots for q in (s.amount, s.quantum)
            )
        elif method == "available_slots":
            _require_exact((q, f"[{slot!r:.80}]") for slot, q in answer.items())
        data = msgspec.msgpack.encode(answer)
    except BadAnswer:
        raise
    except Exception as e:  # noqa: BLE001  # whatever the objects of a plugin do when they are looked at
        raise BadAnswer(f"cannot be read: {type(e).__name__}: {e}"[:MAX_TEXT]) from None
    if len(data) > MAX_FRAME - 1024:
        raise BadAnswer(f"is {len(data) >> 20} MiB large; {MAX_FRAME >> 20} MiB are allowed")
    return data


def _require_exact(quantities: Any) -> None:
    for value, where in quantities:
        if not isinstance(value, Decimal):
            raise BadAnswer(f"{where} is the {type(value).__name__} {value!r:.40}; quantities are Decimal")


def read_answer(method: str, data: bytes) -> Any:
    """Raises BadAnswer naming the place of what has the wrong type."""
    try:
        return msgspec.msgpack.decode(data, type=SHAPES[method].result)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as e:
        raise BadAnswer(str(e).replace("`$", "`")[:MAX_TEXT]) from None


def settled(method: str, answer: Any) -> Any:
    """An answer as it would have come through a host: plain values of the declared types. Raises BadAnswer."""
    return read_answer(method, write_answer(method, answer))


# ---- streams of frames

_LENGTH = struct.Struct(">I")
_to_host = msgspec.msgpack.Decoder(ToHost)
_to_agent = msgspec.msgpack.Decoder(ToAgent)


def pack(body: Any) -> bytes:
    data = msgspec.msgpack.encode(body)
    return _LENGTH.pack(len(data)) + data


def length_of(head: bytes) -> int:
    """Raises BadAnswer for a frame that is too large."""
    (length,) = _LENGTH.unpack(head)
    if length > MAX_FRAME:
        raise BadAnswer(f"a frame of {length} bytes")
    return int(length)


async def _read(reader: asyncio.StreamReader) -> bytes | None:
    try:
        return await reader.readexactly(length_of(await reader.readexactly(_LENGTH.size)))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None


async def read_to_host(reader: asyncio.StreamReader) -> ToHost | None:
    """The next frame; None at the end. Raises BadAnswer or MsgspecError for what is none."""
    data = await _read(reader)
    return None if data is None else _to_host.decode(data)


async def read_to_agent(reader: asyncio.StreamReader) -> ToAgent | None:
    """As :func:`read_to_host`."""
    data = await _read(reader)
    return None if data is None else _to_agent.decode(data)
