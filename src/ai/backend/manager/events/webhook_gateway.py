"""Agents, their watchers, and the receivers of callbacks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol


class WebhookFailed(Exception):
    """A callback was not taken. The text names neither the URL nor what was said.

    Attributes:
        may_pass: whether another try has any hope.
    """

    def __init__(self, why: str, *, may_pass: bool = True) -> None:
        super().__init__(why)
        self.may_pass = may_pass


class WebhookSender(Protocol):
    """Tells somebody out there."""

    async def send(self, url: str, callback_id: int, body: Mapping[str, Any]) -> None:
        """Post ``body`` as JSON; ``callback_id`` is the same at every try.

        Raises:
            CallbackFailed: nobody took it.
        """
        ...

    async def close(self) -> None: ...
