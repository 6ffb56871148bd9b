"""GraphQL fields of sessions."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any
from uuid import UUID

from ai.backend.common.errors import InvalidQuantity, NotFound
from ai.backend.common.ids import SessionId
from ai.backend.common.images import split_image
from ai.backend.common.slots import BinarySize
from ai.backend.common.states import KernelStatus, SessionStatus
from ai.backend.infra.http.decode import refuse
from ai.backend.manager.access.caller import Caller
from ai.backend.manager.graphql.context import Info, context_of, page_of
from ai.backend.manager.graphql.limits import MAX_PAGE
from ai.backend.manager.graphql.resolvers import field, query
from ai.backend.manager.graphql.values import View, json_or_null, slots_json
from ai.backend.manager.sessions.model import Kernel, Session, SessionQuery
from ai.backend.manager.sessions.service import SessionService


def statuses_of(text: str | None) -> tuple[SessionStatus, ...] | None:
    """Return the statuses of a comma-separated list; None where no list is given.

    Statuses that only kernels have (spec 03-11: RESIZING, SUSPENDED) are accepted and match no session.

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


def resource_opts(options: Mapping[str, str]) -> str:
    """Return the options as JSON, sizes in plain bytes, which the published client can print."""
    values = dict(options)
    if "shmem" in values:
        try:
            values["shmem"] = str(int(BinarySize.parse(values["shmem"])))
        except InvalidQuantity:
            values.pop("shmem")
    return json.dumps(values)


def session_view(session: Session, caller: Caller) -> View:
    registry, _, _ = split_image(session.image)
    agents = list(session.agent_ids) if caller.sees_all else []
    occupying = slots_json(session.occupying_slots)
    return {
        "id": session.id,
        "main_kernel_id": session.main.id,
        "tag": session.tag,
        "name": session.name,
        "type": session.type.value,
        "image": session.image,
        "architecture": session.architecture,
        "registry": registry,
        "cluster_template": None,
        "cluster_mode": session.cluster_mode.value,
        "cluster_size": session.cluster_size,
        "runtime_class": session.runtime_class or None,
        "domain_name": session.domain_name,
        "group_name": session.group_name,
        "group_id": session.group_id,
        "agent_ids": agents,
        "agents": agents,
        "user_email": session.user_email,
        "full_name": None,
        "user_id": session.user_id,
        "access_key": session.access_key,
        "created_user_email": session.user_email if session.created_by == session.access_key else None,
        "created_user_id": session.user_id if session.created_by == session.access_key else None,
        "created_user_uuid": session.user_id if session.created_by == session.access_key else None,
        "status": session.status.value,
        "status_info": session.status_info,
        "status_data": json_or_null(session.status_data),
        "status_history": json.dumps(dict(session.status_history)),
        "status_changed": session.status_changed,
        "created_at": session.created_at,
        "scheduled_at": session.scheduled_at,
        "starts_at": session.starts_at,
        "started_at": session.started_at,
        "terminated_at": session.terminated_at,
        "startup_command": session.startup_command,
        "result": session.result.value,
        "resource_opts": resource_opts(session.resource_opts),
        "scaling_group": session.scaling_group,
        "service_ports": json.dumps([dict(port) for port in session.service_ports]),
        "mounts": list(session.mounts),
        "vfolder_mounts": list(session.mounts),
        "requested_slots": slots_json(session.requested_slots),
        "variant_requirements": list(session.variant_requirements),
        "occupying_slots": occupying,
        "occupied_slots": occupying,
        "num_queries": session.num_queries,
        "containers": [kernel_view(kernel, session, caller) for kernel in session.kernels],
        "session": session,  # for resolvers of this and other features
        "abusing_reports": [],
    }


