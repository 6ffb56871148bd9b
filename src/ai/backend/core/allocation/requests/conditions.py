"""Checks expressions that judge one device, such as rules of health."""

from __future__ import annotations

from ai.backend.common.errors import InvalidInput
from ai.backend.core.allocation.requests.compiled import RequestCompiler


def check_condition(text: str) -> None:
    """Raises ValueError for an expression that cannot be read, or that says more than what one device is."""
    try:
        request = RequestCompiler().compile(text)
    except InvalidInput as e:
        raise ValueError(e.message) from None
    if request.term is None or request.constraints or request.tolerated or request.amounts:
        raise ValueError("it judges one device: constraints, amounts and tolerations have no place in it")
