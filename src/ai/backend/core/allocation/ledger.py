"""Book-keeping that the stock alloc maps share: integers in quanta, by slot and device.

Invariants, after every public call:

* ``0 <= used <= amount`` of every cell;
* of the slots of one device that name the same exclusive group, at most one is used.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

from ai.backend.common.devices import AllocationStrategy, ComputeDevice, DeviceAllocation, DeviceHealth, DeviceSlot
from ai.backend.common.errors import (
    InsufficientResource,
    InvalidAllocation,
    InvalidQuantity,
    NotMultipleOfQuantum,
    UnsupportedResource,
)
from ai.backend.common.ids import DeviceId, SlotName
from ai.backend.common.slots import format_quantity
from ai.backend.common.states import SlotType
from ai.backend.core.allocation.alloc_map import NO_HINT, AbstractAllocMap, AffinityHint

_MAX_QUANTA = 10**24


def to_quanta(value: Decimal, quantum: Decimal) -> int | None:
    """How many quanta a quantity is; None if it lies off the grid. Exact for every finite decimal."""
    n, d = value.as_integer_ratio()
    qn, qd = quantum.as_integer_ratio()
    quanta, rest = divmod(n * qd, d * qn)
    return None if rest else quanta


@dataclass(slots=True)
class Cell:
    """One slot of one device. ``rank`` is the device's place in the plugin's list: the last tie-break everywhere."""

    device_id: DeviceId
    rank: int
    numa_node: int | None
    group: str | None
    healthy: bool
    amount: int
    used: int = 0


@dataclass(slots=True)
class SlotBook:
    """All cells of one slot, in the order of the devices."""

    name: SlotName
    slot_type: SlotType
    quantum: Decimal
    cells: dict[DeviceId, Cell]

    def quantity(self, quanta: int) -> Decimal:
        return quanta * self.quantum


Parts = Sequence[tuple[Cell, int]]


class LedgerAllocMap(AbstractAllocMap):
    """A map over the stock book-keeping; subclasses decide which cells a quantity comes from (:meth:`_choose`)."""

    def __init__(
        self,
        devices: Sequence[ComputeDevice],
        *,
        strategy: AllocationStrategy = AllocationStrategy.EVENLY,
        prefer_single_numa_node: bool = True,
    ) -> None:
        """
        Raises:
            InvalidAllocation: a device id occurs twice, or devices disagree about a slot's type or quantum.
        """
        self._strategy = strategy
        self._prefer_single_numa_node = prefer_single_numa_node
        self._books: dict[SlotName, SlotBook] = {}
        self._groups: dict[tuple[DeviceId, str], list[Cell]] = {}
        seen: set[DeviceId] = set()
        for rank, device in enumerate(devices):
            if device.device_id in seen:
                raise InvalidAllocation(f"two devices have the id {device.device_id!r}")
            seen.add(device.device_id)
            for slot in device.slots:
                self._add(rank, device, slot)

    def _add(self, rank: int, device: ComputeDevice, slot: DeviceSlot) -> None:
        if not slot.quantum.is_finite() or slot.quantum <= 0 or not slot.amount.is_finite() or slot.amount < 0:
            raise InvalidAllocation(f"device {device.device_id!r} offers a malformed amount of {slot.slot_name}")
        book = self._books.setdefault(slot.slot_name, SlotBook(slot.slot_name, slot.slot_type, slot.quantum, {}))
        if (book.slot_type, book.quantum) != (slot.slot_type, slot.quantum) or device.device_id in book.cells:
            raise InvalidAllocation(f"devices disagree about the type or quantum of {slot.slot_name}")
        cell = Cell(
            device_id=device.device_id,
            rank=rank,
            numa_node=device.numa_node,
            group=slot.exclusive_group,
            healthy=device.health is DeviceHealth.HEALTHY,
            # What is left over below one quantum can never be given away.
            amount=int(slot.amount // slot.quantum),
        )
        book.cells[device.device_id] = cell
        if slot.exclusive_group is not None:
            self._groups.setdefault((device.device_id, slot.exclusive_group), []).append(cell)

    # ---- reading

    @property
    def totals(self) -> Mapping[SlotName, Decimal]:
        return {
            name: book.quantity(sum(c.amount for c in book.cells.values() if c.healthy))
            for name, book in self._books.items()
        }

    def available(self) -> Mapping[SlotName, Decimal]:
        return {
            name: book.quantity(sum(self._free(c) for c in book.cells.values())) for name, book in self._books.items()
        }

    def _is_hidden(self, cell: Cell) -> bool:
        """Whether another slot of the same exclusive group is taken on this device."""
        if cell.group is None:
            return False
        return any(other.used for other in self._groups[cell.device_id, cell.group] if other is not cell)

    def _free(self, cell: Cell) -> int:
        return 0 if not cell.healthy or self._is_hidden(cell) else cell.amount - cell.used

    def _candidates(self, book: SlotBook) -> list[tuple[Cell, int]]:
        """Cells that have something to give, with how much."""
        found = [(cell, self._free(cell)) for cell in book.cells.values()]
        return [(cell, free) for cell, free in found if free > 0]

    # ---- taking

    @abstractmethod
    def _choose(self, book: SlotBook, quanta: int, hint: AffinityHint) -> Parts:
        """The cells and quanta that serve a request, without taking them. Raises InsufficientResource."""

    def allocate(self, request: Mapping[SlotName, Decimal], *, hint: AffinityHint = NO_HINT) -> DeviceAllocation:
        taken: list[tuple[Cell, int]] = []
        result: dict[SlotName, dict[DeviceId, Decimal]] = {}
        try:
            for name in sorted(name for name, quantity in request.items() if quantity):
                book, quanta = self._read(name, request[name])
                parts = self._choose(book, quanta, hint)
                for cell, part in parts:
                    cell.used += part
                    taken.append((cell, part))
                result[name] = {cell.device_id: book.quantity(part) for cell, part in parts}
        except BaseException:
            for cell, part in taken:
                cell.used -= part
            raise
        return DeviceAllocation(slots=result)

    def _read(self, name: SlotName, quantity: Decimal) -> tuple[SlotBook, int]:
        book = self._books.get(name)
        if book is None:
            raise UnsupportedResource(f"There is no slot {name} here.", data={"slot": name})
        if not quantity.is_finite() or quantity < 0:
            raise InvalidQuantity(f"{name}: not a quantity that a device can give", data={"slot": name})
        quanta = to_quanta(quantity, book.quantum)
        if quanta is None or quanta > _MAX_QUANTA:
            raise NotMultipleOfQuantum(
                f"{format_quantity(quantity)} {name} is not a multiple of {format_quantity(book.quantum)}.",
                data={"slot": name, "quantum": format_quantity(book.quantum)},
            )
        if book.slot_type is SlotType.UNIQUE and quanta != 1:
            raise InvalidQuantity(f"{name} is unique: only one of it can be requested", data={"slot": name})
        return book, quanta

    def _insufficient(self, book: SlotBook, quanta: int, *, largest: int | None = None) -> InsufficientResource:
        free = sum(self._free(c) for c in book.cells.values())
        requested, available = (format_quantity(book.quantity(n)) for n in (quanta, free))
        data = {"slot": book.name, "requested": requested, "available": available}
        if largest is None or free < quanta:
            return InsufficientResource(f"needs {requested} {book.name}; {available} free", data=data)
        room = format_quantity(book.quantity(largest))
        return InsufficientResource(
            f"needs {requested} {book.name} on one device; {available} free, at most {room} on one device",
            data={**data, "largest": room},
        )

    # ---- exact quantities

    def _cells(self, allocation: DeviceAllocation) -> Iterator[tuple[SlotBook, Cell, int]]:
        for name, per_device in allocation.slots.items():
            book = self._books.get(name)
            for device_id, quantity in per_device.items():
                cell = book.cells.get(device_id) if book else None
                quanta = to_quanta(quantity, book.quantum) if book and quantity.is_finite() else None
                if book is None or cell is None or quanta is None or quanta <= 0:
                    raise InvalidAllocation(
                        f"there is no {format_quantity(quantity)} {name} on device {device_id!r}",
                        data={"slot": name, "device": device_id},
                    )
                yield book, cell, quanta

    def apply(self, allocation: DeviceAllocation) -> None:
        done: list[tuple[Cell, int]] = []
        try:
            for book, cell, quanta in list(self._cells(allocation)):
                if self._is_hidden(cell) or cell.used + quanta > cell.amount:
                    raise InvalidAllocation(
                        f"device {cell.device_id!r} has not {format_quantity(book.quantity(quanta))} {book.name} free",
                        data={"slot": book.name, "device": cell.device_id},
                    )
                cell.used += quanta
                done.append((cell, quanta))
        except InvalidAllocation:
            _undo(done)
            raise

    def free(self, allocation: DeviceAllocation) -> None:
        cells = list(self._cells(allocation))
        for book, cell, quanta in cells:
            if cell.used < quanta:
                raise InvalidAllocation(
                    f"device {cell.device_id!r} did not give {format_quantity(book.quantity(quanta))} {book.name}",
                    data={"slot": book.name, "device": cell.device_id},
                )
        for _, cell, quanta in cells:
            cell.used -= quanta

    def snapshot(self) -> dict[SlotName, tuple[int, ...]]:
        return {name: tuple(c.used for c in book.cells.values()) for name, book in self._books.items()}

    def restore(self, snapshot: dict[SlotName, tuple[int, ...]]) -> None:
        for name, used in snapshot.items():
            for cell, quanta in zip(self._books[name].cells.values(), used, strict=True):
                cell.used = quanta


def _undo(done: Iterable[tuple[Cell, int]]) -> None:
    for cell, quanta in done:
        cell.used -= quanta
