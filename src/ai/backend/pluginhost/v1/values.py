"""Converts and checks values that v1 plugins return."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from numbers import Integral
from typing import Any

from ai.backend.plugin.accelerator.shapes import InvalidResponse


def listed(method: str, answer: Any) -> Sequence[Any]:
    """Raises InvalidResponse for what is no collection."""
    if not hasattr(answer, "__iter__") or isinstance(answer, str | bytes):
        raise InvalidResponse(f"{method} returned {answer!r:.60} instead of a list")
    return list(answer)


def texts_of(method: str, answer: Any) -> dict[str, str]:
    """Raises InvalidResponse for what is no mapping."""
    try:
        items = dict(answer)
    except (TypeError, ValueError):
        raise InvalidResponse(f"{method} returned {answer!r:.60} instead of a mapping") from None
    return {str(key): str(value) for key, value in items.items()}


def exact(value: object, where: str) -> Decimal:
    """Returns a finite Decimal as it is, and a whole number of any type as that number.

    Raises:
        InvalidResponse: it is nothing of these; ``where`` names it.
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
            raise InvalidResponse(f"{where} is the float {value!r:.40}; quantities with fractions are Decimal")
    raise InvalidResponse(f"{where} is {value!r:.60}, which is no quantity")
