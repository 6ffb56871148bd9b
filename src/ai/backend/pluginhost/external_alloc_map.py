"""Requests devices from a plugin's own alloc map in its host, and records in the agent which devices are allocated
(decision 0057).

The agent asks synchronously, on a socket and a thread of the map's own. Every question has what is held and what is
requested; the map begins fresh each time, so that a host that dies takes no accounts with it.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any

import msgspec

from ai.backend.common.devices import ComputeDevice, DeviceAllocation, DeviceHealth
from ai.backend.common.errors import (
    BackendError,
    InvalidAllocation,
    InvalidQuantity,
    PluginError,
    ResourceError,
    from_wire,
)
from ai.backend.common.ids import DeviceId, SlotName
from ai.backend.core.allocation.alloc_map import NO_HINT, AbstractAllocMap, AffinityHint
from ai.backend.core.allocation.stock_maps import DiscreteAllocMap
from ai.backend.plugin.accelerator.shapes import MAX_TEXT, InvalidResponse
from ai.backend.pluginhost.protocol import Choice, length_of, pack, safe_message

CHOICE_DEADLINE_S = 1.0

Allocate = Callable[
    [DeviceAllocation, Mapping[SlotName, Decimal], AffinityHint, frozenset[DeviceId] | None], DeviceAllocation
]
"""Chooses the devices for a request: ``(held, request, hint, eligible)`` -> the devices."""


class _Chosen(msgspec.Struct, frozen=True, kw_only=True):
    allocation: DeviceAllocation | None = None
    code: str = ""
    message: str = ""
    data: dict[str, Any] = {}


def allocator(alloc_map: AbstractAllocMap) -> Allocate:
    """Returns a function that chooses devices by an alloc map with nothing allocated."""
    fresh = alloc_map.snapshot()

    def choose(
        held: DeviceAllocation,
        request: Mapping[SlotName, Decimal],
        hint: AffinityHint,
        eligible: frozenset[DeviceId] | None,
    ) -> DeviceAllocation:
        alloc_map.restore(fresh)
        if held.slots:
            alloc_map.apply(held)
        return alloc_map.allocate(request, hint=hint, eligible=eligible)

    return choose


def serve_choices(sock: socket.socket, present: Callable[[], Allocate]) -> None:
    """Answers requests for devices from the plugin's alloc map, until the agent closes its end. Runs in a thread."""
    decoder = msgspec.msgpack.Decoder(Choice)
    while (data := _receive_frame(sock)) is not None:
        request = decoder.decode(data)
        try:
            hint = AffinityHint(numa_nodes=request.numa_nodes)
            chosen: Any = present()(request.held, request.request, hint, request.eligible)
            if not isinstance(chosen, DeviceAllocation):
                raise PluginError(f"returned a {type(chosen).__name__} instead of a DeviceAllocation")
            frame = pack(_Chosen(allocation=chosen))
        except BackendError as e:
            frame = pack(_Chosen(code=str(e.code), message=safe_message(e)))
        except BaseException as e:  # noqa: BLE001  # a plugin may raise anything
            frame = pack(_Chosen(code=PluginError.code, message=f"{type(e).__name__}: {safe_message(e)}"))
        try:
            sock.sendall(frame)
        except OSError:
            return


