"""Holds the state of one GraphQL request, and helpers for the resolvers of every feature."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from graphql import GraphQLResolveInfo

from ai.backend.common.errors import BackendError, InvalidInput, LimitExceeded
from ai.backend.common.structs import replace
from ai.backend.infra.http.decode import refuse
from ai.backend.manager.access.caller import Caller
from ai.backend.manager.graphql.limits import MAX_LIST_ITEMS, MAX_PAGE
from ai.backend.manager.graphql.values import View
from ai.backend.manager.query.language import parse_filter, parse_order
from ai.backend.manager.query.model import OrderBy

Info: TypeAlias = "GraphQLResolveInfo[Any]"
T = TypeVar("T")
V = TypeVar("V")


class AuditTrail(Protocol):
    """Records the changes that callers make."""

    async def record(
        self,
        caller: Caller | None,
        operation: str,
        *,
        request_id: str,
        object_type: str,
        object_id: str | None,
        outcome: str,
    ) -> None: ...


@dataclass(eq=False, repr=False)
class BatchLoader(Generic[T, V]):
    """Loads values for the items of a GraphQL reply, with one call of ``load`` for all items of one level.

    ``load`` returns the values of some items by their keys, which ``key`` returns; an item without a value is left out.
    """

    load: Callable[[Sequence[T]], Awaitable[Mapping[Any, V]]]
    key: Callable[[T], Hashable]
    _values: dict[Hashable, asyncio.Future[V | None]] = field(default_factory=dict, init=False)
    _pending: dict[Hashable, T] = field(default_factory=dict, init=False)
    _batches: set[asyncio.Task[None]] = field(default_factory=set, init=False)

    async def get(self, item: T) -> V | None:
        """Returns the value of an item, or None if the item has no value. A value is loaded once."""
        return await asyncio.shield(self._request_value(item))

    async def get_many(self, items: Iterable[T]) -> list[V]:
        """Returns the values of these items in their order, without items that have no value."""
        values = [self._request_value(item) for item in items]
        return [value for value in await asyncio.gather(*map(asyncio.shield, values)) if value is not None]

    def _request_value(self, item: T) -> asyncio.Future[V | None]:
        key = self.key(item)
        if key not in self._values:
            if not self._pending:  # the batch starts after the resolvers of this level have run
                asyncio.get_running_loop().call_soon(self._start_batch)
            self._pending[key] = item
            self._values[key] = asyncio.get_running_loop().create_future()
        return self._values[key]

    def _start_batch(self) -> None:
        items, self._pending = self._pending, {}
        batch = asyncio.create_task(self._load_batch(items))
        self._batches.add(batch)
        batch.add_done_callback(self._batches.discard)

    async def _load_batch(self, items: Mapping[Hashable, T]) -> None:
        try:
            values = await self.load(list(items.values()))
        except Exception as e:  # noqa: BLE001  # every waiting resolver raises it
            for key in items:
                self._values[key].set_exception(e)
        else:
            for key in items:
                self._values[key].set_result(values.get(key))


def _identity(item: Any) -> Hashable:
    key: Hashable = item
    return key


@dataclass(eq=False, repr=False)
class Context:
    """Holds the caller of one request, its HTTP properties, and the batch loaders of the features."""

    caller: Caller
    audit: AuditTrail
    request_id: str = ""
    address: str = ""
    variables: Mapping[str, Any] = field(default_factory=dict)
    """The variables of the request as they were sent, even if they are not declared."""
    refusals: dict[str, BackendError] = field(default_factory=dict, init=False)
    """The reasons why mutations were refused, by the names of the mutations in the reply."""
    _loaders: dict[str, BatchLoader[Any, Any]] = field(default_factory=dict, init=False)

    def loader(
        self,
        name: str,
        load: Callable[[Sequence[T]], Awaitable[Mapping[Any, V]]],
        key: Callable[[T], Hashable] = _identity,
    ) -> BatchLoader[T, V]:
        """Returns the batch loader of this name for the request; the first call creates it."""
        return self._loaders.setdefault(name, BatchLoader(load, key))

    @asynccontextmanager
    async def audit_change(self, operation: str, object_type: str, object_id: str) -> AsyncIterator[None]:
        """Records a change in the audit log, with the outcome of the ``with`` block."""
        change_outcome = "success"
        try:
            yield
        except BaseException as e:
            change_outcome = e.code if isinstance(e, BackendError) else "internal-error"
            raise
        finally:
            await self.audit.record(
                self.caller,
                operation,
                request_id=self.request_id,
                object_type=object_type,
                object_id=object_id,
                outcome=change_outcome,
            )


def context_of(info: Info) -> Context:
    """Returns the context of the request that a resolver belongs to."""
    context = info.context
    if not isinstance(context, Context):
        raise TypeError("a resolver outside of its endpoint")
    return context


def caller_of(info: Info) -> Caller:
    """Returns the caller of the request that a resolver belongs to."""
    return context_of(info).caller


def page_fields_of(arguments: Mapping[str, Any], aliases: Mapping[str, str] = MappingProxyType({})) -> dict[str, Any]:
    """Converts the paging, filter and order arguments of a GraphQL list to the fields of a ListQuery.

    ``aliases`` maps a field to the column that has its order. Raises InvalidInput for a page out of range, and for a
    malformed filter or order.
    """
    limit, offset = arguments["limit"], arguments["offset"]
    if not 1 <= limit <= MAX_PAGE:
        raise refuse({"limit": f"must be between 1 and {MAX_PAGE}"})
    if offset < 0:
        raise refuse({"offset": "must not be negative"})
    order = parse_order(arguments.get("order"))
    if not order and arguments.get("order_key"):
        descending = not arguments.get("order_asc", True)
        order = tuple(
            OrderBy(field=order_by.field, descending=descending) for order_by in parse_order(arguments["order_key"])
        )
    order = tuple(replace(order_by, field=aliases.get(order_by.field, order_by.field)) for order_by in order)
    return {"limit": limit, "offset": offset, "filter": parse_filter(arguments.get("filter")), "order": order}


async def list_all_pages(
    page: Callable[..., Awaitable[View]], info: Info, paged_field: str, **arguments: Any
) -> list[View]:
    """Returns the items of all pages of a list. Raises LimitExceeded if there are more than MAX_LIST_ITEMS.

    The message of the error names the field that has pages.
    """
    items: list[View] = []
    while True:
        reply = await page(info, limit=MAX_PAGE, offset=len(items), **arguments)
        items += reply["items"]
        if reply["total_count"] > MAX_LIST_ITEMS:
            message = f"There are {reply['total_count']}, more than {MAX_LIST_ITEMS}: read {paged_field} page by page."
            raise LimitExceeded(message, data={"limit": MAX_LIST_ITEMS})
        if not reply["items"] or len(items) >= reply["total_count"]:
            return items


def decode_json_text(field: str, value: Any) -> Any:
    """Decodes a string as JSON, as the published client sends it, and returns any other value unchanged."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        raise InvalidInput(f"{field} is not JSON.", data={field: "malformed"}) from None


async def run_mutation(
    info: Info,
    object_type: str,
    name: str,
    mutate: Callable[[], Awaitable[Any]],
    view: Callable[[Any], View] | None = None,
) -> View:
    """Runs and audits a change, and returns ``ok``, ``msg`` and the object under ``object_type``. Keeps a refusal, so
    that the reply's extensions tell its whole problem.
    """
    try:
        async with context_of(info).audit_change(info.field_name, object_type, name):
            changed_object = await mutate()
    except BackendError as e:
        context_of(info).refusals[str(info.path.key)] = e
        return {"ok": False, "msg": e.message, object_type: None}
    return {"ok": True, "msg": "success", object_type: view(changed_object) if view is not None else None}
