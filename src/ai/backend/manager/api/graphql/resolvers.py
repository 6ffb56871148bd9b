"""The root queries. Who may see what is decided in the services; here is only the way there."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import Any, TypeAlias
from uuid import UUID

from ariadne import ObjectType, QueryType
from graphql import GraphQLResolveInfo

from ai.backend.common.errors import BackendError, Forbidden, NotFound
from ai.backend.common.ids import AgentId, SessionId, UserId
from ai.backend.common.states import GroupType, KernelStatus, SessionStatus
from ai.backend.infra.http.decode import refuse
from ai.backend.manager.api.graphql import views
from ai.backend.manager.api.graphql.language import parse_filter, parse_order
from ai.backend.manager.api.graphql.limits import MAX_PAGE
from ai.backend.manager.model.cluster import Agent
from ai.backend.manager.model.identity import Caller, Group
from ai.backend.manager.model.query import ListQuery, OrderBy, SessionQuery
from ai.backend.manager.model.session import Holding, Session
from ai.backend.manager.services.bundle import Services

query = QueryType()
session_type = ObjectType("ComputeSession")
keypair_type = ObjectType("KeyPair")
agent_type = ObjectType("Agent")
domain_type = ObjectType("Domain")
group_type = ObjectType("Group")

Info: TypeAlias = "GraphQLResolveInfo[Any]"


class Context:
    """One request: who asks, and what has been loaded for it."""

    def __init__(self, caller: Caller, services: Services, *, request_id: str = "", address: str = "") -> None:
        self.caller = caller
        self.address = address
        self.services = services
        self._request_id = request_id
        self.variables: Mapping[str, Any] = {}
        """As they were sent, declared or not."""
        self._wanted: set[SessionId] = set()
        self._dependencies: dict[SessionId, Session] = {}
        self._listed: set[AgentId] = set()
        self._holdings: dict[str, Sequence[Holding]] = {}
        self._unjudged: dict[SessionId, Session] = {}
        self._judged: dict[SessionId, Mapping[str, Any]] = {}
        self._loading = asyncio.Lock()

    @asynccontextmanager
    async def audited(self, operation: str, object_type: str, object_id: str) -> AsyncIterator[None]:
        """Keep who changed what, and how it ended."""
        outcome = "success"
        try:
            yield
        except BackendError as e:
            outcome = e.code
            raise
        finally:
            await self.services.audit.record(
                self.caller,
                operation,
                request_id=self._request_id,
                object_type=object_type,
                object_id=object_id,
                outcome=outcome,
            )

    def sessions(self, sessions: Iterable[Session]) -> list[views.View]:
        """Views of sessions, whose dependencies and idle checks will be loaded together if they are asked for."""
        found = list(sessions)
        self._unjudged.update((session.id, session) for session in found)
        self._wanted.update(d for session in found for d in session.dependencies)
        return [views.session_view(session, self.caller) for session in found]

    def agents(self, agents: Iterable[Agent]) -> list[views.View]:
        """Views of agents, whose allocations will be loaded together if they are asked for."""
        found = list(agents)
        self._listed.update(a.id for a in found)
        return [views.agent_view(agent) for agent in found]

    async def holdings(self, agent_id: str) -> Sequence[Holding]:
        async with self._loading:
            if self._listed:
                listed, self._listed = self._listed, set()
                self._holdings.update(await self.services.cluster.holdings(self.caller, listed))
        return self._holdings.get(agent_id, ())

    async def idle_checks(self, session_id: SessionId) -> Mapping[str, Any]:
        async with self._loading:
            if self._unjudged:
                unjudged, self._unjudged = list(self._unjudged.values()), {}
                self._judged.update(await self.services.idle.reports(unjudged))
        return self._judged.get(session_id, {})

    async def dependencies(self, ids: Iterable[SessionId]) -> list[views.View]:
        async with self._loading:  # resolvers of siblings run at once, and what one loads is for all
            if self._wanted:
                wanted, self._wanted = tuple(self._wanted), set()
                self._dependencies.update(await self.services.sessions.get_many(self.caller, wanted))
        return self.sessions([self._dependencies[i] for i in ids if i in self._dependencies])


def context_of(info: Info) -> Context:
    context = info.context
    if not isinstance(context, Context):
        raise TypeError("a resolver outside of its endpoint")
    return context


def page_of(args: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that every list takes, as fields of a ListQuery.

    Raises:
        InvalidInput: a page out of range, or a malformed filter or order.
    """
    limit, offset = args["limit"], args["offset"]
    if not 1 <= limit <= MAX_PAGE:
        raise refuse({"limit": f"must be between 1 and {MAX_PAGE}"})
    if offset < 0:
        raise refuse({"offset": "must not be negative"})
    order = parse_order(args.get("order"))
    if not order and args.get("order_key"):
        order = tuple(
            OrderBy(field=o.field, descending=not args.get("order_asc", True)) for o in parse_order(args["order_key"])
        )
    return {"limit": limit, "offset": offset, "filter": parse_filter(args.get("filter")), "order": order}


