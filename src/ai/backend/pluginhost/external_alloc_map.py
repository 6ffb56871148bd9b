"""Keeps the accounts of an alloc map that a plugin implements."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any

from ai.backend.common.devices import ComputeDevice, DeviceAllocation, DeviceHealth
from ai.backend.common.errors import BackendError, InvalidAllocation, InvalidQuantity, ResourceError
from ai.backend.common.ids import DeviceId, SlotName
from ai.backend.core.allocation.alloc_map import NO_HINT, AbstractAllocMap, AffinityHint
from ai.backend.core.allocation.stock_maps import DiscreteAllocMap
from ai.backend.plugin.accelerator.shapes import MAX_TEXT, InvalidResponse
from ai.backend.pluginhost.allocation_rpc import Allocate

_UNUSABLE = "the plugin's alloc map cannot be used: "


class ExternalAllocMap(AbstractAllocMap):
    """Lets a plugin's own map choose devices; records and checks what is allocated.

    So a map that answers what was not asked for, of devices that are not there or twice, is refused, and what
    workloads hold is known whatever becomes of the plugin.

    Args:
        devices: what there is.
        choose: asks the plugin's map. It may raise anything, and answer anything.
        complain: hears what is wrong with an answer, and None when one was good.
    """

    def __init__(
        self,
        devices: Sequence[ComputeDevice],
        choose: Allocate,
        *,
        complain: Callable[[str | None], None] = lambda _: None,
    ) -> None:
        self._books = DiscreteAllocMap(devices)
        self._healthy = frozenset(d.device_id for d in devices if d.health is DeviceHealth.HEALTHY)
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
        reason = reason.removeprefix(_UNUSABLE)  # of a map behind another one
        self._complain(f"allocate of its alloc map: {reason}"[:MAX_TEXT])
        return InvalidAllocation(f"{_UNUSABLE}{reason}")

    def _check_possible(self, requested: Mapping[SlotName, Decimal]) -> None:
        """Raises what the stock maps raise for a request that no state of the devices can serve."""
        before = self._books.snapshot()
        try:
            self._books.allocate(requested)
        finally:
            self._books.restore(before)

    @staticmethod
    def _check(chosen: DeviceAllocation, requested: Mapping[SlotName, Decimal], eligible: frozenset[DeviceId]) -> None:
        """Raises InvalidResponse."""
        if not isinstance(chosen, DeviceAllocation):
            raise InvalidResponse(f"returned a {type(chosen).__name__} instead of a DeviceAllocation")
        for slot, quantity in requested.items():
            if chosen.total(slot) != quantity:
                raise InvalidResponse(f"gave {chosen.total(slot)} {slot} where {quantity} were asked for")
        if strange := sorted(set(chosen.slots) - set(requested)):
            raise InvalidResponse(f"gave {strange[0]}, which was not asked for")
        if others := sorted(chosen.device_ids() - eligible):
            raise InvalidResponse(f"gave the device {others[0]!r:.64}, which was not to be given")

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
        books, held = snapshot
        self._books.restore(books)
        self._held = {slot: dict(devices) for slot, devices in held.items()}
