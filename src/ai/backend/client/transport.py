"""Defines the interface by which the SDK sends requests, and the failover and retries that its adapters share.

Retries (an endpoint that fails is left for the next one):

* a connection that was never made: always, the request has not left this computer;
* a connection that broke afterwards: only if the call says ``repeatable``. Calls that change something are repeatable
  where they carry a client token, by which the server recognises the repetition.

An answer is never retried, whatever its status.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any

from ai.backend.client.config import APIConfig
from ai.backend.client.exceptions import BackendClientError, EndpointUnreachable
from ai.backend.client.types import Remote
from ai.backend.client.wire import Call, Reply, api_error_of, prepare_request

if TYPE_CHECKING:
    import aiohttp

_PAUSES_S = (0.1, 0.4, 0.0)
"""Seconds after the rounds over all endpoints."""


class Transport(Remote, ABC):
    """Sends requests to the endpoints of ``config``. An adapter for each kind of program implements the connections.

    Open it where it is used.

    The adapter on aiohttp serves asyncio programs and has streams; the plain one blocks the thread that uses it, and
    needs neither an event loop nor a large library.

    Attributes:
        never_sent_errors: what :meth:`_exchange` raises if no connection was made.
        broken_errors: what it and :meth:`_receive` raise if a connection broke.
    """

    never_sent_errors: tuple[type[Exception], ...] = ()
    broken_errors: tuple[type[Exception], ...] = (ConnectionError, TimeoutError)

    def __init__(self, config: APIConfig) -> None:
        self.config = config

    async def open(self) -> None:
        """Opens the transport at a randomly chosen endpoint."""
        for _ in range(random.randrange(len(self.config.endpoint_urls))):
            self.config.fail_over()

    @abstractmethod
    async def close(self) -> None:
        """Closes all connections."""

    @abstractmethod
    async def pause(self, seconds: float) -> None:
        """Sleeps for a number of seconds between two requests."""

    @abstractmethod
    async def _exchange(self, method: str, url: str, headers: Mapping[str, str], body: Any) -> Any:
        """Sends a request and returns the response with its body unread."""

    @abstractmethod
    async def _receive(self, response: Any) -> Reply:
        """Reads a response to its end."""

    async def request(self, call: Call) -> Reply:
        """Sends a request and returns the complete response.

        Raises:
            BackendAPIError: the server refused.
            EndpointUnreachable: no endpoint answered.
        """
        for is_last_try in (False, True):
            response = await self._send(call)
            try:
                reply = await self._receive(response)
            except self.broken_errors as error:
                # The answer broke off in its middle.
                if is_last_try or not call.repeatable:
                    raise self.unreachable(error) from error
                self.config.fail_over()
                continue
            if reply.status >= 400:
                raise api_error_of(reply.status, response.reason or "", reply.body)
            return reply
        raise AssertionError("unreachable")

    async def _send(self, call: Call) -> Any:
        last_error: Exception | None = None
        for pause_s in _PAUSES_S:
            for _ in self.config.endpoint_urls:
                try:
                    return await self._exchange(call.method, *prepare_request(self.config, call))
                except self.broken_errors as error:
                    if not call.repeatable and not isinstance(error, self.never_sent_errors):
                        raise self.unreachable(error) from error
                    last_error = error
                self.config.fail_over()
            await self.pause(pause_s)
        endpoint_names = ", ".join(self.config.endpoint_urls)
        raise EndpointUnreachable(f"no answer from {endpoint_names}: {last_error or 'timed out'}") from last_error

    def unreachable(self, error: Exception | None) -> EndpointUnreachable:
        """Returns an EndpointUnreachable error whose message has the reason for which a connection broke."""
        reason = str(error) or type(error).__name__
        return EndpointUnreachable(f"the connection to {self.config.endpoint_url} broke: {reason}")

    @property
    def session(self) -> aiohttp.ClientSession:
        """Returns the underlying HTTP session, for unsigned requests to other servers."""
        raise BackendClientError("transfers need an asynchronous transport")

    def stream(self, call: Call) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        """Sends a call and yields its answer with the body unread. Errors are as in :meth:`request`."""
        raise BackendClientError("streams need an asynchronous transport")

    def websocket(
        self, path: str, params: Mapping[str, str] | None = None, *, for_bytes: bool = False
    ) -> AbstractAsyncContextManager[aiohttp.ClientWebSocketResponse]:
        """Opens a WebSocket.

        One ``for_bytes`` waits for no pongs, as slow readers answer late; the number of such connections is not
        limited, and a refusal has the server's full explanation.

        Raises:
            BackendAPIError: the server refused the upgrade.
            EndpointUnreachable: no endpoint answered.
        """
        raise BackendClientError("streams need an asynchronous transport")
