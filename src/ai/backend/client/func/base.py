"""Base classes of the areas of the API: requests over REST, and objects that GraphQL changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar
from uuid import UUID

from ai.backend.client.func.admin import AsyncAdmin
from ai.backend.client.transport import Transport
from ai.backend.client.types import Remote
from ai.backend.client.wire import Call, Reply, new_token

if TYPE_CHECKING:
    from ai.backend.client.transfer import Transfers


class Area(Remote):
    """Base class of the areas of the API. It sends the REST requests of an area."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._admin = AsyncAdmin(transport)

    async def _get_reply(self, path: str, body: Any = None, /, **params: Any) -> Reply:
        """Sends a GET request without parameters that are None, and returns the answer.

        ``body``: parameters in a body, as the published client sends them.
        """
        query = {name: str(value) for name, value in params.items() if value is not None}
        call = Call(method="GET", path=path, params=query or None, json=body, repeatable=True)
        return await self._transport.request(call)

    async def _get(self, path: str, /, **params: Any) -> dict[str, Any]:
        """Sends a GET request without parameters that are None, and returns the object in the answer."""
        return (await self._get_reply(path, **params)).object()

    async def _send(
        self, method: str, path: str, body: Mapping[str, Any], *, repeatable: bool = False, signed: bool = True
    ) -> dict[str, Any]:
        call = Call(method=method, path=path, json=dict(body), repeatable=repeatable, signed=signed)
        return (await self._transport.request(call)).object()

    async def _change(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Sends a REST request that changes something, and returns the object in the answer.

        The request may be repeated: its client token lets the server recognize repetitions.
        """
        json_body = dict(body) if body is not None else None
        call = Call(method=method, path=path, json=json_body, repeatable=True, token=new_token())
        return (await self._transport.request(call)).object()

    def _transfers(self) -> Transfers:
        from ai.backend.client.transfer import Transfers

        return Transfers(self._transport.session, verify=not self._transport.config.skip_sslcert_validation)


class Objects(Area):
    """Base class of the objects of one type that are read and changed by GraphQL.

    ``props`` are fields of the mutation's input, and other fields stay unchanged.

    Attributes:
        noun: the name of the type in the mutations, and the root field of one object.
        key: the argument that names an object in mutations, and its type.
        inputs: the types of ``props`` of the mutations that create and modify.
        fields: the fields that lists and details select by default.
    """

    noun: ClassVar[str]
    key: ClassVar[tuple[str, str]] = ("name", "String!")
    inputs: ClassVar[tuple[str, str]]
    fields: ClassVar[Sequence[str]]

    async def _mutate(
        self, verb: str, ref: UUID | str, input_type: str | None = None, props: Any = None, *, result: str = ""
    ) -> dict[str, Any]:
        name, type_ = self.key
        arguments = {name: (type_, str(ref))}
        return await self._admin.mutate(f"{verb}_{self.noun}", arguments, input_type, props, result=result)

    async def update(self, ref: UUID | str, /, **props: Any) -> None:
        """Changes the fields of an object to the values in ``props``."""
        await self._mutate("modify", ref, self.inputs[1], props)

    async def delete(self, ref: UUID | str) -> None:
        """Deletes an object; users, domains and groups only become inactive until they are purged."""
        await self._mutate("delete", ref)


class NamedObjects(Objects):
    """Reads and changes objects that have a name and are listed all at once.

    Attributes:
        plural: the root field of the list.
    """

    plural: ClassVar[str]

    async def list(self, fields: Sequence[str] = ()) -> list[dict[str, Any]]:
        return list(await self._admin.select(self.plural, fields or self.fields))

    async def detail(self, name: str | None = None, fields: Sequence[str] = ()) -> dict[str, Any] | None:
        """Returns an object, or None. Without a name, returns the caller's own domain or policy."""
        document = await self._admin.select(self.noun, fields or self.fields, name=("String", name))
        return dict(document) if document is not None else None

    async def create(self, name: str, /, **props: Any) -> None:
        await self._mutate("create", name, self.inputs[0], props)
