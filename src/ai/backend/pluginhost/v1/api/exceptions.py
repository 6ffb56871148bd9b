"""Names of ``ai.backend.agent.exception`` as subclasses of the platform's errors."""

from __future__ import annotations

from typing import Any

from ai.backend.common import errors

__all__ = [
    "FractionalResourceFragmented", "InitializationError", "InsufficientResource", "InvalidResourceArgument",
    "InvalidResourceCombination", "NotMultipleOfQuantum", "ResourceError", "UnsupportedResource",
]  # fmt: skip

ResourceError = errors.ResourceError
UnsupportedResource = errors.UnsupportedResource
NotMultipleOfQuantum = errors.NotMultipleOfQuantum


class InitializationError(Exception):
    """Raised by a v1 plugin that cannot be started."""


class InvalidResourceCombination(ResourceError):
    """Raised for a request for slots that exclude each other."""


class InvalidResourceArgument(errors.InvalidQuantity):
    """Raised for a quantity that a slot cannot have."""


class FractionalResourceFragmented(ResourceError):
    """Raised for a request that fits only if it is split over several devices."""


class InsufficientResource(errors.InsufficientResource):
    def __init__(
        self,
        msg: str = "",
        slot_name: str = "",
        requested_alloc: object = None,
        total_allocatable: object = None,
        allocation: object = None,
        context_tag: str | None = None,
    ) -> None:
        del allocation
        error_data: dict[str, Any] = {
            "slot": slot_name,
            "requested": requested_alloc,
            "available": total_allocatable,
            "context": context_tag,
        }
        super().__init__(msg, data={key: str(value) for key, value in error_data.items() if value is not None})
