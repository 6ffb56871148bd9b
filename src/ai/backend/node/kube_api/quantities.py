"""Parses quantities of resources (Kubernetes API reference, "Quantity"): ``1500m``, ``2Gi``, ``1e3``."""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation

from ai.backend.common.errors import InvalidQuantity

_FACTOR_OF_SUFFIX = {
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    "": Decimal(1),
    **{letter: Decimal(1000) ** (power + 1) for power, letter in enumerate("kMGTPE")},
    **{f"{letter}i": Decimal(1024) ** (power + 1) for power, letter in enumerate("KMGTPE")},
}
_SHOWN_CHARACTERS = 64
_QUANTITY = re.compile(r"([+-]?[0-9.]{1,40}(?:[eE][+-]?[0-9]{1,3}(?![0-9]))?)([numkKMGTPE]?i?)")


def parse_quantity(text: str) -> Decimal:
    """Returns the number of a quantity in its base unit: cores, bytes or pieces. Raises InvalidQuantity."""
    match = _QUANTITY.fullmatch(text)
    try:
        if match is None or match[2] not in _FACTOR_OF_SUFFIX:
            raise InvalidOperation
        return Decimal(match[1]) * _FACTOR_OF_SUFFIX[match[2]]
    except InvalidOperation:
        raise InvalidQuantity(f"{text[:_SHOWN_CHARACTERS]!r} is no quantity") from None
