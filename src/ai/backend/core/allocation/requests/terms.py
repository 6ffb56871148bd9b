"""Defines the terms of a device request as data, and evaluates each term for one device.

A term is true, false, or unknown (None): a device that lacks an attribute is unknown in whatever compares it, as a
missing field is an error in CEL, and ``&&`` and ``||`` absorb it as they do there. Only true selects a device.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from operator import ge, gt, le, lt
from typing import Any

import msgspec

from ai.backend.common.errors import InvalidQuantity
from ai.backend.common.slots import BinarySize

Value = Decimal | str
"""A stated value: a number, a size in bytes, or text (also a version)."""
Attributes = Mapping[str, tuple[Value, ...]]
"""The attributes of one device: name -> values. Only a list attribute has more than one value."""

_VERSION = re.compile(r"[vV]?[0-9]+(?:\.[0-9]+)*")
ORDERS: Mapping[str, Callable[[Any, Any], bool]] = {"<": lt, "<=": le, ">": gt, ">=": ge}
TEXT_TESTS: Mapping[str, Callable[[str, str], bool]] = {
    "startsWith": str.startswith,
    "endsWith": str.endswith,
    "contains": str.__contains__,
}


def version_key(text: str) -> tuple[int, ...] | None:
    """Returns the numbers of a dotted version without trailing zeros; None for any other text."""
    if len(text) > 64 or _VERSION.fullmatch(text) is None:
        return None
    numbers = [int(digits) for digits in text.lstrip("vV").split(".")]
    while len(numbers) > 1 and not numbers[-1]:
        numbers.pop()
    return tuple(numbers)


class Literal(msgspec.Struct, frozen=True):
    """Represents a literal value of a request, as the user wrote the value.

    ``number``: of a number or a size; None for text and for versions of three parts.
    """

    text: str
    number: Decimal | None = None
    is_quoted: bool = False

    def __str__(self) -> str:
        if not self.is_quoted:
            return self.text
        escaped_text = self.text.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{escaped_text}"'

    def equals(self, device_value: Value) -> bool:
        if isinstance(device_value, Decimal):
            return self.number == device_value
        if self.is_quoted:
            return self.text == device_value
        version = version_key(device_value)
        return version == version_key(self.text) if version is not None else self._size_of(device_value) == self.number

    def compare(self, device_value: Value, order: str) -> bool | None:
        """Returns True if a device's value stands in the given order to this literal.

        Returns None if the two have no order.
        """
        is_ordered = ORDERS[order]
        if isinstance(device_value, Decimal):
            return None if self.number is None else is_ordered(device_value, self.number)
        version, literal_version = version_key(device_value), version_key(self.text)
        if version is not None and literal_version is not None:
            return is_ordered(version, literal_version)
        size = self._size_of(device_value)
        return None if size is None or self.number is None else is_ordered(size, self.number)

    @staticmethod
    def _size_of(device_value: str) -> Decimal | None:
        try:
            return Decimal(int(BinarySize.parse(device_value)))
        except InvalidQuantity:
            return None


class Comparison(msgspec.Struct, frozen=True):
    """Compares an attribute: ``==``, ``!=``, an order, or a test of text with one literal; ``in`` with several.

    ``in`` with ``is_flipped`` is ``literal in attribute``, the same for attributes that are lists.
    """

    name: str
    operator: str
    literals: tuple[Literal, ...]
    is_flipped: bool = False

    def __str__(self) -> str:
        if self.operator in TEXT_TESTS:
            return f"{self.name}.{self.operator}({self.literals[0]})"
        if self.is_flipped:
            return f"{self.literals[0]} in {self.name}"
        if self.operator == "in":
            return f"{self.name} in [{', '.join(map(str, self.literals))}]"
        return f"{self.name} {self.operator} {self.literals[0]}"

    def value_for(self, attributes: Attributes) -> bool | None:
        device_values = attributes.get(self.name)
        if not device_values:
            return None
        if self.operator in ("==", "in", "!="):
            is_equal = any(literal.equals(device_value) for literal in self.literals for device_value in device_values)
            return is_equal is not (self.operator == "!=")
        literal = self.literals[0]
        if (text_test := TEXT_TESTS.get(self.operator)) is not None:
            return any(
                isinstance(device_value, str) and text_test(device_value, literal.text)
                for device_value in device_values
            )
        results = [literal.compare(device_value, self.operator) for device_value in device_values]
        return True if True in results else None if None in results else False


class Has(msgspec.Struct, frozen=True):
    """Requires that a device states an attribute."""

    name: str

    def __str__(self) -> str:
        return f"has({self.name})"

    def value_for(self, attributes: Attributes) -> bool | None:
        return bool(attributes.get(self.name))


class Not(msgspec.Struct, frozen=True):
    term: Term

    def __str__(self) -> str:
        return f"!({self.term})"

    def value_for(self, attributes: Attributes) -> bool | None:
        value = self.term.value_for(attributes)
        return None if value is None else not value


class AllOf(msgspec.Struct, frozen=True):
    terms: tuple[Term, ...]

    def __str__(self) -> str:
        return " && ".join(f"({term})" if isinstance(term, AnyOf) else str(term) for term in self.terms)

    def value_for(self, attributes: Attributes) -> bool | None:
        values = [term.value_for(attributes) for term in self.terms]
        return False if False in values else None if None in values else True


class AnyOf(msgspec.Struct, frozen=True):
    terms: tuple[Term, ...]

    def __str__(self) -> str:
        return " || ".join(str(term) for term in self.terms)

    def value_for(self, attributes: Attributes) -> bool | None:
        values = [term.value_for(attributes) for term in self.terms]
        return True if True in values else None if None in values else False


Term = Comparison | Has | Not | AllOf | AnyOf


class Alike(msgspec.Struct, frozen=True):
    """Requires that all devices of a kernel agree in an attribute (``same``), or that each two devices differ
    (``distinct``).

    A device that lacks the attribute is not taken.
    """

    name: str
    is_distinct: bool = False

    def __str__(self) -> str:
        return f"{'distinct' if self.is_distinct else 'same'}({self.name})"


class LinkBandwidth(msgspec.Struct, frozen=True):
    """Requires that each two devices of a kernel are linked with at least this many GiB/s."""

    least: Decimal
    text: str

    def __str__(self) -> str:
        return f"link_bandwidth >= {self.text}"


class LinkKinds(msgspec.Struct, frozen=True):
    """Requires that each two devices of a kernel are linked by one of these kinds of links."""

    kinds: tuple[str, ...]

    def __str__(self) -> str:
        quoted_kinds = [f'"{kind}"' for kind in self.kinds]
        return f"link in [{', '.join(quoted_kinds)}]"


class Tolerates(msgspec.Struct, frozen=True):
    """Permits devices that have a taint with this key. The key "*" permits every taint."""

    key: str

    def __str__(self) -> str:
        return f"tolerates({Literal(self.key, is_quoted=True)})"


class Amount(msgspec.Struct, frozen=True):
    """States the quantity of a slot that a kernel takes if this alternative is chosen.

    ``text``: the quantity as it is written.
    """

    slot: str
    quantity: Decimal
    text: str

    def __str__(self) -> str:
        return f"amount({Literal(self.slot, is_quoted=True)}, {self.text})"


Constraint = Alike | LinkBandwidth | LinkKinds | Tolerates | Amount
