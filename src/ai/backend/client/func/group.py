"""Groups, also called projects (client wire contract 3.2)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any
from uuid import UUID

from ai.backend.client.func.base import Mutations
from ai.backend.client.portal import Facade, blocking

_BOUNDS = "is_active created_at total_resource_slots allowed_vfolder_hosts integration_id"


GROUP_FIELDS = ("id", "name", "description", "domain_name", "type", *_BOUNDS.split())


class AsyncGroup(Mutations):
    """``api_session.Group``."""

    async def list(self, domain_name: str | None = None, fields: Sequence[str] = GROUP_FIELDS) -> list[dict[str, Any]]:
        query = f"query($domain: String) {{ groups(domain_name: $domain) {{ {' '.join(fields)} }} }}"
        return list((await self._admin.query(query, {"domain": domain_name}))["groups"])

    async def detail(self, gid: UUID | str, fields: Sequence[str] = GROUP_FIELDS) -> dict[str, Any] | None:
        """Returns a group; None if the caller sees no such group."""
        query = f"query($gid: UUID!) {{ group(id: $gid) {{ {' '.join(fields)} }} }}"
        group = (await self._admin.query(query, {"gid": str(gid)}))["group"]
        return dict(group) if group is not None else None

    async def from_name(
        self, name: str, *, domain_name: str | None = None, fields: Sequence[str] = GROUP_FIELDS
    ) -> Sequence[dict[str, Any]]:
        """Lists the groups of that name, in one domain or in all that the caller sees."""
        types, arguments = "$name: String!, $domain: String", "name: $name, domain_name: $domain"
        query = f"query({types}) {{ groups_by_name({arguments}) {{ {' '.join(fields)} }} }}"
        groups = (await self._admin.query(query, {"name": name, "domain": domain_name}))["groups_by_name"]
        return tuple(groups)

    async def delete(self, gid: UUID | str) -> None:
        """Make it inactive."""
        await self.mutate("delete_group", {"gid": ("UUID!", str(gid))})

    async def purge(self, gid: UUID | str) -> None:
        """Remove a group for good, with its folders; no session of it may live."""
        await self.mutate("purge_group", {"gid": ("UUID!", str(gid))})

    async def add_users(self, gid: UUID | str, user_uuids: Iterable[UUID | str]) -> None:
        await self.update(gid, user_update_mode="add", user_uuids=[str(user) for user in user_uuids])

    async def remove_users(self, gid: UUID | str, user_uuids: Iterable[UUID | str]) -> None:
        await self.update(gid, user_update_mode="remove", user_uuids=[str(user) for user in user_uuids])

    async def create(self, domain_name: str, name: str, /, **props: Any) -> dict[str, Any]:
        """Create a group and return its ``id`` and ``name``. ``type`` may be ``MODEL_STORE``."""
        props = {"domain_name": domain_name, **props}
        named, selection = {"name": ("String!", name)}, "group { id name domain_name }"
        return dict((await self.mutate("create_group", named, "GroupInput", props, result=selection))["group"])

    async def update(self, gid: UUID | str, /, **props: Any) -> None:
        """``user_update_mode`` (``add`` or ``remove``) goes with ``user_uuids``."""
        await self.mutate("modify_group", {"gid": ("UUID!", str(gid))}, "ModifyGroupInput", props)


class Group(Facade[AsyncGroup]):
    """``api_session.Group`` of a blocking session."""

    list = blocking(AsyncGroup.list)
    detail = blocking(AsyncGroup.detail)
    from_name = blocking(AsyncGroup.from_name)
    create = blocking(AsyncGroup.create)
    update = blocking(AsyncGroup.update)
    delete = blocking(AsyncGroup.delete)
    purge = blocking(AsyncGroup.purge)
    add_users = blocking(AsyncGroup.add_users)
    remove_users = blocking(AsyncGroup.remove_users)
