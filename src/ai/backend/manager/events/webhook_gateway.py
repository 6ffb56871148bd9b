"""Declares the interface to the receivers of callbacks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol


class WebhookFailed(Exception):
    """Raised for a callback that was not accepted; the text has neither the URL nor the response.

    Attributes:
        can_retry: False if a retry cannot succeed.
    """

    def __init__(self, reason: str, *, can_retry: bool = True) -> None:
        super().__init__(reason)
        self.can_retry = can_retry


class WebhookSender(Protocol):
    """Posts the callbacks of sessions."""

    async def send(self, url: str, callback_id: int, body: Mapping[str, Any]) -> None:
        """Posts ``body`` as JSON to a callback URL; ``callback_id`` is the same at every attempt. Raises WebhookFailed
        if it is refused.
        """
        ...

    async def close(self) -> None: ...
