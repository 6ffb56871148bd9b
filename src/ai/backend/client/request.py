"""Requests of the caller's own, signed and sent by the open API session (spec 03-12, "Request API").

request = Request("GET", "/config/resource-slots")
async with request.fetch() as response:        # inside `async with AsyncSession()`
    print(await response.json())
with request.fetch() as response:              # inside `with Session()`
    print(response.json())
"""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any

from ai.backend.client.exceptions import BackendClientError
from ai.backend.client.session import AsyncSession, Session, api_session
from ai.backend.client.wire import Call, Reply, new_token


class AsyncResponse:
    """A whole answer, for asyncio programs."""

    def __init__(self, reply: Reply) -> None:
        self.status = reply.status
        self.headers = reply.headers
        self._reply = reply

    async def json(self) -> Any:
        return self._reply.json()

    async def text(self) -> str:
        return self._reply.body.decode()

    async def read(self) -> bytes:
        return self._reply.body


class Response:
    """A whole answer, for blocking programs."""

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


class Fetch:
    """The result of :meth:`Request.fetch`: enter it with ``with`` or ``async with``, as the open session is."""

    def __init__(self, session: Session | AsyncSession, call: Call) -> None:
        self._session = session
        self._call = call

    def __enter__(self) -> Response:
        if not isinstance(self._session, Session):
            raise BackendClientError("inside an AsyncSession write `async with request.fetch()`")
        return Response(self._session.portal.run(self._session.inner.transport.request(self._call)))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    async def __aenter__(self) -> AsyncResponse:
        if not isinstance(self._session, AsyncSession):
            raise BackendClientError("inside a blocking Session write `with request.fetch()`")
        return AsyncResponse(await self._session.transport.request(self._call))

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None


class Request:
    """A request: ``method``, ``path`` (already encoded), and ``params`` for the query string."""

    def __init__(self, method: str, path: str, *, params: Mapping[str, str] | None = None) -> None:
        self.method = method.upper()
        self.path = "/" + path.lstrip("/")
        self.params = dict(params or {})
        self._json: Any = None
        self._content: bytes | None = None
        self._content_type: str | None = None

    def set_json(self, value: Any) -> None:
        self._json = value

    def set_content(self, content: bytes, *, content_type: str = "application/octet-stream") -> None:
        self._content, self._content_type = content, content_type

    def fetch(self) -> Fetch:
        """Send it when entered.

        Raises:
            BackendClientError: no API session is open here.
        """
        session = api_session.get(None)
        if session is None:
            raise BackendClientError("no API session is open: write `with Session():` or `async with AsyncSession():`")
        safe = self.method in {"GET", "HEAD", "REPORT"}
        call = Call(
            method=self.method,
            path=self.path,
            params=self.params or None,
            json=self._json,
            content=self._content,
            content_type=self._content_type,
            repeatable=safe,
            token=None if safe else new_token(),
        )
        return Fetch(session, call)
