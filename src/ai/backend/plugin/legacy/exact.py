"""Quantities of v1 plugins, which may be of any number type, as exact ones."""

from __future__ import annotations

from decimal import Decimal
from numbers import Integral

from ai.backend.plugin.host.schema import BadAnswer


def exact(value: object, where: str) -> Decimal:
    """A finite Decimal as it is, a whole number of any type as that number.

    Raises:
        BadAnswer: it is nothing of these; ``where`` names it.
    """
    match value:
        case bool():
            pass
        case Decimal() if value.is_finite():
            return value
        case Integral():
            return Decimal(int(value))
        case float() if value.is_integer():
            return Decimal(int(value))
        case float():
            raise BadAnswer(f"{where} is the float {value!r:.40}; quantities with fractions are Decimal")
    raise BadAnswer(f"{where} is {value!r:.60}, which is no quantity")
