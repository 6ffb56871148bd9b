"""Requests and replies of device claims on the wire."""

from __future__ import annotations

from typing import Annotated, TypedDict

import msgspec
from msgspec import Meta

from ai.backend.infra.http.fields import Duration, Word
from ai.backend.infra.http.routes import Schema
from ai.backend.manager.sessions.claims.model import ClaimView
from ai.backend.manager.sessions.schemas import DeviceRequestText, Quantity


class CreateClaimBody(Schema, frozen=True):
    """The body of a creation. ``resources`` are accelerators only; ``device_requests`` are those of a session.
    ``idle_timeout`` is in seconds, or ``30m``, ``2h``, ``1d``; zero is the longest time that the policy allows."""

    name: Annotated[str, Meta(min_length=1, max_length=64)]
    resources: Annotated[dict[str, Quantity], Meta(max_length=64)] = msgspec.field(default_factory=dict)
    device_requests: Annotated[list[DeviceRequestText], Meta(max_length=8)] = msgspec.field(default_factory=list)
    domain: Word | None = None
    group: Word | None = None
    scaling_group: Word | None = None
    idle_timeout: Annotated[float, Meta(ge=0, le=31_622_400)] | Duration | None = None
    owner_access_key: Word | None = None


class ListClaimsQuery(Schema, frozen=True):
    limit: Annotated[int, Meta(ge=1, le=1_000)] = 20
    offset: Annotated[int, Meta(ge=0)] = 0


class ClaimSession(TypedDict):
    id: str
    name: str
    status: str


class ClaimReply(TypedDict):
    """A device claim. ``status`` is UNALLOCATED, ALLOCATING, IN_USE, IDLE or DELETED; ``status_info`` says why the last
    allocation has ended, ``problem`` why the devices cannot be used now. ``sessions`` are the live ones that name it.
    ``devices`` is slot -> device -> quantity; ``agent`` only for callers who may see agents."""

    id: str
    name: str
    status: str
    status_info: str | None
    problem: str
    is_deleting: bool
    domain_name: str
    group_name: str
    user_email: str
    access_key: str
    scaling_group: str
    requested_slots: dict[str, str]
    device_requests: list[str]
    idle_timeout: float | None
    agent: str | None
    occupied_slots: dict[str, str]
    devices: dict[str, dict[str, str]]
    sessions: list[ClaimSession]
    created_at: str
    allocated_at: str | None
    idle_since: str | None


class ClaimList(TypedDict):
    items: list[ClaimReply]
    total_count: int


def claim_reply(view: ClaimView, *, sees_agents: bool) -> ClaimReply:
    """Returns a claim in the form of the APIs."""
    claim = view.claim
    return ClaimReply(
        id=str(claim.id),
        name=claim.name,
        status=claim.status.value,
        status_info=claim.status_info,
        problem=view.problem,
        is_deleting=claim.is_deleting,
        domain_name=claim.domain_name,
        group_name=claim.group_name,
        user_email=claim.user_email,
        access_key=claim.access_key,
        scaling_group=claim.scaling_group,
        requested_slots=claim.requested_slots.to_json(),
        device_requests=list(claim.device_requests),
        idle_timeout=claim.idle_timeout_s,
        agent=claim.agent if sees_agents else None,
        occupied_slots=claim.occupied_slots.to_json(),
        devices={slot: dict(devices) for slot, devices in claim.devices.items()},
        sessions=[
            ClaimSession(id=str(user.session_id), name=user.name, status=user.status.value) for user in view.users
        ],
        created_at=claim.created_at.isoformat(),
        allocated_at=claim.allocated_at.isoformat() if claim.allocated_at is not None else None,
        idle_since=claim.idle_since.isoformat() if claim.idle_since is not None else None,
    )
