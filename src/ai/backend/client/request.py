"""Sends requests of the caller's own, signed, over the open API session (spec 03-12, "Request API").

request = Request("GET", "/config/resource-slots")
async with request.fetch() as response:        # inside `async with AsyncSession()`
    print(await response.json())
with request.fetch() as response:              # inside `with Session()`
    print(response.json())
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ai.backend.client.exceptions import BackendClientError
from ai.backend.client.session import AsyncSession, Session, api_session
from ai.backend.client.wire import Call, Reply, new_token


class Response:
    """Holds a whole HTTP response, for blocking programs."""

    def __init__(self, reply: Reply) -> None:
        self.status = reply.status
        self.headers = reply.headers
        self._reply = reply

    def json(self) -> Any:
        return self._reply.json()

    def text(self) -> str:
        return self._reply.body.decode()

    def read(self) -> bytes:
        return self._reply.body


class AsyncResponse:
    """Holds a whole HTTP response, for asyncio programs."""

    def __init__(self, reply: Reply) -> None:
        self.status = reply.status
        self.headers = reply.headers
        self._response = Response(reply)

    async def json(self) -> Any:
        return self._response.json()

    async def text(self) -> str:
        return self._response.text()

    async def read(self) -> bytes:
        return self._response.read()


class Fetch:
    """A context manager that sends a request on entry and returns the response.

    It is the result of :meth:`Request.fetch`: ``async with`` in an asynchronous session, else ``with``.
    """

    def __init__(self, session: Session | AsyncSession, call: Call) -> None:
        self._session = session
        self._call = call

    def __enter__(self) -> Response:
        if not isinstance(self._session, Session):
            raise BackendClientError("inside an AsyncSession write `async with request.fetch()`")
        return Response(self._session.transport.request(self._call))

    def __exit__(self, *_error: object) -> None:
        pass

    async def __aenter__(self) -> AsyncResponse:
        if not isinstance(self._session, AsyncSession):
            raise BackendClientError("inside a blocking Session write `with request.fetch()`")
        return AsyncResponse(await self._session.transport.request(self._call))

    async def __aexit__(self, *_error: object) -> None:
        pass


class Request:
    """Describes an API request of the caller's own: its method, its path and its query parameters.

    ``path`` is already encoded.
    """

    def __init__(self, method: str, path: str, *, params: Mapping[str, str] | None = None) -> None:
        self.method = method.upper()
        self.path = "/" + path.lstrip("/")
        self.params = dict(params or {})
        self._body: dict[str, Any] = {}

    def set_json(self, value: Any) -> None:
        self._body = {"json": value}

    def set_content(self, content: bytes, *, content_type: str = "application/octet-stream") -> None:
        self._body = {"content": content, "content_type": content_type}

    def fetch(self) -> Fetch:
        """Returns a context manager that sends the request over the open API session when entered.

        Raises BackendClientError if no API session is open in this context.
        """
        session = api_session.get(None)
        if session is None:
            raise BackendClientError("no API session is open: write `with Session():` or `async with AsyncSession():`")
        is_read_only = self.method in {"GET", "HEAD", "REPORT"}
        token = None if is_read_only else new_token()
        params = self.params or None
        call = Call(
            method=self.method, path=self.path, params=params, repeatable=is_read_only, token=token, **self._body
        )
        return Fetch(session, call)
