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
_MAX_CACHED_QUANTITIES = 1024
MAX_DIGITS = 40


Parts = Sequence[tuple[int, int]]
"""(rank, quanta) of each device that provides a part. Each device appears once."""


def to_quanta(value: Decimal, quantum: Decimal) -> int | None:
    """Converts a quantity to quanta.

    Returns None if the quantity is not a multiple of the quantum. Exact for every finite decimal in range.
    """
    if abs(value.adjusted()) > MAX_DIGITS:
        return None
    numerator, denominator = value.as_integer_ratio()
    quantum_numerator, quantum_denominator = quantum.as_integer_ratio()
    quanta, remainder = divmod(numerator * quantum_denominator, denominator * quantum_numerator)
    return None if remainder else quanta


def ranks(device_mask: int) -> Iterator[int]:
    """Yields the devices of a mask, lowest rank first."""
    while device_mask:
        lowest_bit = device_mask & -device_mask
        yield lowest_bit.bit_length() - 1
        device_mask ^= lowest_bit


def lowest(device_mask: int, count: int) -> list[int]:
    """Returns the first ``count`` devices of a mask."""
    lowest_ranks = []
    while count:
        lowest_bit = device_mask & -device_mask
        lowest_ranks.append(lowest_bit.bit_length() - 1)
        device_mask ^= lowest_bit
        count -= 1
    return lowest_ranks


