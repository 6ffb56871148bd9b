"""Calls of a v1 plugin's methods."""

from __future__ import annotations

import inspect
from typing import Any

from ai.backend.common.errors import CreationDenied


class V1CallFailed(Exception):
    """A method of the v1 interface raised something; the message begins with its name."""


async def ask(plugin: object, method: str, *arguments: Any) -> Any:
    """Call a method, and wait for it if it is a coroutine: one that is not, or should not be, does no harm.

    Raises:
        CreationDenied: the plugin used what there is not.
        V1CallFailed: anything else that it raised.
    """
    try:
        answer = getattr(plugin, method)(*arguments)
        return await answer if inspect.isawaitable(answer) else answer
    except CreationDenied:
        raise
    except Exception as e:
        raise V1CallFailed(f"{method} raised {type(e).__name__}: {e}") from e
