"""Manages arrays of batch sessions, which are many jobs of one request.

array = await api.SessionArray.create("python", "1-1000%50", startup_command="python job.py", name="sweep")
print((await array.info())["counts"])
"""

from __future__ import annotations

from typing import Any, Unpack

from ai.backend.client.func.base import Area
from ai.backend.client.func.creation import CreateOptions, creation_call
from ai.backend.client.transport import Transport
from ai.backend.client.wire import Call, Reply, encode_segment, new_token

LIVE_STATUSES = frozenset({"PENDING", "RUNNING"})
"""The statuses of an array that has not ended."""


class AsyncSessionArray(Area):
    """Manages one array, given by its id or by its name.

    Of several arrays with the name, the newest is meant. Constructing it sends no request.
    """

    def __init__(self, transport: Transport, name: str, owner_access_key: str | None = None) -> None:
        super().__init__(transport)
        self.name = name
        self.owner_access_key = owner_access_key

    async def info(self) -> dict[str, Any]:
        """Returns ``id``, ``name``, ``status``, ``size``, ``counts`` by status, and further properties."""
        return await self._get(self._path(), owner_access_key=self.owner_access_key)

    async def cancel(self, *, forced: bool = False) -> dict[str, Any]:
        """Ends all live elements of the array without waiting for their end. Returns the array."""
        return (await self._send_change("DELETE", **({"forced": "true"} if forced else {}))).object()

    async def retry(self) -> dict[str, Any]:
        """Enqueues the elements again that have ended without success. Returns ``array`` and ``retried``."""
        return (await self._send_change("POST", "/retry")).object()

    def _path(self, operation: str = "") -> str:
        return f"/arrays/{encode_segment(self.name)}{operation}"

    async def _send_change(self, method: str, operation: str = "", **params: str) -> Reply:
        owner = {"owner_access_key": self.owner_access_key} if self.owner_access_key else {}
        call = Call(
            method=method, path=self._path(operation), params={**owner, **params}, repeatable=True, token=new_token()
        )
        return await self._transport.request(call)


class AsyncSessionArrays(Area):
    """Creates and lists arrays (``api_session.SessionArray``). Called with a name or id, returns a handle."""

    def __call__(self, name: str, owner_access_key: str | None = None) -> AsyncSessionArray:
        return AsyncSessionArray(self._transport, name, owner_access_key)

    async def create(self, image: str, indices: str, **options: Unpack[CreateOptions]) -> AsyncSessionArray:
        """Creates an array: one batch session for each number in ``indices``, such as ``1-1000`` or ``1,3,7-9``.

        ``indices`` may also have a step, as ``0-99:5``, and end with ``%N`` for N at a time. Options are those of a
        session; each element has its index as ``BACKENDAI_ARRAY_INDEX``.
        """
        session = creation_call(self._transport.config, image, **options | {"type_": "batch"}).json
        if not (options.get("name") or options.get("client_token")):
            session["name"] = None
        body = {"indices": indices, "session": session}
        array = await self._change("POST", "/arrays", body)
        return AsyncSessionArray(self._transport, str(array["id"]), session["owner_access_key"])

    async def list(
        self, *, live: bool = False, limit: int = 20, offset: int = 0, owner_access_key: str | None = None
    ) -> dict[str, Any]:
        """Returns ``items``, the newest first, and ``totalCount``. ``live`` leaves out arrays that have ended."""
        query = {"live": "true" if live else None, "limit": limit, "offset": offset}
        return await self._get("/arrays", **query, owner_access_key=owner_access_key)