@dataclass(slots=True)
class ExclusiveGroup:
    """Holds the slots of one device that exclude each other, and counts the slots in use.

    Between calls at most one is in use, or several partitions (:attr:`costs`) whose sum is within the counters.

    Attributes:
        left: counter -> what is left of it.
        costs: slot of partitions -> what a quantum of it takes of the counters.
        partition_users: the slots of partitions that are in use.
    """

    users: int = 0
    pools: list[SlotPool] = field(default_factory=list)
    left: dict[str, int] = field(default_factory=dict)
    costs: dict[SlotName, Sequence[tuple[str, int]]] = field(default_factory=dict)
    partition_users: int = 0

    def clone(self) -> ExclusiveGroup:
        """Returns a copy that has no pools yet. The caller lets each pool join the copy."""
        return ExclusiveGroup(self.users, [], self.left.copy(), self.costs, self.partition_users)

    def count_use(self, slot_name: SlotName, quanta: int, user_change: int) -> None:
        """Counts quanta that are taken of a slot.

        ``user_change`` is nonzero at the first and the last use of the slot.
        """
        self.users += user_change
        for counter, cost in self.costs.get(slot_name, ()):
            self.left[counter] -= cost * quanta
        if slot_name in self.costs:
            self.partition_users += user_change

    def free_quanta(self, slot_name: SlotName) -> int:
        """Returns how many quanta of a slot the device's counters still permit."""
        return max(
            0, min((self.left[counter] // cost for counter, cost in self.costs.get(slot_name, ())), default=MAX_QUANTA)
        )

    def hides(self, slot_name: SlotName, *, is_used: bool) -> bool:
        """Returns True if another slot of the group is in use and excludes the given slot.

        ``is_used``: the given slot itself is in use.
        """
        return self.users > (self.partition_users if slot_name in self.costs else is_used)


@dataclass(slots=True, eq=False)
class SlotPool:
    """Tracks the free quanta of one slot on every device. Devices are added first, and then the pool is sealed.

    Invariants: ``0 <= used <= amounts`` for each device; ``free`` is what a request may take of it now (0 if it is
    unhealthy or hidden); ``levels`` maps each positive ``free`` to the mask of the devices that have exactly that, and
    ``free_levels`` are its keys, ascending; ``total_free`` is the sum of ``free``.

    Attributes:
        micro: a quantum in millionths, the unit in which the scheduler compares quantities of different agents.
        offers_mask: the mask of the devices that have this slot, of which ``healthy`` are the healthy ones.
        special_mask: the mask of devices that are unhealthy or in an exclusive group.
        cut_mask: the mask of devices of which this slot is a partition that is cut when it is given.
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
    offers_mask: int = 0
    healthy: int = 0
    special_mask: int = 0
    cut_mask: int = 0
    groups: dict[int, ExclusiveGroup] = field(default_factory=dict)
    levels: dict[int, int] = field(default_factory=dict)
    free_levels: list[int] = field(default_factory=list)
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
        """Returns a copy that shares amounts and caches.

        The caller must let the copy join copies of the exclusive groups.
        """
        pool_copy = SlotPool.__new__(SlotPool)
        pool_copy.name, pool_copy.slot_type, pool_copy.quantum, pool_copy.micro = (
            self.name,
            self.slot_type,
            self.quantum,
            self.micro,
        )
        pool_copy.amounts, pool_copy.offers_mask, pool_copy.healthy = self.amounts, self.offers_mask, self.healthy
        pool_copy.special_mask, pool_copy.total, pool_copy.total_free = self.special_mask, self.total, self.total_free
        pool_copy.cut_mask = self.cut_mask
        pool_copy.largest, pool_copy._quantities, pool_copy._quanta = self.largest, self._quantities, self._quanta
        pool_copy.used, pool_copy.free, pool_copy.free_levels = (
            self.used.copy(),
            self.free.copy(),
            self.free_levels.copy(),
        )
        pool_copy.levels, pool_copy.groups = self.levels.copy(), {}
        return pool_copy

    # ---- quantities

    @property
    def free_micro(self) -> int:
        """Returns the total free amount in millionths, rounded down."""
        return int(self.total_free * self.micro)

    @property
    def most_micro(self) -> int:
        """Returns the largest free amount of one device in millionths, rounded down."""
        return int(self.free_levels[-1] * self.micro) if self.free_levels else 0

    @property
    def whole(self) -> int:
        """Returns the number of devices that have as much free as the largest device has in total."""
        return self.levels.get(self.largest, 0).bit_count()

    def quantity(self, quanta: int) -> Decimal:
        cached_quantity = self._quantities.get(quanta)
        if cached_quantity is None:
            if len(self._quantities) >= _MAX_CACHED_QUANTITIES:
                self._quantities.clear()
            cached_quantity = self._quantities[quanta] = quanta * self.quantum
        return cached_quantity

    def quanta(self, quantity: Decimal) -> int | None:
        """Converts a quantity to quanta.

        Returns -1 for a negative or invalid quantity, and None if it is not a multiple.
        """
        try:
            cached_quanta = self._quanta.get(quantity)
        except TypeError:  # a signaling NaN has no hash
            return -1
        if cached_quanta is None:
            if not quantity.is_finite() or quantity < 0:
                return -1
            cached_quanta = to_quanta(quantity, self.quantum)
            if cached_quanta is None or cached_quanta > MAX_QUANTA:
                return None
            if len(self._quanta) >= _MAX_CACHED_QUANTITIES:
                self._quanta.clear()
            self._quanta[quantity] = cached_quanta
        return cached_quanta

    # ---- the index

    def add(self, rank: int, quanta: int, *, healthy: bool) -> None:
        """Adds a device that has this slot, once. :meth:`seal` must follow before anything else."""
        bit = 1 << rank
        self.amounts[rank] = quanta
        self.offers_mask |= bit
        if not healthy:
            self.special_mask |= bit
            return
        self.healthy |= bit
        self.total += quanta
        if quanta:
            self.free[rank] = quanta
            self.levels[quanta] = self.levels.get(quanta, 0) | bit

    def seal(self) -> None:
        """Builds the index after all devices are added."""
        self.free_levels = sorted(self.levels)
        self.largest = self.free_levels[-1] if self.free_levels else 0
        self.total_free = self.total

    def join(self, rank: int, group: ExclusiveGroup, costs: Sequence[tuple[str, int]] = ()) -> None:
        """Adds this pool to the exclusive group of a device, whose other slots can hide this slot there.

        ``costs``, of a partition: what a quantum of the slot takes of the device's counters.
        """
        self.groups[rank] = group
        if costs:
            group.costs[self.name] = costs
            self.cut_mask |= 1 << rank
        self.special_mask |= 1 << rank
        group.pools.append(self)

    def change(self, parts: Parts, sign: int) -> None:
        """Takes (``sign`` 1) or releases (``sign`` -1) the given quanta of devices.

        The caller has checked that the parts are valid.
        """
        used_quanta, free_quanta, special_mask = self.used, self.free, self.special_mask
        total_quanta = from_level = to_level = moved_mask = 0
        for device_rank, part_quanta in parts:
            quanta = part_quanta * sign
            used_quanta[device_rank] += quanta
            if special_mask >> device_rank & 1:
                self._change_special(device_rank, quanta)
                continue
            old_level = free_quanta[device_rank]
            free_quanta[device_rank] = new_level = old_level - quanta
            total_quanta += quanta
            if old_level != from_level or new_level != to_level:
                if moved_mask:
                    self._change_level(moved_mask, from_level, to_level)
                from_level, to_level, moved_mask = old_level, new_level, 0
            moved_mask |= 1 << device_rank
        if moved_mask:
            self._change_level(moved_mask, from_level, to_level)
        self.total_free -= total_quanta

    def take_whole(self, parts: Parts) -> None:
        """Takes whole free devices of one quantum each."""
        if self.special_mask:
            self.change(parts, 1)
            return
        used_quanta, free_quanta, taken_mask = self.used, self.free, 0
        for rank, _ in parts:
            used_quanta[rank] += 1
            free_quanta[rank] = 0
            taken_mask |= 1 << rank
        self._change_level(taken_mask, 1, 0)
        self.total_free -= len(parts)

    def _change_special(self, rank: int, quanta: int) -> None:
        """Updates the free quanta of a device that is unhealthy or belongs to an exclusive group.

        The first or last use of a slot of the group hides or uncovers the other slots.
        """
        group = self.groups.get(rank)
        if group is not None:
            group.count_use(self.name, quanta, bool(self.used[rank]) - bool(self.used[rank] - quanta))
        for pool in group.pools if group is not None else (self,):
            is_offered = pool.healthy >> rank & 1 and not pool.is_hidden(rank)
            free_quanta = pool.amounts[rank] - pool.used[rank] if is_offered else 0
            if free_quanta and group is not None and group.costs:
                free_quanta = min(free_quanta, group.free_quanta(pool.name))
            pool.set_free(rank, free_quanta)

    def set_free(self, rank: int, free_quanta: int) -> None:
        """Sets how many quanta of a device a request may take."""
        earlier_quanta = self.free[rank]
        if earlier_quanta != free_quanta:
            self.free[rank] = free_quanta
            self.total_free += free_quanta - earlier_quanta
            self._change_level(1 << rank, earlier_quanta, free_quanta)

    def _change_level(self, device_mask: int, old_level: int, new_level: int) -> None:
        levels = self.levels
        if old_level:
            if remaining_mask := levels[old_level] ^ device_mask:
                levels[old_level] = remaining_mask
            else:
                del levels[old_level]
                del self.free_levels[bisect_left(self.free_levels, old_level)]
        if new_level:
            if new_level not in levels:
                insort(self.free_levels, new_level)
            levels[new_level] = levels.get(new_level, 0) | device_mask

    def is_hidden(self, rank: int) -> bool:
        """Returns True if another slot of the same exclusive group is in use on this device."""
        group = self.groups.get(rank)
        return group is not None and group.hides(self.name, is_used=bool(self.used[rank]))

    def has_room(self, rank: int, quanta: int) -> bool:
        """Returns True if a device has this amount left, healthy or not."""
        group = self.groups.get(rank)
        group_quanta = self.amounts[rank] - self.used[rank]
        if group is not None and group.costs:
            group_quanta = min(group_quanta, group.free_quanta(self.name))
        return quanta <= group_quanta and not self.is_hidden(rank)

    def free_quanta(self, device_mask: int) -> int:
        """Returns the total number of free quanta on the devices of a mask. O(distinct free amounts)."""
        if not device_mask & (device_mask - 1):
            return self.free[device_mask.bit_length() - 1] if device_mask else 0
        return sum([level * (mask & device_mask).bit_count() for level, mask in self.levels.items()])

    def most_free_quanta(self, device_mask: int) -> int:
        """Returns the largest number of free quanta that a single device of a mask has."""
        return next((level for level in reversed(self.free_levels) if self.levels[level] & device_mask), 0)

    @property
    def any_free_mask(self) -> int:
        """Returns the mask of the devices that have at least one quantum free."""
        any_free_mask = 0
        for mask in self.levels.values():
            any_free_mask |= mask
        return any_free_mask

    def mask_with_room(self, device_mask: int, quanta: int) -> int:
        """Returns the devices of a mask that have this amount free."""
        mask = 0
        for level in self.free_levels[bisect_left(self.free_levels, quanta) :]:
            mask |= self.levels[level]
        return mask & device_mask

    def fullest_mask(self, device_mask: int, quanta: int) -> int:
        """Returns the devices that have this amount free, limited to the devices with the least free amount."""
        for level in self.free_levels[bisect_left(self.free_levels, quanta) :]:
            if mask := self.levels[level] & device_mask:
                return mask
        return 0
