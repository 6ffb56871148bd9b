"""Defines requests and replies about arrays."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from ai.backend.infra.http.routes import Schema
from ai.backend.manager.arrays.model import SessionArray
from ai.backend.manager.sessions.schemas import CreateSessionBody


class CreateArrayBody(Schema, frozen=True):
    """The request for a new array: the indices of its elements, and the request for the session of each element.
    ``indices`` are ``1-1000``, ``0-99:5`` or ``1,3,7-9``, and ``%N`` after them lets N elements be scheduled at a time.
    ``session`` is the request for each element, whose name is ``NAME-INDEX``.
    """

    indices: Annotated[str, Meta(min_length=1, max_length=65_536)]
    session: CreateSessionBody


class ListArraysQuery(Schema, frozen=True):
    """Selects a page of arrays; ``live`` leaves out arrays whose elements have all ended."""

    live: bool = False
    limit: Annotated[int, Meta(ge=1, le=1_000)] = 20
    offset: Annotated[int, Meta(ge=0)] = 0


class CancelArrayQuery(Schema, frozen=True):
    forced: bool = False


class ArrayReply(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """An array. ``status`` is PENDING or RUNNING while elements live, then SUCCESS if all succeeded, else FAILURE.
    ``counts`` are numbers of elements by status; ended batch sessions count by their result."""

    id: str
    name: str
    access_key: str
    group_name: str
    image: str
    created_at: str
    max_parallel: int | None
    size: int
    status: str
    counts: dict[str, int]


class ArrayList(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    items: list[ArrayReply]
    total_count: int


class RetriedArray(msgspec.Struct, frozen=True, kw_only=True):
    """The array after a retry, and the number of its elements that were enqueued again."""

    array: ArrayReply
    retried: int


def array_reply(array: SessionArray) -> ArrayReply:
    """Returns an array in the form of the REST API."""
    return ArrayReply(
        id=str(array.id),
        name=array.name,
        access_key=array.access_key,
        group_name=array.group_name,
        image=array.image,
        created_at=array.created_at.isoformat(),
        max_parallel=array.max_parallel,
        size=array.size,
        status=array.status,
        counts=dict(sorted(array.counts.items())),
    )
