"""GraphQL fields of the members of groups."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from ai.backend.common.ids import GroupId
from ai.backend.manager.graphql.context import Info, caller_of, page_fields_of
from ai.backend.manager.graphql.resolvers import field, query
from ai.backend.manager.graphql.values import View
from ai.backend.manager.identity.members import Member, MemberService
from ai.backend.manager.query.model import ListQuery, OrderBy

_DEFAULT_ORDER = (OrderBy(field="email"),)


def _member_view(member: Member) -> View:
    user = member.user
    return {
        **{name: getattr(user, name) for name in ("uuid", "email", "username", "full_name")},
        "status": user.status.value,
        "role": user.role.value,
        "is_admin": member.is_admin,
        "group_id": member.group_id,
    }


class MemberResolvers:
    """Answers the queries of members."""

    def __init__(self, members: MemberService) -> None:
        self._members = members

    @query("group_member_list")
    async def group_member_list(self, info: Info, group_id: UUID, **arguments: Any) -> View:
        page_fields = page_fields_of(arguments)
        page_query = ListQuery(**{**page_fields, "order": page_fields["order"] or _DEFAULT_ORDER})
        page = await self._members.members(caller_of(info), GroupId(group_id), page_query)
        return {"items": [_member_view(member) for member in page.items], "total_count": page.total_count}

    @field("GroupMember", "live_sessions")
    async def live_sessions(self, view: View, info: Info) -> int:
        return await self._members.live_sessions(view["group_id"], view["uuid"])
