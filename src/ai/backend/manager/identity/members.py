"""Lists the members of projects for the administrators of the projects."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from ai.backend.common.errors import Forbidden
from ai.backend.common.ids import GroupId, UserId
from ai.backend.infra.http.decode import refuse
from ai.backend.manager.access.caller import Caller
from ai.backend.manager.access.checks import is_permitted
from ai.backend.manager.access.permissions import Operation
from ai.backend.manager.identity.model import User
from ai.backend.manager.identity.service import IdentityService
from ai.backend.manager.identity.store import IdentityStore, OwnedSessions
from ai.backend.manager.query.model import Condition, Filter, ListQuery, Page

_MEMBER_FIELDS = frozenset({"uuid", "email", "username", "full_name", "status"})
"""The fields by which members are filtered and ordered; project administrators may not see other fields of users."""


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """Represents a user in a group; ``is_admin`` is True if the user administrates the group."""

    user: User
    group_id: GroupId
    is_admin: bool


@dataclass(eq=False, slots=True)
class MemberService:
    """Lists the members of a group for callers who may change the members or list the users of the domain."""

    _store: IdentityStore
    _identity: IdentityService
    _sessions: OwnedSessions

    async def members(self, caller: Caller, group_id: GroupId, query: ListQuery) -> Page[Member]:
        """Returns a page of the members of a group. Raises NotFound for a group that the caller does not see,
        Forbidden, and InvalidInput for a filter or order by other fields."""
        group = await self._identity.group(caller, group_id)
        operations = (Operation.CHANGE_MEMBERS, Operation.LIST_USERS)
        if not any(
            is_permitted(caller, operation, domain_name=group.domain_name, group_id=group_id)
            for operation in operations
        ):
            raise Forbidden("Only administrators see the members of a project.")
        if not _fields_of(query) <= _MEMBER_FIELDS:
            raise refuse({"filter": f"members are found and ordered by {', '.join(sorted(_MEMBER_FIELDS))}"})
        page = await self._store.users(query, domain_name=None, status=None, group_id=group_id)
        admins = {*await self._store.group_admins(group_id)}
        members = [Member(user=user, group_id=group_id, is_admin=user.uuid in admins) for user in page.items]
        return Page(items=members, total_count=page.total_count)

    async def live_sessions(self, group_id: GroupId, user_id: UserId) -> int:
        """Returns the number of live sessions that a member has in a group.

        The caller of the method has checked that the user may see the group.
        """
        return await self._sessions.count_live_of_member(group_id, user_id)


def _fields_of(query: ListQuery) -> set[str]:
    fields = {item.field for item in query.order}
    return fields | _compared_fields(query.filter) if query.filter is not None else fields


def _compared_fields(condition: Filter) -> set[str]:
    if isinstance(condition, Condition):
        return {condition.field}
    return set().union(*(_compared_fields(term) for term in condition.terms))
