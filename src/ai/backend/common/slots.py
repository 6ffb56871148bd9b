"""Computes exactly with resource quantities (spec 03-07 "Resource Slot Object", 03-01)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from decimal import Context, Decimal, DecimalException, Inexact
from typing import Self

from ai.backend.common.errors import InvalidQuantity

_SUFFIX_EXPONENTS = {"": 0, "b": 0, "k": 1, "m": 2, "g": 3, "t": 4, "p": 5, "e": 6, "z": 7, "y": 8}
_UNITS = tuple((suffix, 1024 ** _SUFFIX_EXPONENTS[suffix]) for suffix in "yzeptgmk")
_SIZE_PATTERN = re.compile(r"(?P<number>\d+(?:\.\d*)?|\.\d+)\s*(?P<scale>[kmgtpezy])?(?:i?b|bytes?)?", re.IGNORECASE)
_MAX_TEXT_LENGTH = 64
_EXACT_CONTEXT = Context(prec=60, traps=[Inexact])
_ZERO = Decimal(0)
INFINITY = Decimal("Infinity")


class BinarySize(int):
    """A number of bytes that reads and prints binary scale suffixes (``512m``, ``64GiB``; 1 k = 1,024).

    >>> str(BinarySize(1610612736)), int(BinarySize.parse("1.5g"))
    ('1.5g', 1610612736)
    """

    __slots__ = ()

    @classmethod
    def parse(cls, text: str | int) -> Self:
        """Parses a size. Raises InvalidQuantity unless it is a non-negative whole number of bytes."""
        if isinstance(text, int):
            if isinstance(text, bool) or text < 0:
                raise InvalidQuantity(f"not a size: {text!r}")
            return cls(text)
        match = _SIZE_PATTERN.fullmatch(text.strip().replace("_", "")) if len(text) <= _MAX_TEXT_LENGTH else None
        if match is None:
            raise InvalidQuantity(f"not a size: {text[:_MAX_TEXT_LENGTH]!r}; write bytes or a suffix, as 512m or 2g")
        byte_count = Decimal(match["number"]) * (1024 ** _SUFFIX_EXPONENTS[(match["scale"] or "").lower()])
        if byte_count != byte_count.to_integral_value():
            raise InvalidQuantity(f"{text!r} is not a whole number of bytes")
        return cls(int(byte_count))

    def __str__(self) -> str:
        """Returns the shortest exact form with at most two decimals. If there is none, returns plain bytes."""
        byte_count = int(self)
        for suffix, unit in _UNITS:
            if byte_count >= unit and (byte_count * 100) % unit == 0:
                return f"{(Decimal(byte_count) / unit).normalize():f}{suffix}"
        return int.__repr__(self)

    def __repr__(self) -> str:
        return f"BinarySize({str(self)!r})"


def parse_quantity(value: str | float | Decimal, *, is_bytes: bool = False) -> Decimal:
    """Parses one slot's quantity: a non-negative exact decimal, ``"Infinity"``, or a size with a binary suffix.

    ``is_bytes`` requires a whole number. Raises InvalidQuantity, also for more than 20 digits before or 6 after the
    point.
    """
    if isinstance(value, bool):
        raise InvalidQuantity(f"not a quantity: {value!r}")
    quantity_text = str(value).strip() if not isinstance(value, BinarySize) else str(int(value))
    if not quantity_text or len(quantity_text) > _MAX_TEXT_LENGTH:
        raise InvalidQuantity(f"not a quantity: {quantity_text[:_MAX_TEXT_LENGTH]!r}")
    if quantity_text.lower() in ("infinity", "inf"):
        return INFINITY
    if quantity_text[-1].isalpha():
        number = Decimal(int(BinarySize.parse(quantity_text)))
    else:
        try:
            number = _EXACT_CONTEXT.create_decimal(quantity_text)
        except DecimalException:
            raise InvalidQuantity(f"not a quantity: {quantity_text!r}") from None
    if not number.is_finite() or number < 0 or not _fits_exactly(number):
        raise InvalidQuantity(f"quantity out of range: {quantity_text!r}")
    if is_bytes and number != number.to_integral_value():
        raise InvalidQuantity(f"{quantity_text!r} is not a whole number of bytes")
    return number


def _fits_exactly(number: Decimal) -> bool:
    """Returns True if a number has at most 20 digits before the point and at most 6 after it.

    Sums of a hundred such numbers are never rounded.
    """
    exponent = number.as_tuple().exponent
    return number.adjusted() < 20 and isinstance(exponent, int) and exponent >= -6


def format_quantity(value: Decimal) -> str:
    """Formats a quantity as text without exponent or trailing zeros. The infinite quantity is ``Infinity``.

    Sizes are in plain bytes.
    """
    if value.is_infinite():
        return "Infinity" if value > 0 else "-Infinity"
    quantity_text = f"{value:f}"
    return quantity_text.rstrip("0").rstrip(".") if "." in quantity_text else quantity_text


class ResourceSlot(Mapping[str, Decimal]):
    """An immutable map of slot name to exact quantity in which a missing key is zero.

    Comparison is over the keys of both sides: ``a <= b`` holds when it holds for every slot, so two values may be
    incomparable and then every ordering is False.

    >>> ResourceSlot.parse({"cpu": "2", "mem": "1g"}) - ResourceSlot.parse({"cpu": 1})
    ResourceSlot(cpu=1, mem=1073741824)
    """

    __slots__ = ("_data",)
    _data: dict[str, Decimal]

    def __init__(self, data: Mapping[str, Decimal] | None = None) -> None:
        self._data = dict(data) if data else {}

    @classmethod
    def parse(cls, data: Mapping[str, str | int | float | Decimal]) -> Self:
        """Parses user input or stored text. Raises InvalidQuantity, whose message names the slot."""
        quantities: dict[str, Decimal] = {}
        for name, value in data.items():
            try:
                quantities[name] = parse_quantity(value, is_bytes=name == "mem")
            except InvalidQuantity as e:
                raise InvalidQuantity(f"{name}: {e}") from None
        return cls._from_checked(quantities)

    @classmethod
    def _from_checked(cls, data: dict[str, Decimal]) -> Self:
        self = cls.__new__(cls)
        self._data = data
        return self

    def to_json(self) -> dict[str, str]:
        """Returns the wire form: every quantity as text, sizes in plain bytes."""
        return {name: format_quantity(value) for name, value in self._data.items()}

    def __getitem__(self, name: str) -> Decimal:
        return self._data.get(name, _ZERO)

    def __contains__(self, name: object) -> bool:
        return name in self._data

    def __iter__(self) -> Iterator[str]:
        return iter(self._data)

    def __len__(self) -> int:
        return len(self._data)

    def __repr__(self) -> str:
        return f"ResourceSlot({', '.join(f'{name}={format_quantity(value)}' for name, value in self._data.items())})"

    def __add__(self, other: ResourceSlot) -> ResourceSlot:
        data = self._data.copy()
        for name, value in other._data.items():
            data[name] = data[name] + value if name in data else value
        return ResourceSlot._from_checked(data)

    def __sub__(self, other: ResourceSlot) -> ResourceSlot:
        data = self._data.copy()
        for name, value in other._data.items():
            data[name] = data[name] - value if name in data else -value
        return ResourceSlot._from_checked(data)

    def __mul__(self, factor: int) -> ResourceSlot:
        return ResourceSlot._from_checked({name: value * factor for name, value in self._data.items()})

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ResourceSlot):
            return NotImplemented
        quantities, other_quantities = self._data, other._data
        if quantities == other_quantities:
            return True
        return quantities.keys() != other_quantities.keys() and self.nonzero()._data == other.nonzero()._data

    def __hash__(self) -> int:
        return hash(frozenset((name, quantity) for name, quantity in self._data.items() if quantity))

    def __le__(self, other: ResourceSlot) -> bool:
        quantities, other_quantities = self._data, other._data
        shared_count = 0
        for name, value in quantities.items():
            if name in other_quantities:
                if value > other_quantities[name]:
                    return False
                shared_count += 1
            elif value > 0:
                return False
        return shared_count == len(other_quantities) or all(
            quantity >= 0 for slot, quantity in other_quantities.items() if slot not in quantities
        )

    def __lt__(self, other: ResourceSlot) -> bool:
        """Returns True if the map is smaller or equal in every slot and smaller in at least one."""
        return self <= other and self != other

    def __ge__(self, other: ResourceSlot) -> bool:
        return other <= self

    def __gt__(self, other: ResourceSlot) -> bool:
        return other < self

    def shortage(self, available: ResourceSlot) -> ResourceSlot:
        """Returns for each slot of this request the amount by which the request exceeds ``available``.

        The result is empty if the request fits.
        """
        return ResourceSlot._from_checked(
            {slot: quantity - available[slot] for slot, quantity in self._data.items() if quantity > available[slot]}
        )

    def nonzero(self) -> ResourceSlot:
        return ResourceSlot._from_checked({name: quantity for name, quantity in self._data.items() if quantity})
