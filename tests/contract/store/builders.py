"""Sessions and agents with every field that a store must bring back."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID, uuid4

from ai.backend.common.ids import (
    AccessKey,
    AgentId,
    DomainName,
    GroupId,
    KernelId,
    ResourceGroupName,
    SessionId,
    UserId,
)
from ai.backend.common.slots import ResourceSlot
from ai.backend.common.states import AgentStatus, KernelStatus, SessionStatus, SessionType
from ai.backend.common.wire.reports import ImageReport, OverlayReport, PluginReport
from ai.backend.manager.agents.model import Agent
from ai.backend.manager.sessions.changes import Change, EventDraft
from ai.backend.manager.sessions.model import Kernel, NetworkNode, Session, SessionNetwork

NOW = datetime(2026, 1, 1, 12, 30, 15, 123456, tzinfo=UTC)
KEY = AccessKey("AKIAEXAMPLE")
AGENT = AgentId("agent-1")
SLOTS = ResourceSlot({"cpu": Decimal(2), "cuda.shares": Decimal("0.3")})


def make_session(name: str = "mine", *, at: datetime = NOW, size: int = 1, **changes: Any) -> Session:
    session_id = SessionId(changes.pop("id", uuid4()))
    kernels = tuple(
        Kernel(
            id=KernelId(session_id if rank == 0 else uuid4()),
            session_id=session_id,
            local_rank=rank,
            image="host/python",
            architecture="x86_64",
            status_changed=at,
            requested_slots=SLOTS,
            created_at=at,
        )
        for rank in range(size)
    )
    values: dict[str, Any] = {
        "id": session_id,
        "name": name,
        "type": SessionType.INTERACTIVE,
        "status": SessionStatus.PENDING,
        "status_changed": at,
        "status_data": {"scheduler": {"retries": 1}},
        "domain_name": DomainName("default"),
        "group_id": GroupId(UUID(int=7)),
        "group_name": "default",
        "user_id": UserId(UUID(int=8)),
        "user_email": "user@local",
        "access_key": KEY,
        "created_by": KEY,
        "image": "host/python",
        "architecture": "x86_64",
        "requested_slots": SLOTS,
        "environ": {"A": "ü"},
        "scaling_group": ResourceGroupName("default"),
        "preopen_ports": (8080,),
        "designated_agents": (AGENT,),
        "cluster_size": size,
        "created_at": at,
        "starts_at": at + timedelta(hours=1),
        "trace": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "kernels": kernels,
    }
    return Session(**{**values, **changes})


def make_agent(agent_id: str = AGENT, **changes: Any) -> Agent:
    values: dict[str, Any] = {
        "id": AgentId(agent_id),
        "status": AgentStatus.ALIVE,
        "status_changed": NOW,
        "architecture": "x86_64",
        "scaling_group": ResourceGroupName("default"),
        "available_slots": ResourceSlot({"cpu": Decimal(4), "cuda.shares": Decimal(1)}),
        "first_contact": NOW,
        "last_heartbeat": NOW,
        "devices": ({"device_id": "0"},),
        "plugins": (PluginReport(name="cpu", version="1"),),
        "images": (ImageReport(name="host/python", architecture="x86_64", aliases=["python"]),),
        "enforcement": {"memory": "enforced"},
        "location": ("zone-a", "rack-7"),
        "kernel_limit": 40,
        "overlay": OverlayReport(address="192.0.2.1", port=4790, mtu=9000, why_plain="no ESP"),
    }
    return Agent(**{**values, **changes})


def make_network(subnet: str = "10.214.0.0/28") -> SessionNetwork:
    node = NetworkNode(address="192.0.2.1", port=4789, gateway="10.214.0.1")
    return SessionNetwork(
        subnet=subnet,
        mtu=1450,
        addresses={"main1": "10.214.0.2"},
        places={"main1": AGENT},
        nodes={AGENT: node},
        encrypted=True,
        lines={"agent-1 agent-2": "0123456789abcdef"},
    )


def event(session: Session, name: str = "session_scheduled") -> EventDraft:
    return EventDraft(name=name, session_id=session.id, payload={"sessionId": str(session.id)})


def placed(session: Session, *, agent: str = AGENT) -> Change:
    """The session with every kernel on an agent."""
    from ai.backend.common.structs import replace

    kernels = tuple(
        replace(
            k,
            status=KernelStatus.SCHEDULED,
            agent=AgentId(agent),
            attempt=1,
            occupied_slots=k.requested_slots,
            devices={"cuda.shares": {"gpu0": "0.3"}},
        )
        for k in session.kernels
    )
    new = replace(session, status=SessionStatus.SCHEDULED, kernels=kernels)
    return Change(old=session, new=new, events=(event(session),))


def ended(session: Session, *, at: datetime = NOW) -> Change:
    """The session with every kernel final, holding nothing."""
    from ai.backend.common.structs import replace

    kernels = tuple(
        replace(k, status=KernelStatus.TERMINATED, occupied_slots=ResourceSlot(), terminated_at=at)
        for k in session.kernels
    )
    return Change(old=session, new=replace(session, status=SessionStatus.TERMINATED, kernels=kernels))
