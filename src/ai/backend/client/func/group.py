"""Domains, and groups, also called projects, as administrators change them (client wire contract 3.2).

``allowed_vfolder_hosts`` of ``props`` maps a storage host to the names of what may be done there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Unpack
from uuid import UUID

from ai.backend.client.func.admin import PaginatedResult, Paging
from ai.backend.client.func.base import NamedObjects, Objects

_COMMON_FIELDS = ("is_active", "created_at", "total_resource_slots", "allowed_vfolder_hosts", "integration_id")
MEMBER_FIELDS = ("uuid", "email", "full_name", "status", "is_admin", "live_sessions")
GROUP_FIELDS = ("id", "name", "description", "domain_name", "type", *_COMMON_FIELDS)


class AsyncDomain(NamedObjects):
    """Manages domains, for superadmins (``api_session.Domain``)."""

    noun = "domain"
    plural = "domains"
    inputs = ("DomainInput", "ModifyDomainInput")
    fields = ("name", "description", *_COMMON_FIELDS)

    async def purge(self, name: str) -> None:
        """Removes a domain for good; it must have neither users nor groups."""
        await self._mutate("purge", name)


class AsyncGroup(Objects):
    """Manages groups by their ids (``api_session.Group``)."""

    noun = "group"
    key = ("gid", "UUID!")
    inputs = ("GroupInput", "ModifyGroupInput")

    async def list(self, domain_name: str | None = None, fields: Sequence[str] = GROUP_FIELDS) -> list[dict[str, Any]]:
        return list(await self._admin.select("groups", fields, domain_name=("String", domain_name)))

    async def detail(self, gid: UUID | str, fields: Sequence[str] = GROUP_FIELDS) -> dict[str, Any] | None:
        """Returns a group; None if the caller sees no such group."""
        group = await self._admin.select("group", fields, id=("UUID!", str(gid)))
        return dict(group) if group is not None else None

    async def from_name(
        self, name: str, *, domain_name: str | None = None, fields: Sequence[str] = GROUP_FIELDS
    ) -> Sequence[dict[str, Any]]:
        """Lists the groups that have a name, in one domain or in all domains that the caller sees."""
        arguments = {"name": ("String!", name), "domain_name": ("String", domain_name)}
        return tuple(await self._admin.select("groups_by_name", fields, **arguments))

    async def purge(self, gid: UUID | str) -> None:
        """Removes a group for good, with its folders; no session of it may live."""
        await self._mutate("purge", gid)

    async def members(
        self, gid: UUID | str, *, fields: Sequence[str] = MEMBER_FIELDS, **paging: Unpack[Paging]
    ) -> PaginatedResult:
        """Returns a page of the members of a group, for those who administrate it, its domain or the installation."""
        return await self._admin.fetch_page("group_member_list", fields, {"group_id": ("UUID!", str(gid))}, **paging)

    async def add_users(self, gid: UUID | str, users: Iterable[UUID | str]) -> None:
        """Makes users, by their ids or e-mail addresses, members."""
        await self._change_members(gid, "add", users)

    async def remove_users(self, gid: UUID | str, users: Iterable[UUID | str]) -> None:
        """Removes users from a group. Their sessions in the group go on."""
        await self._change_members(gid, "remove", users)

    async def add_admins(self, gid: UUID | str, users: Iterable[UUID | str]) -> None:
        """Makes members administrators of the project."""
        await self._change_members(gid, "add-admins", users)

    async def remove_admins(self, gid: UUID | str, users: Iterable[UUID | str]) -> None:
        """Makes administrators of the project plain members again."""
        await self._change_members(gid, "remove-admins", users)

    async def _change_members(self, gid: UUID | str, mode: str, users: Iterable[UUID | str]) -> None:
        ids_or_addresses = [str(user) for user in users]
        addresses = [id_or_address for id_or_address in ids_or_addresses if "@" in id_or_address]
        user_ids = [id_or_address for id_or_address in ids_or_addresses if "@" not in id_or_address]
        props: dict[str, Any] = {"user_uuids": user_ids, **({"user_emails": addresses} if addresses else {})}
        await self.update(gid, user_update_mode=mode, **props)

    async def create(self, domain_name: str, name: str, /, **props: Any) -> dict[str, Any]:
        """Creates a group and returns its ``id`` and ``name``. ``type`` may be ``MODEL_STORE``."""
        props = {"domain_name": domain_name, **props}
        arguments, selection = {"name": ("String!", name)}, "group { id name domain_name }"
        reply = await self._admin.mutate("create_group", arguments, self.inputs[0], props, result=selection)
        return dict(reply["group"])
