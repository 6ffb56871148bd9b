"""Users over GraphQL (client wire contract 3)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack
from uuid import UUID

from ai.backend.client.func.admin import PaginatedResult, Paging
from ai.backend.client.func.base import Mutations
from ai.backend.client.portal import Facade, blocking

USER_FIELDS = (
    "uuid",
    "username",
    "role",
    "email",
    "full_name",
    "need_password_change",
    "status",
    "status_info",
    "created_at",
    "domain_name",
    "groups { id name }",
    "main_access_key",
    "allowed_client_ip",
)


class AsyncUser(Mutations):
    """``api_session.User``.

    ``props``: username, full_name, role, status (``active``, ``inactive``, ``deleted``, ``before-verification``),
    need_password_change, description, domain_name, group_ids, resource_policy, main_access_key, password,
    allowed_client_ip (a list of networks; empty: from anywhere).
    """

    async def paginated_list(
        self,
        status: str | None = None,
        group: str | None = None,
        *,
        fields: Sequence[str] = USER_FIELDS,
        **paging: Unpack[Paging],
    ) -> PaginatedResult:
        """Returns a page of users; ``group`` is the id of one."""
        arguments = {
            "status": ("String", status),
            "group_id": ("UUID", group),
        }
        return await self._admin.fetch_page("user_list", fields, arguments, **paging)

    async def detail(self, email: str | None = None, fields: Sequence[str] = USER_FIELDS) -> dict[str, Any]:
        """Returns a user, the caller without an address."""
        query = f"query($email: String) {{ user(email: $email) {{ {' '.join(fields)} }} }}"
        return dict((await self._admin.query(query, {"email": email}))["user"])

    async def detail_by_uuid(self, user_uuid: UUID | str, fields: Sequence[str] = USER_FIELDS) -> dict[str, Any]:
        query = f"query($id: ID) {{ user_from_uuid(user_id: $id) {{ {' '.join(fields)} }} }}"
        return dict((await self._admin.query(query, {"id": str(user_uuid)}))["user_from_uuid"])

    async def create(self, domain_name: str, email: str, password: str, /, **props: Any) -> dict[str, Any]:
        """Creates a user: ``uuid``, ``email``, ``username``, ``domain_name`` and ``main_access_key``."""
        props = {"domain_name": domain_name, "password": password, **props}
        selection = "user { uuid email username domain_name main_access_key }"
        named = {"email": ("String!", email)}
        return dict((await self.mutate("create_user", named, "UserInput", props, result=selection))["user"])

    async def update(self, email: str, /, **props: Any) -> None:
        await self.mutate("modify_user", {"email": ("String!", email)}, "ModifyUserInput", props)

    async def delete(self, email: str) -> None:
        """Deactivate the keypairs and end the sessions at once; the rest stays until :meth:`purge`."""
        await self.mutate("delete_user", {"email": ("String!", email)})

    async def purge(self, email: str, *, purge_shared_vfolders: bool = False) -> None:
        """Remove a user for good. Folders that others share become the caller's, unless they are removed too."""
        props = {"purge_shared_vfolders": purge_shared_vfolders}
        await self.mutate("purge_user", {"email": ("String!", email)}, "PurgeUserInput", props)


class User(Facade[AsyncUser]):
    """``api_session.User`` of a blocking session."""

    paginated_list = blocking(AsyncUser.paginated_list)
    detail = blocking(AsyncUser.detail)
    detail_by_uuid = blocking(AsyncUser.detail_by_uuid)
    create = blocking(AsyncUser.create)
    update = blocking(AsyncUser.update)
    delete = blocking(AsyncUser.delete)
    purge = blocking(AsyncUser.purge)
