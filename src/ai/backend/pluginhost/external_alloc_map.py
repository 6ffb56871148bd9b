"""Chooses devices by a plugin's own alloc map in the plugin's host, and records allocations in the agent.

See decision 0057. The agent asks synchronously, on a socket and a thread of the map's own. Every question has what is
held and what is requested; the map begins fresh each time, so that a host that dies takes no accounts with it.
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


class _ChoiceAnswer(msgspec.Struct, frozen=True, kw_only=True):
    allocation: DeviceAllocation | None = None
    code: str = ""
    message: str = ""
    data: dict[str, Any] = {}


def allocator(alloc_map: AbstractAllocMap) -> Allocate:
    """Returns a function that chooses devices by a plugin's alloc map, after setting the map to the given held devices.

    ``alloc_map`` must have nothing allocated.
    """
    empty_snapshot = alloc_map.snapshot()

    def choose(
        held_devices: DeviceAllocation,
        request: Mapping[SlotName, Decimal],
        hint: AffinityHint,
        eligible_ids: frozenset[DeviceId] | None,
    ) -> DeviceAllocation:
        alloc_map.restore(empty_snapshot)
        if held_devices.slots:
            alloc_map.apply(held_devices)
        return alloc_map.allocate(request, hint=hint, eligible=eligible_ids)

    return choose


def serve_choices(sock: socket.socket, current_allocator: Callable[[], Allocate]) -> None:
    """Answers requests for devices from the plugin's alloc map, until the agent closes its end. Runs in a thread."""
    decoder = msgspec.msgpack.Decoder(Choice)
    while (request_bytes := _receive_frame(sock)) is not None:
        request = decoder.decode(request_bytes)
        try:
            hint = AffinityHint(numa_nodes=request.numa_nodes)
            allocation: Any = current_allocator()(request.held, request.request, hint, request.eligible)
            if not isinstance(allocation, DeviceAllocation):
                raise PluginError(f"returned a {type(allocation).__name__} instead of a DeviceAllocation")
            answer_frame = pack(_ChoiceAnswer(allocation=allocation))
        except BackendError as e:
            answer_frame = pack(_ChoiceAnswer(code=str(e.code), message=safe_message(e)))
        except BaseException as e:  # noqa: BLE001  # a plugin may raise anything
            answer_frame = pack(_ChoiceAnswer(code=PluginError.code, message=f"{type(e).__name__}: {safe_message(e)}"))
        try:
            sock.sendall(answer_frame)
        except OSError:
            return


