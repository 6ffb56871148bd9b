"""Templates and dotfiles (client wire contract 2.1.2, 2.6 and 2.7).

(made,) = api.SessionTemplate.create(open("template.yaml").read())
api.SessionTemplate.start(made, name="mine")
"""

from __future__ import annotations

from typing import Any, Literal

from ai.backend.client.exceptions import UnusableReply
from ai.backend.client.transport import Transport
from ai.backend.client.wire import Call

Kind = Literal["session", "cluster"]


class AsyncSessionTemplate:
    """``api_session.SessionTemplate``: what sessions, or with ``kind`` clusters, are made from by name."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def create(self, payload: str, *, group: str | None = None, kind: Kind = "session") -> list[str]:
        """Keep the templates of a text in YAML or JSON; their ids."""
        body = {"payload": payload, "group_name": group}
        call = Call(method="POST", path=f"/template/{kind}", json=body)
        made = (await self._transport.request(call)).json()
        if not isinstance(made, list):
            raise UnusableReply("the server's answer is not a list of templates")
        return [str(one["id"]) for one in made]

    async def paginated_list(self, *, everybodys: bool = False, kind: Kind = "session") -> list[dict[str, Any]]:
        """One's own; with ``everybodys`` also those of others that one may see."""
        params = {"all": "true"} if everybodys else None
        call = Call(method="GET", path=f"/template/{kind}", params=params, repeatable=True)
        return list((await self._transport.request(call)).json())

    async def get(self, template_id: str, *, form: Literal["yaml", "json"] = "yaml", kind: Kind = "session") -> str:
        """The text of a template."""
        path = f"/template/{kind}/{template_id}"
        call = Call(method="GET", path=path, params={"format": form}, repeatable=True)
        return (await self._transport.request(call)).body.decode()

    async def update(self, template_id: str, payload: str, *, kind: Kind = "session") -> None:
        """Replace what a template says."""
        path = f"/template/{kind}/{template_id}"
        await self._transport.request(Call(method="PUT", path=path, json={"payload": payload}, repeatable=True))

    async def delete(self, template_id: str, *, kind: Kind = "session") -> None:
        """Forget a template; its sessions stay."""
        await self._transport.request(Call(method="DELETE", path=f"/template/{kind}/{template_id}", repeatable=True))

    async def start(self, template_id: str, /, *, kind: Kind = "session", **fields: Any) -> dict[str, Any]:
        """Create a session of a template; ``fields`` as in ``POST /session`` take the place of the template's."""
        verb = "create-cluster" if kind == "cluster" else "create-from-template"
        call = Call(method="POST", path=f"/session/_/{verb}", json={"template_id": template_id, **fields})
        return (await self._transport.request(call)).object()


class AsyncDotfile:
    """``api_session.Dotfile``: of oneself, or of a ``group`` or ``domain``, for administrators of these."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def create(
        self, path: str, data: str, permission: str = "644", *, group: str | None = None, domain: str | None = None
    ) -> None:
        """Keep a new dotfile; it is in sessions that start from now on."""
        await self._ask("POST", group, domain, {"path": path, "data": data, "permission": permission})

    async def update(
        self, path: str, data: str, permission: str = "644", *, group: str | None = None, domain: str | None = None
    ) -> None:
        """Replace one."""
        await self._ask("PATCH", group, domain, {"path": path, "data": data, "permission": permission})

    async def get(self, path: str, *, group: str | None = None, domain: str | None = None) -> dict[str, str]:
        """``path``, ``data`` and ``permission``."""
        return dict(await self._ask("GET", group, domain, {"path": path}))

    async def paginated_list(self, *, group: str | None = None, domain: str | None = None) -> list[dict[str, str]]:
        """All of them."""
        return list(await self._ask("GET", group, domain, {}))

    async def delete(self, path: str, *, group: str | None = None, domain: str | None = None) -> None:
        await self._ask("DELETE", group, domain, {"path": path})

    async def _ask(self, method: str, group: str | None, domain: str | None, fields: dict[str, str]) -> Any:
        scope = "group" if group is not None else "domain" if domain is not None else "user"
        whose = {name: value for name, value in (("group", group), ("domain", domain)) if value is not None}
        given = {**fields, **whose}
        has_body = method in ("POST", "PATCH")
        call = Call(
            method=method,
            path=f"/{scope}-config/dotfiles",
            json=given if has_body else None,
            params=None if has_body else given,
            repeatable=not has_body,
        )
        return (await self._transport.request(call)).json()
