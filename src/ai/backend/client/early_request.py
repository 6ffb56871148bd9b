"""A request that is sent while the program still imports its HTTP library (docs/decisions/0195).

It is a first try on a plain connection. Where it fails without an answer of the server, the caller makes the same call
again in the usual way, and the call's client token tells the server that it is the same one.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from http.client import HTTPConnection, HTTPException

from ai.backend.client.config import APIConfig
from ai.backend.client.wire import Call, Reply, prepare, problem


class PendingReply:
    """A call that a thread has sent, and the reply that the thread waits for."""

    def __init__(self, config: APIConfig, call: Call) -> None:
        self.call = call
        self._url, self._headers, self._body = prepare(config, call)
        self._timeout = config.connection_timeout or None
        self._answer: tuple[int, str, dict[str, str], bytes] | None = None
        self._lock = threading.Lock()
        self._is_done = False
        self._callback: Callable[[], object] | None = None
        threading.Thread(target=self._work, name="backendai-early", daemon=True).start()

    def _work(self) -> None:
        self._exchange()
        with self._lock:
            self._is_done = True
            callback = self._callback
        if callback is not None:
            callback()

    def _exchange(self) -> None:
        connection = HTTPConnection(str(self._url.host), self._url.port, timeout=self._timeout)
        try:
            connection.connect()
            connection.sock.settimeout(None)
            connection.request(self.call.method, self._url.raw_path_qs, body=self._body, headers=self._headers)
            response = connection.getresponse()
            self._answer = response.status, response.reason, dict(response.getheaders()), response.read()
        except (OSError, HTTPException):
            pass  # the caller repeats the call on a usual connection, which reports errors
        finally:
            connection.close()

    async def wait(self) -> Reply | None:
        """Returns the answer, or None if the call must be made again. A cancellation does not wait for the thread.

        Raises BackendAPIError if the server refused.
        """
        loop = asyncio.get_running_loop()
        is_answered = asyncio.Event()

        def resume_waiter() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(is_answered.set)

        with self._lock:
            self._callback = resume_waiter
            if self._is_done:
                is_answered.set()
        await is_answered.wait()
        if self._answer is None:
            return None
        status, reason, headers, body = self._answer
        if status >= 400:
            raise problem(status, reason, body)
        return Reply(status, headers, body)


def send_early(config: APIConfig, call: Call) -> PendingReply | None:
    """Sends a call at once; returns None unless it has one endpoint without TLS, credentials, and may be repeated."""
    is_simple = len(config.endpoints) == 1 and config.endpoint.scheme == "http" and config.has_credentials
    return PendingReply(config, call) if is_simple and call.repeatable and call.token and call.form is None else None