def statuses_of(text: str | None) -> tuple[SessionStatus, ...] | None:
    """Statuses of a comma-separated list; None where no list is given.

    Clients name statuses of kernels among them (spec 03-11: RESIZING, SUSPENDED): no session has those.

    Raises:
        InvalidInput: there is no such status.
    """
    words = [word.strip().upper() for word in (text or "").split(",") if word.strip()]
    if unknown := [word for word in words if word not in {*SessionStatus, *KernelStatus}]:
        raise refuse({"status": f"{unknown[0][:64]!r} is not one of {', '.join(SessionStatus)}"})
    return tuple(SessionStatus(word) for word in words if word in {*SessionStatus}) if words else None


def _uuid_text(text: str | None, field: str) -> str | None:
    try:
        return str(UUID(text)) if text else None
    except ValueError:
        raise refuse({field: "not a UUID"}) from None


# ---- sessions --------------------------------------------------------------------------------------------


@query.field("compute_session")
async def compute_session(_: Any, info: Info, id: UUID) -> views.View | None:  # noqa: A002  # the wire's name
    context = context_of(info)
    try:
        return context.sessions([await context.services.sessions.get_by_id(context.caller, SessionId(id))])[0]
    except NotFound:
        return None


@query.field("compute_session_list")
async def compute_session_list(_: Any, info: Info, **args: Any) -> views.View:
    context = context_of(info)
    wanted = SessionQuery(
        **page_of(args),
        statuses=statuses_of(args.get("status")),
        access_key=args.get("access_key"),
        domain_name=args.get("domain_name"),
        group_id=_uuid_text(args.get("group_id"), "group_id"),
    )
    page = await context.services.sessions.search(context.caller, wanted)
    return {"items": context.sessions(page.items), "total_count": page.total_count}


@session_type.field("idle_checks")
async def session_idle_checks(view: views.View, info: Info) -> str:
    return json.dumps(await context_of(info).idle_checks(view["id"]))


@session_type.field("dependencies")
async def session_dependencies(view: views.View, info: Info) -> list[views.View]:
    return await context_of(info).dependencies(view["dependency_ids"])


@query.field("compute_container")
async def compute_container(_: Any, info: Info, id: UUID) -> views.View | None:  # noqa: A002  # the wire's name
    """By the id of a main kernel, which is its session's."""
    session = await compute_session(_, info, id)
    return next((c for c in session["containers"] if c["id"] == id), None) if session is not None else None


@query.field("compute_container_list")
async def compute_container_list(
    _: Any, info: Info, session_id: UUID, role: str | None = None, **args: Any
) -> views.View:
    page = page_of(args)
    session = await compute_session(_, info, session_id)
    found = [c for c in session["containers"] if role in (None, c["role"])] if session is not None else []
    return {"items": found[page["offset"] : page["offset"] + page["limit"]], "total_count": len(found)}


# ---- identities ------------------------------------------------------------------------------------------


@query.field("keypair")
async def keypair(_: Any, info: Info, access_key: str | None = None, domain_name: str | None = None) -> views.View:
    context = context_of(info)
    return views.keypair_view(await context.services.identity.keypair(context.caller, access_key))


@query.field("keypairs")
async def keypairs(_: Any, info: Info, **args: Any) -> list[views.View]:
    found: list[views.View] = (await keypair_list(_, info, limit=MAX_PAGE, offset=0, **args))["items"]
    return found


@query.field("keypair_list")
async def keypair_list(_: Any, info: Info, **args: Any) -> views.View:
    context = context_of(info)
    page = await context.services.identity.keypairs(
        context.caller,
        ListQuery(**page_of(args)),
        email=args.get("email"),
        is_active=args.get("is_active"),
        domain_name=args.get("domain_name"),
    )
    return {"items": [views.keypair_view(item) for item in page.items], "total_count": page.total_count}


