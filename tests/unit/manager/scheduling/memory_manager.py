"""A manager on stores in memory, with agents that never answer."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from ai.backend.common.errors import Unavailable
from ai.backend.common.ids import AgentId, DomainName, GroupId, ResourceGroupName, SlotName
from ai.backend.common.slots import ResourceSlot
from ai.backend.common.states import AgentStatus, SlotType, UserRole
from ai.backend.common.structs import replace
from ai.backend.common.wire.reports import ImageReport
from ai.backend.infra.bus import Bus
from ai.backend.manager.access.caller import Caller
from ai.backend.manager.agents.model import Agent, SlotTypeInfo
from ai.backend.manager.composition.manager import Manager
from ai.backend.manager.config.settings import ManagerSettings
from ai.backend.manager.sessions.memory import Memory
from ai.backend.manager.sessions.model import CreateSession, Session
from ai.backend.simulator.stores import make_stores

NOW = datetime(2026, 1, 1, tzinfo=UTC)
_MIB = 2**20


class Silent:
    """Agents that never answer."""

    def agent(self, agent_id: str) -> Any:
        raise Unavailable(f"agent {agent_id} is simulated")


@dataclass
class StillClock:
    """A clock that a test moves."""

    seconds: float = 0.0

    def now(self) -> datetime:
        return NOW + timedelta(seconds=self.seconds)

    def monotonic(self) -> float:
        return self.seconds


def make_agent(name: str, *, group: str = "default", **slots: Any) -> Agent:
    """An agent of the image ``python``; slots with ``_`` for the dot, ``mem`` in MiB."""
    amounts = {key.replace("_", "."): value * _MIB if key == "mem" else value for key, value in slots.items()}
    return Agent(
        id=AgentId(name),
        status=AgentStatus.ALIVE,
        status_changed=NOW,
        architecture="x86_64",
        scaling_group=ResourceGroupName(group),
        available_slots=ResourceSlot.parse({key: str(value) for key, value in amounts.items()}),
        first_contact=NOW,
        last_heartbeat=NOW,
        images=(ImageReport(name="host/python", architecture="x86_64", aliases=["python"]),),
        enforcement={"session-networks": "enforced"},
    )


@dataclass
class Installation:
    """A manager with one domain, the users of the bootstrap, and agents."""

    manager: Manager
    memory: Memory
    clock: StillClock
    group_id: GroupId
    callers: dict[str, Caller] = field(default_factory=dict)

    @classmethod
    async def make(cls, *agents: Agent, keep_s: float = 0.0, **settings: Any) -> Installation:
        memory, clock = Memory(), StillClock()
        stores = make_stores(memory, clock.now)
        stores = replace(stores, leases=None)
        manager = Manager(
            ManagerSettings.model_validate(settings), stores, Bus(), Silent(), clock=clock, rng=random.Random(1)
        )
        made = await manager.bootstrap.run()
        for agent in agents:
            await stores.agents.put_agent(agent)
        names = {name for agent in agents for name in agent.available_slots} | {"cpu", "mem"}
        await stores.agents.add_slot_types(
            SlotTypeInfo(slot_name=SlotName(name), slot_type=SlotType.BYTES if name == "mem" else SlotType.COUNT)
            for name in sorted(names)
        )
        await manager.services.slots.load()
        manager.services.explanations.queues.keep_s = keep_s
        vars(manager.loops.launch)["push"] = lambda _: None
        installation = cls(manager, memory, clock, made.group)
        for email in ("admin@local", "user@local"):
            keypair = await manager.bootstrap.main_keypair(email)
            assert keypair is not None
            await installation.remember(email.partition("@")[0], keypair.access_key)
        return installation

    async def add_user(self, name: str, role: UserRole = UserRole.USER) -> Caller:
        domain = DomainName("default")
        _, keypair = await self.manager.services.identity.make_user(
            f"{name}@local", name, role, domain, [self.group_id], password_hash=None
        )
        return await self.remember(name, keypair.access_key)

    async def remember(self, name: str, access_key: str) -> Caller:
        credentials = await self.manager.stores.identities.credentials(access_key)
        assert credentials is not None
        self.callers[name] = credentials.caller
        return credentials.caller

    async def create(self, user: str, name: str, resources: Mapping[str, Any], **fields: Any) -> Session:
        """Enqueues a session, a millisecond after the one before."""
        self.clock.seconds += 0.001
        request = CreateSession(image="python", name=name, enqueue_only=True, resources=resources, **fields)
        reply = await self.manager.services.sessions.create(self.callers[user], request)
        return reply.session

    async def schedule(self) -> None:
        await self.manager.loops.schedule.once()

    def session(self, session: Session) -> Session:
        return self.memory.sessions[session.id]
