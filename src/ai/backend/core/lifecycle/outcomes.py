"""What a transition table says where there is no next status."""

from __future__ import annotations

from enum import StrEnum


class Outcome(StrEnum):
    """The two ways of not moving. Every (status, trigger) pair of a table is a status or one of these."""

    IGNORED = "ignored"
    """Already so, or out of date: the state stays, no error. Makes repeated and late messages harmless."""
    REFUSED = "refused"
    """A request that the present status does not admit: :class:`~ai.backend.common.errors.Conflict`."""
