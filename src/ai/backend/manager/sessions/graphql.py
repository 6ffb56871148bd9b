"""GraphQL fields of sessions."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any
from uuid import UUID

from ai.backend.common.errors import InvalidQuantity, NotFound
from ai.backend.common.ids import KernelId, SessionId
from ai.backend.common.images import split_image
from ai.backend.common.slots import BinarySize
from ai.backend.common.states import KernelStatus, SessionStatus
from ai.backend.infra.http.decode import refuse
from ai.backend.manager.access.caller import Caller
from ai.backend.manager.access.checks import is_permitted
from ai.backend.manager.access.permissions import Operation
from ai.backend.manager.graphql.context import Info, context_of, list_all_pages, page_fields_of
from ai.backend.manager.graphql.resolvers import field, query
from ai.backend.manager.graphql.values import View, json_or_null, slots_json
from ai.backend.manager.sessions.model import Kernel, Session, SessionQuery
from ai.backend.manager.sessions.service import SessionService


def _split_words(text: str | None) -> list[str]:
    return [word.strip().upper() for word in (text or "").split(",") if word.strip()]


def statuses_of(text: str | None) -> tuple[SessionStatus, ...] | None:
    """Returns the statuses of a comma-separated list; None for no list. Raises InvalidInput for an unknown status.
    Statuses that only kernels have (spec 03-11: RESIZING, SUSPENDED) are accepted and match no session."""
    words = _split_words(text)
    if unknown_words := [word for word in words if word not in {*SessionStatus, *KernelStatus}]:
        raise refuse({"status": f"{unknown_words[0][:64]!r} is not one of {', '.join(SessionStatus)}"})
    return tuple(SessionStatus(word) for word in words if word in {*SessionStatus}) if words else None


def _uuid_text(text: str | None, field: str) -> str | None:
    try:
        return str(UUID(text)) if text else None
    except ValueError:
        raise refuse({field: "not a UUID"}) from None


def resource_opts(options: Mapping[str, str]) -> str:
    """Returns the options as JSON, sizes in plain bytes, which the published client can print."""
    printable_options = dict(options)
    if "shmem" in printable_options:
        try:
            printable_options["shmem"] = str(int(BinarySize.parse(printable_options["shmem"])))
        except InvalidQuantity:
            printable_options.pop("shmem")
    return json.dumps(printable_options)


_SESSION_ATTRIBUTES = (
    *("id", "tag", "name", "type", "image", "architecture", "cluster_mode", "cluster_size", "domain_name"),
    *("group_name", "group_id", "user_email", "user_id", "access_key", "status", "status_info", "status_changed"),
    *("created_at", "scheduled_at", "starts_at", "started_at", "terminated_at", "startup_command", "result"),
    *("scaling_group", "mounts", "variant_requirements", "device_requests", "num_queries", "array_id", "array_name"),
    "array_index",
)
_ORDER_ALIASES = {
    "created_user_email": "user_email",
    "created_user_id": "user_id",
    "created_user_uuid": "user_id",
    "registry": "image",
    "status_updated": "status_changed",
}
_KERNEL_ATTRIBUTES = (
    *("id", "cluster_role", "cluster_idx", "local_rank", "cluster_hostname", "session_id", "image", "architecture"),
    *("status", "status_info", "status_changed", "created_at", "started_at", "terminated_at", "container_id"),
    "exit_code",
)
_MAIN_ROLE = "master"
"""The value of the field ``role`` for a main kernel (spec 03-09:753); published clients read ``cluster_role``."""


def session_view(session: Session, caller: Caller) -> View:
    agents = list(session.agent_ids) if is_permitted(caller, Operation.SEE_AGENTS) else []
    occupied_slots = slots_json(session.occupying_slots)
    is_by_owner = session.created_by == session.access_key
    creator_id = session.user_id if is_by_owner else None
    return {
        **{name: getattr(session, name) for name in _SESSION_ATTRIBUTES},
        "main_kernel_id": session.main.id,
        "status_updated": session.status_changed,
        "registry": split_image(session.image)[0],
        "cluster_template": None,
        "runtime_class": session.runtime_class or None,
        "agent_ids": agents,
        "agents": agents,
        "full_name": None,
        "created_user_email": session.user_email if is_by_owner else None,
        "created_user_id": creator_id,
        "created_user_uuid": creator_id,
        "status_data": json_or_null(session.status_data),
        "status_history": json.dumps(dict(session.status_history)),
        "plugin_options": json.dumps({name: dict(options) for name, options in session.plugin_options.items()}),
        "resource_opts": resource_opts(session.resource_opts),
        "service_ports": json.dumps([dict(port) for port in session.service_ports]),
        "claim": session.claim_name,
        "vfolder_mounts": session.mounts,
        "requested_slots": slots_json(session.requested_slots),
        "occupying_slots": occupied_slots,
        "occupied_slots": occupied_slots,
        "containers": [kernel_view(kernel, session, caller) for kernel in session.kernels],
        "session": session,  # for resolvers of this and other features
        "abusing_reports": [],
    }


def kernel_view(kernel: Kernel, session: Session | None, caller: Caller) -> View:
    return {
        **{name: getattr(kernel, name) for name in _KERNEL_ATTRIBUTES},
        "role": _MAIN_ROLE if kernel.cluster_role == "main" else kernel.cluster_role,
        "hostname": kernel.cluster_hostname,
        "registry": split_image(kernel.image)[0],
        "status_data": json_or_null(kernel.status_data),
        "agent": kernel.agent if is_permitted(caller, Operation.SEE_AGENTS) else None,
        "attached_devices": json.dumps(dict(kernel.attached_devices), default=str),
        "resource_opts": resource_opts(session.resource_opts if session is not None else {}),
        "occupied_slots": slots_json(kernel.holds),
        "preopen_ports": session.preopen_ports if session is not None else (),
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
            return session_view(await self._sessions.get(context.caller, str(id)), context.caller)
        except NotFound:
            return None

    @query("compute_session_list")
    async def compute_session_list(self, info: Info, **args: Any) -> View:
        context = context_of(info)
        selection = SessionQuery(
            **page_fields_of(args, _ORDER_ALIASES),
            statuses=statuses_of(args.get("status")),
            access_key=args.get("access_key"),
            domain_name=args.get("domain_name"),
            group_id=_uuid_text(args.get("group_id"), "group_id"),
        )
        page = await self._sessions.search(context.caller, selection)
        items = [session_view(session, context.caller) for session in page.items]
        return {"items": items, "total_count": page.total_count, "selection": selection}

    @field("ComputeSessionList", "status_counts")
    async def status_counts(self, view: View, info: Info) -> str:
        counts = await self._sessions.count_by_status(context_of(info).caller, view["selection"])
        return json.dumps(dict(sorted(counts.items())))

    @field("ComputeSession", "dependencies")
    async def session_dependencies(self, view: View, info: Info) -> list[View]:
        context = context_of(info)

        def load(ids: Sequence[SessionId]) -> Awaitable[Mapping[SessionId, Session]]:
            return self._sessions.get_many(context.caller, tuple(ids))

        loader = context.loader("sessions", load)
        return [
            session_view(session, context.caller) for session in await loader.get_many(view["session"].dependencies)
        ]

    @query("compute_container")
    async def compute_container(self, info: Info, id: UUID) -> View | None:  # noqa: A002  # the wire's name
        caller = context_of(info).caller
        session = await self._sessions.session_of_kernel(caller, KernelId(id))
        kernels = session.kernels if session is not None else ()
        return next((kernel_view(kernel, session, caller) for kernel in kernels if kernel.id == id), None)

    @query("compute_container_list")
    async def compute_container_list(self, info: Info, session_id: UUID, role: str | None = None, **args: Any) -> View:
        page = page_fields_of(args)
        session = await self.compute_session(info, session_id)
        containers = [
            container
            for container in (session["containers"] if session is not None else ())
            if role in (None, container["role"], container["cluster_role"])
        ]
        return {"items": containers[page["offset"] : page["offset"] + page["limit"]], "total_count": len(containers)}

    @field("KeyPair", "compute_sessions")
    async def keypair_sessions(self, view: View, info: Info, status: str | None = None) -> list[View]:
        arguments = {"access_key": view["access_key"], "status": status}
        return await list_all_pages(self.compute_session_list, info, "compute_session_list", **arguments)

    @field("Agent", "compute_containers")
    async def agent_containers(self, view: View, info: Info, status: str | None = None) -> list[View]:
        context = context_of(info)
        statuses = tuple(_split_words(status))
        kernels = await self._sessions.kernels_of_agent(context.caller, view["id"], statuses=statuses)
        return [kernel_view(kernel, None, context.caller) for kernel in kernels]