@keypair_type.field("projects")
async def keypair_projects(view: views.View, info: Info) -> list[str]:
    context = context_of(info)
    user = await context.services.identity.user(context.caller, uuid=UserId(view["user"]))
    return [group.name for group in user.groups]


@keypair_type.field("bootstrap_script")
async def keypair_script(view: views.View, info: Info) -> str | None:
    context = context_of(info)
    try:
        return await context.services.defaults.bootstrap_script(context.caller, view["access_key"])
    except Forbidden:
        return None


@keypair_type.field("dotfiles")
async def keypair_dotfiles(view: views.View, info: Info) -> str | None:
    context = context_of(info)
    try:
        owner = await context.services.defaults.of_user(context.caller, view["access_key"])
    except Forbidden:
        return None
    return json.dumps([asdict(dotfile) for dotfile in await context.services.defaults.list(owner)])


@keypair_type.field("compute_sessions")
async def keypair_sessions(view: views.View, info: Info, status: str | None = None) -> list[views.View]:
    context = context_of(info)
    wanted = SessionQuery(limit=MAX_PAGE, access_key=view["access_key"], statuses=statuses_of(status))
    return context.sessions((await context.services.sessions.search(context.caller, wanted)).items)


@query.field("keypair_resource_policy")
async def keypair_resource_policy(_: Any, info: Info, name: str | None = None) -> views.View:
    context = context_of(info)
    return views.policy_view(await context.services.identity.resource_policy(context.caller, name))


@query.field("keypair_resource_policies")
async def keypair_resource_policies(_: Any, info: Info) -> list[views.View]:
    context = context_of(info)
    return [views.policy_view(p) for p in await context.services.identity.resource_policies(context.caller)]


@query.field("user")
async def user(_: Any, info: Info, email: str | None = None, domain_name: str | None = None) -> views.View:
    context = context_of(info)
    found = await context.services.identity.user(context.caller, email=email, domain_name=domain_name or None)
    return views.user_view(found)


@query.field("user_from_uuid")
async def user_from_uuid(_: Any, info: Info, user_id: str | None = None, domain_name: str | None = None) -> views.View:
    context = context_of(info)
    try:
        wanted = UserId(UUID(user_id)) if user_id else None
    except ValueError:
        raise refuse({"user_id": "not a UUID"}) from None
    found = await context.services.identity.user(context.caller, uuid=wanted, domain_name=domain_name or None)
    return views.user_view(found)


@query.field("users")
async def users(_: Any, info: Info, **args: Any) -> list[views.View]:
    found: list[views.View] = (await user_list(_, info, limit=MAX_PAGE, offset=0, **args))["items"]
    return found


@query.field("user_list")
async def user_list(_: Any, info: Info, **args: Any) -> views.View:
    context = context_of(info)
    status = args.get("status")
    if status is None and args.get("is_active") is not None:
        status = "active" if args["is_active"] else "inactive"
    page = await context.services.identity.users(
        context.caller,
        ListQuery(**page_of(args)),
        status=status,
        domain_name=args.get("domain_name") or None,
        group_id=args.get("group_id"),
    )
    return {"items": [views.user_view(item) for item in page.items], "total_count": page.total_count}


@query.field("domain")
async def domain(_: Any, info: Info, name: str | None = None) -> views.View:
    context = context_of(info)
    return views.domain_view(await context.services.identity.domain(context.caller, name))


@query.field("domains")
async def domains(_: Any, info: Info, is_active: bool | None = None) -> list[views.View]:
    """All for superadmins, else the caller's own."""
    context = context_of(info)
    found = await context.services.identity.domains(context.caller)
    return [views.domain_view(d) for d in found if is_active in (None, d.is_active)]


def _in_domain(groups: Iterable[Group], domain_name: str | None) -> list[Group]:
    return [group for group in groups if domain_name in (None, "", group.domain_name)]


@query.field("group")
async def group(_: Any, info: Info, id: UUID, domain_name: str | None = None) -> views.View | None:  # noqa: A002  # the wire's name
    context = context_of(info)
    found = _in_domain(await context.services.identity.groups(context.caller), domain_name)
    return next((views.group_view(g) for g in found if g.id == id), None)


