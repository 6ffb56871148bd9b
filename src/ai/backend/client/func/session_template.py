"""Session and cluster templates, and dotfiles (client wire contract 2.1.2, 2.6 and 2.7).

(template_id,) = api.SessionTemplate.create(open("template.yaml").read())
api.SessionTemplate.start(template_id, name="mine")
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypedDict, Unpack

from ai.backend.client.exceptions import UnusableReply
from ai.backend.client.func.base import Area
from ai.backend.client.wire import Call

Kind = Literal["session", "cluster"]


class AsyncSessionTemplate(Area):
    """Manages templates of sessions, or with ``kind`` of clusters (``api_session.SessionTemplate``)."""

    async def create(self, payload: str, *, group: str | None = None, kind: Kind = "session") -> list[str]:
        """Stores the templates of a text in YAML or JSON; returns their ids."""
        body = {"payload": payload, "group_name": group}
        call = Call(method="POST", path=f"/template/{kind}", json=body)
        templates = (await self._transport.request(call)).json()
        if not isinstance(templates, list):
            raise UnusableReply("the server's answer is not a list of templates")
        return [str(template["id"]) for template in templates]

    async def paginated_list(self, *, everybodys: bool = False, kind: Kind = "session") -> list[dict[str, Any]]:
        """Returns the templates of the caller. With ``everybodys`` it also returns visible templates of other users."""
        return list((await self._get_reply(f"/template/{kind}", all="true" if everybodys else None)).json())

    async def get(self, template_id: str, *, form: Literal["yaml", "json"] = "yaml", kind: Kind = "session") -> str:
        """Returns the text of a template."""
        return (await self._get_reply(f"/template/{kind}/{template_id}", format=form)).body.decode()

    async def update(self, template_id: str, payload: str, *, kind: Kind = "session") -> None:
        """Replaces the text of a template."""
        path = f"/template/{kind}/{template_id}"
        await self._transport.request(Call(method="PUT", path=path, json={"payload": payload}, repeatable=True))

    async def delete(self, template_id: str, *, kind: Kind = "session") -> None:
        """Removes a template; its sessions stay."""
        await self._transport.request(Call(method="DELETE", path=f"/template/{kind}/{template_id}", repeatable=True))

    async def start(
        self,
        template_id: str,
        /,
        *,
        kind: Kind = "session",
        variant_requirements: Sequence[str] | None = None,
        device_requests: Sequence[str] | None = None,
        **fields: Any,
    ) -> dict[str, Any]:
        """Creates a session of a template; ``fields`` as in ``POST /session`` override the template's.

        ``variant_requirements`` and ``device_requests`` say what its devices must be, as in
        :class:`ai.backend.client.func.creation.CreateOptions`, in place of the template's; an empty list is none.
        """
        operation = "create-cluster" if kind == "cluster" else "create-from-template"
        device_fields = {"variant_requirements": variant_requirements, "device_requests": device_requests}
        given_fields = {
            name: list(expressions) for name, expressions in device_fields.items() if expressions is not None
        }
        if given_fields:
            fields["config"] = {**(fields.get("config") or {}), **given_fields}
        return await self._send("POST", f"/session/_/{operation}", {"template_id": template_id, **fields})


class DotfileOwner(TypedDict, total=False):
    """Selects the owner of dotfiles: a group, a domain, or the caller if none is given.

    Only administrators of a group or domain may select it.
    """

    group: str | None
    domain: str | None


class AsyncDotfile(Area):
    """Manages dotfiles, small files in the home directory of sessions (``api_session.Dotfile``)."""

    async def create(self, path: str, data: str, permission: str = "755", **owner: Unpack[DotfileOwner]) -> None:
        """Stores a new dotfile; it is in sessions that start from now on."""
        await self._request("POST", owner, {"path": path, "data": data, "permission": permission})

    async def update(self, path: str, data: str, permission: str | None = None, **owner: Unpack[DotfileOwner]) -> None:
        """Replaces a dotfile, which keeps its permission if none is given."""
        if permission is None:
            permission = (await self.get(path, **owner))["permission"]
        await self._request("PATCH", owner, {"path": path, "data": data, "permission": permission})

    async def get(self, path: str, **owner: Unpack[DotfileOwner]) -> dict[str, str]:
        """Returns ``path``, ``data`` and ``permission`` of a dotfile."""
        return dict(await self._request("GET", owner, {"path": path}))

    async def paginated_list(self, **owner: Unpack[DotfileOwner]) -> list[dict[str, str]]:
        """Returns all dotfiles of an owner."""
        return list(await self._request("GET", owner, {}))

    async def delete(self, path: str, **owner: Unpack[DotfileOwner]) -> None:
        await self._request("DELETE", owner, {"path": path})

    async def _request(self, method: str, owner: DotfileOwner, fields: dict[str, str]) -> Any:
        owner_fields = {name: str(value) for name, value in owner.items() if value is not None}
        owner_kind = next((name for name in ("group", "domain") if name in owner_fields), "user")
        request_fields, has_body = {**fields, **owner_fields}, method in ("POST", "PATCH")
        call = Call(
            method=method,
            path=f"/{owner_kind}-config/dotfiles",
            json=request_fields if has_body else None,
            params=None if has_body else request_fields,
            repeatable=not has_body,
        )
        return (await self._transport.request(call)).json()