def kernel_view(kernel: Kernel, session: Session | None, caller: Caller) -> View:
    registry, _, _ = split_image(kernel.image)
    return {
        "id": kernel.id,
        "role": kernel.cluster_role,
        "cluster_role": kernel.cluster_role,
        "cluster_idx": kernel.cluster_idx,
        "local_rank": kernel.local_rank,
        "hostname": kernel.cluster_hostname,
        "cluster_hostname": kernel.cluster_hostname,
        "session_id": kernel.session_id,
        "image": kernel.image,
        "architecture": kernel.architecture,
        "registry": registry,
        "status": kernel.status.value,
        "status_info": kernel.status_info,
        "status_data": json_or_null(kernel.status_data),
        "status_changed": kernel.status_changed,
        "created_at": kernel.created_at,
        "started_at": kernel.started_at,
        "terminated_at": kernel.terminated_at,
        "agent": kernel.agent if caller.sees_all else None,
        "container_id": kernel.container_id,
        "exit_code": kernel.exit_code,
        "attached_devices": json.dumps(dict(kernel.attached_devices), default=str),
        "resource_opts": resource_opts(session.resource_opts if session is not None else {}),
        "occupied_slots": slots_json(kernel.holds),
        "preopen_ports": list(session.preopen_ports) if session is not None else [],
        "live_stat": json_or_null(kernel.live_stat),
        "last_stat": json_or_null(kernel.last_stat),
    }


class SessionResolvers:
    """Answers the GraphQL fields of sessions and kernels."""

    def __init__(self, sessions: SessionService) -> None:
        self._sessions = sessions

    @query("compute_session")
    async def compute_session(self, info: Info, id: UUID) -> View | None:  # noqa: A002  # the wire's name
        context = context_of(info)
        try:
            return session_view(await self._sessions.get_by_id(context.caller, SessionId(id)), context.caller)
        except NotFound:
            return None

    @query("compute_session_list")
    async def compute_session_list(self, info: Info, **args: Any) -> View:
        context = context_of(info)
        selection = SessionQuery(
            **page_of(args),
            statuses=statuses_of(args.get("status")),
            access_key=args.get("access_key"),
            domain_name=args.get("domain_name"),
            group_id=_uuid_text(args.get("group_id"), "group_id"),
        )
        page = await self._sessions.search(context.caller, selection)
        return {"items": [session_view(s, context.caller) for s in page.items], "total_count": page.total_count}

    @field("ComputeSession", "dependencies")
    async def session_dependencies(self, view: View, info: Info) -> list[View]:
        context = context_of(info)

        def load(ids: Sequence[SessionId]) -> Awaitable[Mapping[SessionId, Session]]:
            return self._sessions.get_many(context.caller, tuple(ids))

        loader = context.loader("sessions", load)
        return [session_view(s, context.caller) for s in await loader.get_many(view["session"].dependencies)]

    @query("compute_container")
    async def compute_container(self, info: Info, id: UUID) -> View | None:  # noqa: A002  # the wire's name
        """Return a kernel by the id of a main kernel, which is its session's."""
        session = await self.compute_session(info, id)
        return next((c for c in session["containers"] if c["id"] == id), None) if session is not None else None

    @query("compute_container_list")
    async def compute_container_list(self, info: Info, session_id: UUID, role: str | None = None, **args: Any) -> View:
        page = page_of(args)
        session = await self.compute_session(info, session_id)
        containers = [c for c in session["containers"] if role in (None, c["role"])] if session is not None else []
        return {"items": containers[page["offset"] : page["offset"] + page["limit"]], "total_count": len(containers)}

    @field("KeyPair", "compute_sessions")
    async def keypair_sessions(self, view: View, info: Info, status: str | None = None) -> list[View]:
        context = context_of(info)
        selection = SessionQuery(limit=MAX_PAGE, access_key=view["access_key"], statuses=statuses_of(status))
        page = await self._sessions.search(context.caller, selection)
        return [session_view(s, context.caller) for s in page.items]

    @field("Agent", "compute_containers")
    async def agent_containers(self, view: View, info: Info, status: str | None = None) -> list[View]:
        context = context_of(info)
        words = tuple(word.strip().upper() for word in (status or "").split(",") if word.strip())
        kernels = await self._sessions.kernels_of_agent(context.caller, view["id"], statuses=words)
        return [kernel_view(kernel, None, context.caller) for kernel in kernels]
