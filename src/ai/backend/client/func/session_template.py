"""Session and cluster templates (client wire contract 2.1.2 and 2.6).

(made,) = api.SessionTemplate.create(open("template.yaml").read())
api.SessionTemplate.start(made, name="mine")
"""

from __future__ import annotations

from typing import Any, Literal

from ai.backend.client.exceptions import UnusableReply
from ai.backend.client.portal import Facade, blocking
from ai.backend.client.transport import Transport
from ai.backend.client.wire import Call

Kind = Literal["session", "cluster"]


class AsyncSessionTemplate:
    """``api_session.SessionTemplate``: templates of sessions, or with ``kind`` of clusters."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def create(self, payload: str, *, group: str | None = None, kind: Kind = "session") -> list[str]:
        """Store the templates of a text in YAML or JSON; returns their ids."""
        body = {"payload": payload, "group_name": group}
        call = Call(method="POST", path=f"/template/{kind}", json=body)
        made = (await self._transport.request(call)).json()
        if not isinstance(made, list):
            raise UnusableReply("the server's answer is not a list of templates")
        return [str(one["id"]) for one in made]

    async def paginated_list(self, *, everybodys: bool = False, kind: Kind = "session") -> list[dict[str, Any]]:
        """Returns the caller's templates; with ``everybodys`` also visible ones of others."""
        params = {"all": "true"} if everybodys else None
        call = Call(method="GET", path=f"/template/{kind}", params=params, repeatable=True)
        return list((await self._transport.request(call)).json())

    async def get(self, template_id: str, *, form: Literal["yaml", "json"] = "yaml", kind: Kind = "session") -> str:
        """Returns the text of a template."""
        path = f"/template/{kind}/{template_id}"
        call = Call(method="GET", path=path, params={"format": form}, repeatable=True)
        return (await self._transport.request(call)).body.decode()

    async def update(self, template_id: str, payload: str, *, kind: Kind = "session") -> None:
        """Replace the text of a template."""
        path = f"/template/{kind}/{template_id}"
        await self._transport.request(Call(method="PUT", path=path, json={"payload": payload}, repeatable=True))

    async def delete(self, template_id: str, *, kind: Kind = "session") -> None:
        """Remove a template; its sessions stay."""
        await self._transport.request(Call(method="DELETE", path=f"/template/{kind}/{template_id}", repeatable=True))

    async def start(self, template_id: str, /, *, kind: Kind = "session", **fields: Any) -> dict[str, Any]:
        """Create a session of a template; ``fields`` as in ``POST /session`` override the template's."""
        verb = "create-cluster" if kind == "cluster" else "create-from-template"
        call = Call(method="POST", path=f"/session/_/{verb}", json={"template_id": template_id, **fields})
        return (await self._transport.request(call)).object()


class SessionTemplate(Facade[AsyncSessionTemplate]):
    """``api_session.SessionTemplate`` of a blocking session."""

    create = blocking(AsyncSessionTemplate.create)
    paginated_list = blocking(AsyncSessionTemplate.paginated_list)
    get = blocking(AsyncSessionTemplate.get)
    update = blocking(AsyncSessionTemplate.update)
    delete = blocking(AsyncSessionTemplate.delete)
    start = blocking(AsyncSessionTemplate.start)
