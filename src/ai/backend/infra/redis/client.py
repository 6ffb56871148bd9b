"""Connections to Redis or Valkey."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ai.backend.common.errors import InvalidInput

if TYPE_CHECKING:
    from redis.asyncio import Redis


def connect(url: str, *, timeout_s: float = 2.0) -> Redis:
    """Returns a client that connects on first use.

    Args:
        url: ``redis://[[user]:password@]host:port[/number]``, ``rediss://`` with TLS, ``unix://``.
        timeout_s: for one answer; whoever blocks on purpose says so.

    Raises:
        InvalidInput: the URL is malformed, or the extra is not installed.
    """
    try:
        from redis.asyncio import Redis
        from redis.asyncio.retry import Retry
        from redis.backoff import NoBackoff
    except ModuleNotFoundError:
        raise InvalidInput("a shared bus needs redis: pip install 'backendai[redis]'") from None
    try:
        return Redis.from_url(
            url,
            protocol=2,
            socket_connect_timeout=timeout_s,
            socket_timeout=timeout_s,
            socket_keepalive=True,
            # Once more, for a connection that was cut while it lay idle. By default it waits up to a minute in silence.
            retry=Retry(NoBackoff(), 1),
        )
    except ValueError as e:
        raise InvalidInput(f"no Redis is named by this URL: {e}", data={"redis": "malformed"}) from None
