"""Indexes the free amounts of one slot, so that a request touches only the devices it gets.

Devices are numbered by their place in the plugin's list (``rank``); a set of devices is an ``int`` with a bit for each.
So a NUMA node, the eligible devices and the devices that have exactly so much free are masks, and their intersection is
one operation; see docs/decisions/0051-levels-of-masks.md.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from dataclasses import InitVar, dataclass, field
from decimal import Decimal
from fractions import Fraction

from ai.backend.common.ids import SlotName
from ai.backend.common.states import SlotType

MAX_QUANTA = 10**24
MICRO = 10**6
_MAX_MEMO = 1024
MAX_DIGITS = 40


Parts = Sequence[tuple[int, int]]
"""(rank, quanta) of each device that provides something; each device once."""


def to_quanta(value: Decimal, quantum: Decimal) -> int | None:
    """Converts a quantity to quanta; None if it is not a multiple. Exact for every finite decimal in range."""
    if abs(value.adjusted()) > MAX_DIGITS:
        return None
    n, d = value.as_integer_ratio()
    qn, qd = quantum.as_integer_ratio()
    quanta, rest = divmod(n * qd, d * qn)
    return None if rest else quanta


def ranks(mask: int) -> Iterator[int]:
    """Yields the devices of a mask, lowest rank first."""
    while mask:
        bit = mask & -mask
        yield bit.bit_length() - 1
        mask ^= bit


def lowest(mask: int, count: int) -> list[int]:
    """Returns the first ``count`` devices of a mask."""
    result = []
    while count:
        bit = mask & -mask
        result.append(bit.bit_length() - 1)
        mask ^= bit
        count -= 1
    return result


@dataclass(slots=True)
class ExclusiveGroup:
    """Holds the slots of one device that exclude each other, and how many are in use: at most one between calls."""

    users: int = 0
    pools: list[SlotPool] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class SlotPool:
    """Tracks one slot of every device, in quanta; devices are added, and then the pool is sealed.

    Invariants: ``0 <= used <= amounts`` for each device; ``free`` is what a request may take of it now (0 if it is
    unhealthy or hidden); ``levels`` maps each positive ``free`` to the mask of the devices that have exactly that, and
    ``order`` are its keys, ascending; ``total_free`` is the sum of ``free``.

    Attributes:
        micro: a quantum in millionths, the unit in which the scheduler compares quantities of different agents.
        offers: the mask of the devices that have this slot, of which ``healthy`` are the healthy ones.
        special: the mask of devices that are unhealthy or in an exclusive group.
        total, largest: of healthy devices, taken or not.
    """

    name: SlotName
    slot_type: SlotType
    quantum: Decimal
    devices: InitVar[int]
    micro: int | Fraction = field(init=False)
    amounts: list[int] = field(init=False)
    used: list[int] = field(init=False)
    free: list[int] = field(init=False)
    offers: int = 0
    healthy: int = 0
    special: int = 0
    groups: dict[int, ExclusiveGroup] = field(default_factory=dict)
    levels: dict[int, int] = field(default_factory=dict)
    order: list[int] = field(default_factory=list)
    total: int = 0
    total_free: int = 0
    largest: int = 0
    _quantities: dict[int, Decimal] = field(default_factory=dict)
    _quanta: dict[Decimal, int] = field(default_factory=dict)

    def __post_init__(self, devices: int) -> None:
        micro = Fraction(self.quantum) * MICRO
        self.micro = int(micro) if micro.denominator == 1 else micro
        self.amounts, self.used, self.free = [0] * devices, [0] * devices, [0] * devices

    def clone(self) -> SlotPool:
        """Returns a copy that shares amounts and caches; the caller makes it join copies of the exclusive groups."""
        other = SlotPool.__new__(SlotPool)
        other.name, other.slot_type, other.quantum, other.micro = self.name, self.slot_type, self.quantum, self.micro
        other.amounts, other.offers, other.healthy = self.amounts, self.offers, self.healthy
        other.special, other.total, other.total_free = self.special, self.total, self.total_free
        other.largest, other._quantities, other._quanta = self.largest, self._quantities, self._quanta
        other.used, other.free, other.order = self.used.copy(), self.free.copy(), self.order.copy()
        other.levels, other.groups = self.levels.copy(), {}
        return other

    # ---- quantities

    @property
    def free_micro(self) -> int:
        """The free amount in millionths, rounded down."""
        return int(self.total_free * self.micro)

    @property
    def most_micro(self) -> int:
        """The largest free amount of one device in millionths, rounded down."""
        return int(self.order[-1] * self.micro) if self.order else 0

    @property
    def whole(self) -> int:
        """The number of devices with as much free as the largest one has in total."""
        return self.levels.get(self.largest, 0).bit_count()

    def quantity(self, quanta: int) -> Decimal:
        result = self._quantities.get(quanta)
        if result is None:
            if len(self._quantities) >= _MAX_MEMO:
                self._quantities.clear()
            result = self._quantities[quanta] = quanta * self.quantum
        return result

    def quanta(self, quantity: Decimal) -> int | None:
        """Converts a quantity to quanta; -1 if it is negative or not a number, None if it is not a multiple."""
        try:
            result = self._quanta.get(quantity)
        except TypeError:  # a signaling NaN has no hash
            return -1
        if result is None:
            if not quantity.is_finite() or quantity < 0:
                return -1
            result = to_quanta(quantity, self.quantum)
            if result is None or result > MAX_QUANTA:
                return None
            if len(self._quanta) >= _MAX_MEMO:
                self._quanta.clear()
            self._quanta[quantity] = result
        return result

    # ---- the index

    def add(self, rank: int, amount: int, *, healthy: bool) -> None:
        """Adds a device that has this slot, once. :meth:`seal` must follow before anything else."""
        bit = 1 << rank
        self.amounts[rank] = amount
        self.offers |= bit
        if not healthy:
            self.special |= bit
            return
        self.healthy |= bit
        self.total += amount
        if amount:
            self.free[rank] = amount
            self.levels[amount] = self.levels.get(amount, 0) | bit

    def seal(self) -> None:
        """Builds the index after all devices are added."""
        self.order = sorted(self.levels)
        self.largest = self.order[-1] if self.order else 0
        self.total_free = self.total

    def join(self, rank: int, group: ExclusiveGroup) -> None:
        """Joins an exclusive group, whose other slots can hide this slot on the device."""
        self.groups[rank] = group
        self.special |= 1 << rank
        group.pools.append(self)

    def change(self, parts: Parts, sign: int) -> None:
        """Takes (1) or releases (-1) these parts, which the caller has checked."""
        used, free, special = self.used, self.free, self.special
        total = source = target = moved = 0
        for rank, part in parts:
            quanta = part * sign
            used[rank] += quanta
            if special >> rank & 1:
                self._change_special(rank, quanta)
                continue
            before = free[rank]
            free[rank] = now = before - quanta
            total += quanta
            if before != source or now != target:
                if moved:
                    self._move(moved, source, target)
                source, target, moved = before, now, 0
            moved |= 1 << rank
        if moved:
            self._move(moved, source, target)
        self.total_free -= total

    def take_whole(self, parts: Parts) -> None:
        """Takes devices that have one quantum each, free."""
        if self.special:
            self.change(parts, 1)
            return
        used, free, taken = self.used, self.free, 0
        for rank, _ in parts:
            used[rank] += 1
            free[rank] = 0
            taken |= 1 << rank
        self._move(taken, 1, 0)
        self.total_free -= len(parts)

    def _change_special(self, rank: int, quanta: int) -> None:
        """Updates a device that is unhealthy, or whose slot hides or uncovers others by its first or last use."""
        group = self.groups.get(rank)
        if group is not None:
            group.users += bool(self.used[rank]) - bool(self.used[rank] - quanta)
        for pool in group.pools if group is not None else (self,):
            offered = pool.healthy >> rank & 1 and not pool.is_hidden(rank)
            pool.set_free(rank, pool.amounts[rank] - pool.used[rank] if offered else 0)

    def set_free(self, rank: int, now: int) -> None:
        """Sets what a request may take of a device."""
        before = self.free[rank]
        if before != now:
            self.free[rank] = now
            self.total_free += now - before
            self._move(1 << rank, before, now)

    def _move(self, mask: int, before: int, now: int) -> None:
        levels = self.levels
        if before:
            if rest := levels[before] ^ mask:
                levels[before] = rest
            else:
                del levels[before]
                del self.order[bisect_left(self.order, before)]
        if now:
            if now not in levels:
                insort(self.order, now)
            levels[now] = levels.get(now, 0) | mask

    def is_hidden(self, rank: int) -> bool:
        """Returns True if another slot of the same exclusive group is in use on this device."""
        group = self.groups.get(rank)
        return group is not None and group.users > bool(self.used[rank])

    def room(self, scope: int) -> int:
        """Returns what the devices of a mask have free together. O(distinct free amounts)."""
        if not scope & (scope - 1):
            return self.free[scope.bit_length() - 1] if scope else 0
        return sum([level * (mask & scope).bit_count() for level, mask in self.levels.items()])

    def most(self, scope: int) -> int:
        """Returns the most that one device of a mask has free."""
        return next((level for level in reversed(self.order) if self.levels[level] & scope), 0)

    @property
    def some_free(self) -> int:
        """The mask of devices that have anything free."""
        devices = 0
        for mask in self.levels.values():
            devices |= mask
        return devices

    def with_room(self, scope: int, quanta: int) -> int:
        """Returns the devices of a mask that have this amount free."""
        mask = 0
        for level in self.order[bisect_left(self.order, quanta) :]:
            mask |= self.levels[level]
        return mask & scope

    def fullest(self, scope: int, quanta: int) -> int:
        """Returns, of the devices with this amount free, those that have the least."""
        for level in self.order[bisect_left(self.order, quanta) :]:
            if mask := self.levels[level] & scope:
                return mask
        return 0
