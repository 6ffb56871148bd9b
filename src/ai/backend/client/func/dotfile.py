"""Dotfiles of users, groups and domains (client wire contract 2.7)."""

from __future__ import annotations

from typing import Any

from ai.backend.client.portal import Facade, blocking
from ai.backend.client.transport import Transport
from ai.backend.client.wire import Call


class AsyncDotfile:
    """``api_session.Dotfile``: of oneself, or of a ``group`` or ``domain``, for administrators of these."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def create(
        self, path: str, data: str, permission: str = "644", *, group: str | None = None, domain: str | None = None
    ) -> None:
        """Store a new dotfile; it is in sessions that start from now on."""
        await self._ask("POST", group, domain, {"path": path, "data": data, "permission": permission})

    async def update(
        self, path: str, data: str, permission: str = "644", *, group: str | None = None, domain: str | None = None
    ) -> None:
        """Replace a dotfile."""
        await self._ask("PATCH", group, domain, {"path": path, "data": data, "permission": permission})

    async def get(self, path: str, *, group: str | None = None, domain: str | None = None) -> dict[str, str]:
        """Returns ``path``, ``data`` and ``permission``."""
        return dict(await self._ask("GET", group, domain, {"path": path}))

    async def paginated_list(self, *, group: str | None = None, domain: str | None = None) -> list[dict[str, str]]:
        """Returns all dotfiles."""
        return list(await self._ask("GET", group, domain, {}))

    async def delete(self, path: str, *, group: str | None = None, domain: str | None = None) -> None:
        await self._ask("DELETE", group, domain, {"path": path})

    async def _ask(self, method: str, group: str | None, domain: str | None, fields: dict[str, str]) -> Any:
        scope = "group" if group is not None else "domain" if domain is not None else "user"
        whose = {name: value for name, value in (("group", group), ("domain", domain)) if value is not None}
        parameters = {**fields, **whose}
        has_body = method in ("POST", "PATCH")
        call = Call(
            method=method,
            path=f"/{scope}-config/dotfiles",
            json=parameters if has_body else None,
            params=None if has_body else parameters,
            repeatable=not has_body,
        )
        return (await self._transport.request(call)).json()


class Dotfile(Facade[AsyncDotfile]):
    """``api_session.Dotfile`` of a blocking session."""

    create = blocking(AsyncDotfile.create)
    update = blocking(AsyncDotfile.update)
    get = blocking(AsyncDotfile.get)
    paginated_list = blocking(AsyncDotfile.paginated_list)
    delete = blocking(AsyncDotfile.delete)
