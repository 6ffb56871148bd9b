"""The outcomes of checks."""

from __future__ import annotations


class CheckFailed(AssertionError):
    """The plugin breaks a promise. The message says which, with the values that show it."""


class NotApplicable(Exception):
    """The plugin does not claim what is checked. The message begins with ``capability:``."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"capability: {reason}")


def shown(value: object, limit: int = 120) -> str:
    """Formats a value for a message."""
    text = repr(value)
    return text if len(text) <= limit else f"{text[:limit]}..."
