"""Domains as superadmins change them over GraphQL (client wire contract 3.2).

``props`` are the fields of the mutation's input; those that are left out stay as they are. ``allowed_vfolder_hosts``
maps a storage host to the names of what may be done there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ai.backend.client.func.base import Mutations
from ai.backend.client.func.group import _BOUNDS
from ai.backend.client.portal import Facade, blocking

DOMAIN_FIELDS = ("name", "description", *_BOUNDS.split())


class AsyncDomain(Mutations):
    """``api_session.Domain``."""

    async def list(self, fields: Sequence[str] = DOMAIN_FIELDS) -> list[dict[str, Any]]:
        return list((await self._admin.query(f"{{ domains {{ {' '.join(fields)} }} }}"))["domains"])

    async def detail(self, name: str | None = None, fields: Sequence[str] = DOMAIN_FIELDS) -> dict[str, Any]:
        """Returns a domain, the caller's own without a name."""
        query = f"query($name: String) {{ domain(name: $name) {{ {' '.join(fields)} }} }}"
        return dict((await self._admin.query(query, {"name": name}))["domain"])

    async def delete(self, name: str) -> None:
        """Make it inactive."""
        await self.mutate("delete_domain", {"name": ("String!", name)})

    async def purge(self, name: str) -> None:
        """Remove a domain for good; it must have neither users nor groups."""
        await self.mutate("purge_domain", {"name": ("String!", name)})

    async def create(self, name: str, /, **props: Any) -> None:
        await self.mutate("create_domain", {"name": ("String!", name)}, "DomainInput", props)

    async def update(self, name: str, /, **props: Any) -> None:
        await self.mutate("modify_domain", {"name": ("String!", name)}, "ModifyDomainInput", props)


class Domain(Facade[AsyncDomain]):
    """``api_session.Domain`` of a blocking session."""

    list = blocking(AsyncDomain.list)
    detail = blocking(AsyncDomain.detail)
    create = blocking(AsyncDomain.create)
    update = blocking(AsyncDomain.update)
    delete = blocking(AsyncDomain.delete)
    purge = blocking(AsyncDomain.purge)
