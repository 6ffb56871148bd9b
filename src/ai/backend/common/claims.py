"""Values of device claims."""

from __future__ import annotations

from enum import StrEnum


class ClaimStatus(StrEnum):
    """The status of a claim; its transitions are in ``core/lifecycle/claim.py``."""

    UNALLOCATED = "UNALLOCATED"
    ALLOCATING = "ALLOCATING"
    IN_USE = "IN_USE"
    IDLE = "IDLE"
    DELETED = "DELETED"

    @property
    def holds(self) -> bool:
        """True if the claim holds devices."""
        return self in HOLDING_CLAIM_STATUSES


HOLDING_CLAIM_STATUSES = frozenset({ClaimStatus.ALLOCATING, ClaimStatus.IN_USE, ClaimStatus.IDLE})
