"""Connections to Redis or Valkey."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ai.backend.common.errors import InvalidInput

if TYPE_CHECKING:
    from redis.asyncio import Redis


def connect(url: str, *, timeout_s: float = 2.0) -> Redis:
    """A client that connects when it is used.

    Args:
        url: ``redis://[[user]:password@]host:port[/number]``, ``rediss://`` with TLS, ``unix://``.
        timeout_s: for one answer; whoever blocks on purpose says so.

    Raises:
        InvalidInput: the URL is malformed, or the extra is not installed.
    """
    try:
        from redis.asyncio import Redis
    except ModuleNotFoundError:
        raise InvalidInput("a shared bus needs redis: pip install 'backendai[redis]'") from None
    try:
        return Redis.from_url(
            url, protocol=2, socket_connect_timeout=timeout_s, socket_timeout=timeout_s, socket_keepalive=True
        )
    except ValueError as e:
        raise InvalidInput(f"no Redis is named by this URL: {e}", data={"redis": "malformed"}) from None