@query.field("groups")
async def groups(
    _: Any,
    info: Info,
    domain_name: str | None = None,
    is_active: bool | None = None,
    type: list[str] | None = None,  # noqa: A002  # the wire's name
) -> list[views.View]:
    context = context_of(info)
    found = _in_domain(await context.services.identity.groups(context.caller), domain_name)
    kinds = {word.upper() for word in type} if type is not None else {kind.value for kind in GroupType}
    return [views.group_view(g) for g in found if is_active in (None, g.is_active) and g.type.value in kinds]


@query.field("groups_by_name")
async def groups_by_name(_: Any, info: Info, name: str, domain_name: str | None = None) -> list[views.View]:
    context = context_of(info)
    found = _in_domain(await context.services.identity.groups(context.caller, name=name), domain_name)
    return [views.group_view(g) for g in found]


# ---- the cluster -----------------------------------------------------------------------------------------


@query.field("scaling_groups")
async def scaling_groups(
    _: Any, info: Info, name: str | None = None, is_active: bool | None = None
) -> list[views.View]:
    """Those that the caller may use."""
    context = context_of(info)
    found = await context.services.identity.resource_groups(context.caller, is_active=is_active)
    return [views.resource_group_view(g, context.caller) for g in found if name in (None, g.name)]


@query.field("scaling_group")
async def scaling_group(_: Any, info: Info, name: str | None = None) -> views.View | None:
    return next(iter(await scaling_groups(_, info, name)), None) if name else None


@query.field("scaling_groups_for_domain")
@query.field("scaling_groups_for_user_group")
@query.field("scaling_groups_for_keypair")
async def scaling_groups_for(
    _: Any,
    info: Info,
    domain: str | None = None,
    user_group: str | None = None,
    access_key: str | None = None,
    is_active: bool | None = None,
) -> list[views.View]:
    context = context_of(info)
    found = await context.services.identity.resource_groups_of(
        context.caller, domain_name=domain, group=user_group, access_key=access_key, is_active=is_active
    )
    return [views.resource_group_view(g, context.caller) for g in found]


@domain_type.field("scaling_groups")
async def domain_scaling_groups(view: views.View, info: Info) -> list[str]:
    context = context_of(info)
    found = await context.services.identity.resource_groups_of(context.caller, domain_name=view["name"])
    return [g.name for g in found]


@group_type.field("scaling_groups")
async def group_scaling_groups(view: views.View, info: Info) -> list[str]:
    context = context_of(info)
    found = await context.services.identity.resource_groups_of(context.caller, group=str(view["id"]))
    return [g.name for g in found]


@query.field("resource_presets")
async def resource_presets(_: Any, info: Info) -> list[views.View]:
    return [views.preset_view(p) for p in await context_of(info).services.cluster.presets()]


@query.field("resource_preset")
async def resource_preset(_: Any, info: Info, name: str) -> views.View | None:
    found: list[views.View] = await resource_presets(_, info)
    return next((p for p in found if p["name"] == name), None)


@query.field("variant_properties")
async def variant_properties(_: Any, info: Info, scaling_group: str | None = None) -> list[views.View]:
    context = context_of(info)
    return [views.variant_view(v) for v in await context.services.cluster.variants(context.caller, scaling_group)]


@query.field("agent")
async def agent(_: Any, info: Info, agent_id: str) -> views.View | None:
    context = context_of(info)
    try:
        return context.agents([await context.services.cluster.agent(context.caller, agent_id)])[0]
    except NotFound:
        return None


@query.field("agent_list")
async def agent_list(_: Any, info: Info, **args: Any) -> views.View:
    context = context_of(info)
    page = await context.services.cluster.agents(
        context.caller,
        ListQuery(**page_of(args)),
        status=args.get("status"),
        scaling_group=args.get("scaling_group"),
    )
    return {"items": context.agents(page.items), "total_count": page.total_count}


@agent_type.field("devices")
async def agent_devices(view: views.View, info: Info) -> str:
    return views.devices_json(view["devices"], await context_of(info).holdings(view["id"]))


@agent_type.field("compute_containers")
async def agent_containers(view: views.View, info: Info, status: str | None = None) -> list[views.View]:
    context = context_of(info)
    words = tuple(word.strip().upper() for word in (status or "").split(",") if word.strip())
    kernels = await context.services.sessions.kernels_of_agent(context.caller, view["id"], statuses=words)
    return [views.kernel_view(kernel, None, context.caller) for kernel in kernels]


BINDABLES = (query, session_type, keypair_type, agent_type, domain_type, group_type)