def ask(sock: socket.socket, choice: Choice) -> DeviceAllocation:
    """Sends a host a request for devices, and returns the devices that the host chose.

    Waits at most :data:`CHOICE_DEADLINE_S`.

    Raises:
        TimeoutError: no answer in time; the socket is of no use any more.
        PluginError: the host is gone, or answers what cannot be read.
        BackendError: what the map says.
    """
    deadline = time.monotonic() + CHOICE_DEADLINE_S
    sock.settimeout(CHOICE_DEADLINE_S)
    try:
        sock.sendall(pack(choice))
        answer_bytes = _receive_frame(sock, deadline)
        if answer_bytes is None:
            raise PluginError("its host process is gone")
        answer = msgspec.msgpack.decode(answer_bytes, type=_ChoiceAnswer)
    except TimeoutError:
        raise
    except (OSError, InvalidResponse, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as e:
        raise PluginError(f"its alloc map cannot be asked: {e}") from None
    if answer.allocation is None:
        raise from_wire(answer.code, answer.message, answer.data)
    return answer.allocation


def _receive_frame(sock: socket.socket, deadline: float | None = None) -> bytes | None:
    """Reads a frame from the socket; None at the end. Raises TimeoutError if it is incomplete at the deadline."""
    head = _receive_bytes(sock, 4, deadline)
    return None if head is None else _receive_bytes(sock, length_of(head), deadline)


def _receive_bytes(sock: socket.socket, size_bytes: int, deadline: float | None) -> bytes | None:
    received_bytes = bytearray()
    while len(received_bytes) < size_bytes:
        if deadline is not None:
            remaining_s = deadline - time.monotonic()
            if remaining_s <= 0:
                raise TimeoutError
            sock.settimeout(remaining_s)
        piece = sock.recv(size_bytes - len(received_bytes))
        if not piece:
            return None
        received_bytes += piece
    return bytes(received_bytes)


_UNUSABLE_MAP = "the plugin's alloc map cannot be used: "


class ExternalAllocMap(AbstractAllocMap):
    """An alloc map in the agent that has a plugin's own map choose the devices, and checks and records each choice.

    ``choose`` asks the plugin's map. An answer that was not requested, or of unknown or taken devices, is refused, and
    held devices are known whatever becomes of the plugin. ``complain`` gets the fault of each answer, None for a good
    one.
    """

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
        requested_amounts = {slot: quantity for slot, quantity in request.items() if quantity}
        if not requested_amounts:
            return DeviceAllocation()
        self._check_possible(requested_amounts)
        held_devices = DeviceAllocation(slots={slot: dict(devices) for slot, devices in self._held.items()})
        candidate_ids = self._healthy if eligible is None else self._healthy & eligible
        try:
            allocation = self.choose(held_devices, requested_amounts, hint, candidate_ids)
            self._check(allocation, requested_amounts, candidate_ids)
            self.apply(allocation)
        except InvalidAllocation as e:
            raise self._allocation_error(e.message) from None
        except (ResourceError, InvalidQuantity):
            raise
        except InvalidResponse as e:
            raise self._allocation_error(str(e)) from None
        except Exception as e:
            error_text = e.message if isinstance(e, BackendError) else f"{type(e).__name__}: {e}"
            raise self._allocation_error(f"failed: {error_text}") from e
        self._complain(None)
        return allocation

    def _allocation_error(self, reason: str) -> InvalidAllocation:
        reason = reason.removeprefix(_UNUSABLE_MAP)  # of a map behind another one
        self._complain(f"allocate of its alloc map: {reason}"[:MAX_TEXT])
        return InvalidAllocation(f"{_UNUSABLE_MAP}{reason}")

    def _check_possible(self, requested_amounts: Mapping[SlotName, Decimal]) -> None:
        """Raises the error of stock alloc maps for a request that the free devices cannot serve. Changes nothing."""
        snapshot = self._books.snapshot()
        try:
            self._books.allocate(requested_amounts)
        finally:
            self._books.restore(snapshot)

    @staticmethod
    def _check(
        allocation: DeviceAllocation, requested_amounts: Mapping[SlotName, Decimal], eligible_ids: frozenset[DeviceId]
    ) -> None:
        """Checks that an allocation gives exactly the requested amounts on eligible devices. Raises InvalidResponse."""
        if not isinstance(allocation, DeviceAllocation):
            raise InvalidResponse(f"returned a {type(allocation).__name__} instead of a DeviceAllocation")
        for slot, quantity in requested_amounts.items():
            if allocation.total(slot) != quantity:
                raise InvalidResponse(f"gave {allocation.total(slot)} {slot} where {quantity} were asked for")
        if unknown_slots := sorted(set(allocation.slots) - set(requested_amounts)):
            raise InvalidResponse(f"gave {unknown_slots[0]}, which was not asked for")
        if ineligible_ids := sorted(allocation.device_ids() - eligible_ids):
            raise InvalidResponse(f"gave the device {ineligible_ids[0]!r:.64}, which was not to be given")

    def apply(self, allocation: DeviceAllocation) -> None:
        self._books.apply(allocation)
        self._record(allocation, 1)

    def free(self, allocation: DeviceAllocation) -> None:
        self._books.free(allocation)
        self._record(allocation, -1)

    def _record(self, allocation: DeviceAllocation, sign: int) -> None:
        for slot, amount_of_device in allocation.slots.items():
            held_amounts = self._held.setdefault(slot, {})
            for device, quantity in amount_of_device.items():
                held_amounts[device] = held_amounts.get(device, Decimal(0)) + sign * quantity
                if not held_amounts[device]:
                    del held_amounts[device]
            if not held_amounts:
                del self._held[slot]

    def snapshot(self) -> Any:
        return self._books.snapshot(), {slot: dict(amount_of_device) for slot, amount_of_device in self._held.items()}

    def restore(self, snapshot: Any) -> None:
        slot_amounts, held_devices = snapshot
        self._books.restore(slot_amounts)
        self._held = {slot: dict(amount_of_device) for slot, amount_of_device in held_devices.items()}
