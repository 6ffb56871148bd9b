"""Serves the REST routes of arrays, which are many batch sessions of one request (docs/decisions/0276)."""

from __future__ import annotations

from typing import Any, TypedDict

from ai.backend.common.structs import replace
from ai.backend.infra.http.routes import Call, Nothing, OwnerKey, Reply, route
from ai.backend.manager.access.caller import Caller
from ai.backend.manager.access.requests import SESSION_PROBLEMS, caller_of
from ai.backend.manager.arrays import schemas
from ai.backend.manager.arrays.model import ArrayQuery
from ai.backend.manager.arrays.schemas import array_reply
from ai.backend.manager.arrays.service import ArrayService
from ai.backend.manager.sessions.views import audited_fields, creation_of


class _ArrayArguments(TypedDict):
    caller: Caller
    ref: str
    owner_access_key: str | None


def _array_of(call: Call[Any, Any]) -> _ArrayArguments:
    return {"caller": caller_of(call), "ref": call.params["a"], "owner_access_key": call.owner_access_key}


class ArraysApi:
    """Serves arrays. ``{a}`` is an id, or the name of the newest array of that name; those of others are not found."""

    owner_key = OwnerKey.NAMED
    problems = SESSION_PROBLEMS

    def __init__(self, arrays: ArrayService) -> None:
        self._arrays = arrays

    @route(
        "POST",
        "/arrays",
        body=schemas.CreateArrayBody,
        reply=schemas.ArrayReply,
        status=201,
        also=(200,),
        repeatable=True,  # the array has the id of the call
    )
    async def create(self, call: Call[schemas.CreateArrayBody]) -> Reply:
        """Enqueue a batch session for each index, all or none: 201 if it is new, 200 if the call was repeated."""
        request = creation_of(call.body.session)
        request = replace(request, owner_access_key=call.owner_access_key or request.owner_access_key)
        call.audit_detail.update(audited_fields(request))
        array, is_new = await self._arrays.create(caller_of(call), request, call.body.indices, call_id=call.call_id)
        return Reply(array_reply(array), 201 if is_new else 200)

    @route("GET", "/arrays", query=schemas.ListArraysQuery, reply=schemas.ArrayList)
    async def search(self, call: Call[Nothing, schemas.ListArraysQuery]) -> schemas.ArrayList:
        """List arrays, the newest first."""
        query = call.query
        page = await self._arrays.search(
            caller_of(call),
            ArrayQuery(limit=query.limit, offset=query.offset, is_live=query.live, access_key=call.owner_access_key),
        )
        return schemas.ArrayList(items=[array_reply(array) for array in page.items], total_count=page.total_count)

    @route("GET", "/arrays/{a}", reply=schemas.ArrayReply)
    async def get(self, call: Call) -> schemas.ArrayReply:
        """Describe an array and count its elements."""
        return array_reply(await self._arrays.get(**_array_of(call)))

    @route("DELETE", "/arrays/{a}", query=schemas.CancelArrayQuery, reply=schemas.ArrayReply)
    async def cancel(self, call: Call[Nothing, schemas.CancelArrayQuery]) -> schemas.ArrayReply:
        """End all elements that live; waiting ones are cancelled."""
        return array_reply(await self._arrays.cancel(**_array_of(call), forced=call.query.forced))

    @route("POST", "/arrays/{a}/retry", reply=schemas.RetriedArray)
    async def retry(self, call: Call) -> schemas.RetriedArray:
        """Enqueue the elements that have ended without success again."""
        array, retried = await self._arrays.retry(**_array_of(call))
        return schemas.RetriedArray(array=array_reply(array), retried=retried)