def ask(sock: socket.socket, choice: Choice) -> DeviceAllocation:
    """Sends a host a request for devices, and returns the devices that the host chose. Waits at most
    :data:`CHOICE_DEADLINE_S`.

    Raises:
        TimeoutError: no answer in time; the socket is of no use any more.
        PluginError: the host is gone, or answers what cannot be read.
        BackendError: what the map says.
    """
    deadline = time.monotonic() + CHOICE_DEADLINE_S
    sock.settimeout(CHOICE_DEADLINE_S)
    try:
        sock.sendall(pack(choice))
        data = _receive_frame(sock, deadline)
        if data is None:
            raise PluginError("its host process is gone")
        chosen = msgspec.msgpack.decode(data, type=_Chosen)
    except TimeoutError:
        raise
    except (OSError, InvalidResponse, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as e:
        raise PluginError(f"its alloc map cannot be asked: {e}") from None
    if chosen.allocation is None:
        raise from_wire(chosen.code, chosen.message, chosen.data)
    return chosen.allocation


def _receive_frame(sock: socket.socket, deadline: float | None = None) -> bytes | None:
    """Reads a frame from the socket; None at the end. Raises TimeoutError if it is incomplete at the deadline."""
    head = _receive_bytes(sock, 4, deadline)
    return None if head is None else _receive_bytes(sock, length_of(head), deadline)


def _receive_bytes(sock: socket.socket, size_bytes: int, deadline: float | None) -> bytes | None:
    received = bytearray()
    while len(received) < size_bytes:
        if deadline is not None:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise TimeoutError
            sock.settimeout(left_s)
        piece = sock.recv(size_bytes - len(received))
        if not piece:
            return None
        received += piece
    return bytes(received)


_UNUSABLE_MAP = "the plugin's alloc map cannot be used: "


class ExternalAllocMap(AbstractAllocMap):
    """Lets ``choose`` ask a plugin's own map for devices; records and checks what is allocated, so that an answer that
    was not requested, or of unknown or taken devices, is refused, and held devices are known whatever becomes of the
    plugin. ``complain`` gets the fault of each answer, None for a good one."""

    def __init__(
        self,
        devices: Sequence[ComputeDevice],
        choose: Allocate,
        *,
        complain: Callable[[str | None], None] = lambda _: None,
    ) -> None:
        self._books = DiscreteAllocMap(devices)
        self._healthy = frozenset(device.device_id for device in devices if device.health is DeviceHealth.HEALTHY)
        self.choose = choose
        self._complain = complain
        self._held: dict[SlotName, dict[DeviceId, Decimal]] = {}

    @property
    def totals(self) -> Mapping[SlotName, Decimal]:
        return self._books.totals

    def available(self) -> Mapping[SlotName, Decimal]:
        return self._books.available()

    def allocate(
        self,
        request: Mapping[SlotName, Decimal],
        *,
        hint: AffinityHint = NO_HINT,
        eligible: frozenset[DeviceId] | None = None,
    ) -> DeviceAllocation:
        requested = {slot: quantity for slot, quantity in request.items() if quantity}
        if not requested:
            return DeviceAllocation()
        self._check_possible(requested)
        held = DeviceAllocation(slots={slot: dict(devices) for slot, devices in self._held.items()})
        candidates = self._healthy if eligible is None else self._healthy & eligible
        try:
            chosen = self.choose(held, requested, hint, candidates)
            self._check(chosen, requested, candidates)
            self.apply(chosen)
        except InvalidAllocation as e:
            raise self._refused(e.message) from None
        except (ResourceError, InvalidQuantity):
            raise
        except InvalidResponse as e:
            raise self._refused(str(e)) from None
        except Exception as e:
            text = e.message if isinstance(e, BackendError) else f"{type(e).__name__}: {e}"
            raise self._refused(f"failed: {text}") from e
        self._complain(None)
        return chosen

    def _refused(self, reason: str) -> InvalidAllocation:
        reason = reason.removeprefix(_UNUSABLE_MAP)  # of a map behind another one
        self._complain(f"allocate of its alloc map: {reason}"[:MAX_TEXT])
        return InvalidAllocation(f"{_UNUSABLE_MAP}{reason}")

    def _check_possible(self, requested: Mapping[SlotName, Decimal]) -> None:
        """Checks a request as stock alloc maps do. Raises their error if no state of the devices can serve it."""
        before = self._books.snapshot()
        try:
            self._books.allocate(requested)
        finally:
            self._books.restore(before)

    @staticmethod
    def _check(chosen: DeviceAllocation, requested: Mapping[SlotName, Decimal], eligible: frozenset[DeviceId]) -> None:
        """Checks an allocation that the plugin chose. Raises InvalidResponse."""
        if not isinstance(chosen, DeviceAllocation):
            raise InvalidResponse(f"returned a {type(chosen).__name__} instead of a DeviceAllocation")
        for slot, quantity in requested.items():
            if chosen.total(slot) != quantity:
                raise InvalidResponse(f"gave {chosen.total(slot)} {slot} where {quantity} were asked for")
        if unknown_slots := sorted(set(chosen.slots) - set(requested)):
            raise InvalidResponse(f"gave {unknown_slots[0]}, which was not asked for")
        if ineligible_ids := sorted(chosen.device_ids() - eligible):
            raise InvalidResponse(f"gave the device {ineligible_ids[0]!r:.64}, which was not to be given")

    def apply(self, allocation: DeviceAllocation) -> None:
        self._books.apply(allocation)
        self._record(allocation, 1)

    def free(self, allocation: DeviceAllocation) -> None:
        self._books.free(allocation)
        self._record(allocation, -1)

    def _record(self, allocation: DeviceAllocation, sign: int) -> None:
        for slot, per_device in allocation.slots.items():
            held = self._held.setdefault(slot, {})
            for device, quantity in per_device.items():
                held[device] = held.get(device, Decimal(0)) + sign * quantity
                if not held[device]:
                    del held[device]
            if not held:
                del self._held[slot]

    def snapshot(self) -> Any:
        return self._books.snapshot(), {slot: dict(devices) for slot, devices in self._held.items()}

    def restore(self, snapshot: Any) -> None:
        slot_amounts, held = snapshot
        self._books.restore(slot_amounts)
        self._held = {slot: dict(devices) for slot, devices in held.items()}
