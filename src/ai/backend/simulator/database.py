"""The database of simulated managers: transactions say what they are based on; some are slow, some end unheard.

It keeps every session with its version, the slots that kernels hold, and the lease of the leader with its token. A
transaction that was based on another version, whose token is out of date, or that takes more of an agent than there is,
changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ai.backend.common.devices import DeviceAllocation
from ai.backend.common.ids import AgentId, KernelId, SessionId
from ai.backend.common.slots import ResourceSlot
from ai.backend.common.states import ClusterMode, SessionStatus, SessionType
from ai.backend.core.lifecycle import session as machine
from ai.backend.core.lifecycle.effects import Effect, EmitEvent, ReleaseSlots, TakeSlots
from ai.backend.core.lifecycle.kernel import HOLDING
from ai.backend.core.lifecycle.session import SessionState
from ai.backend.simulator.network import World

PATIENCE_S = 4.0
"""After so long a manager stops waiting for a transaction."""
_SLOWEST_S = 12.0
Answer = bool | None
"""Whether a transaction was committed; None: nobody knows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a user asked for; it never changes.

    ``starts_at`` in seconds of the true time, ``enqueued_at`` by the clock of the manager that took it.
    """

    number: int
    slots: Mapping[KernelId, ResourceSlot]
    mode: ClusterMode = ClusterMode.SINGLE_NODE
    session_type: SessionType = SessionType.INTERACTIVE
    priority: int = 10
    starts_at: float = 0.0
    may_start_over: bool = False
    enqueued_at: float = 0.0

    @property
    def scope(self) -> tuple[str, ...]:
        return "domain", f"project-{self.number % 2}", f"user-{self.number % 3}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One session as it is to be, and the version that this is based on. ``plans``: devices of kernels placed by it."""

    session_id: SessionId
    version: int
    after: SessionState
    effects: tuple[Effect, ...]
    plans: Mapping[KernelId, DeviceAllocation] = field(default_factory=dict)
    at: float = 0.0


@dataclass(slots=True)
class Lease:
    holder: str = ""
    token: int = 0
    until: float = 0.0


class Database:
    """See the module. ``totals``: what each agent has."""

    def __init__(self, world: World, totals: Mapping[AgentId, ResourceSlot]) -> None:
        self.sessions: dict[SessionId, SessionState] = {}
        self.requests: dict[SessionId, Request] = {}
        self.versions: dict[SessionId, int] = {}
        self.taken: dict[KernelId, AgentId] = {}
        self.plans: dict[KernelId, DeviceAllocation] = {}
        self.owners: dict[KernelId, SessionId] = {}
        self.started: dict[SessionId, float] = {}
        self.events: list[tuple[SessionId, str]] = []
        self.lease = Lease()
        self._world = world
        self._totals = totals
        self._changed: set[SessionId] = set()

    def insert(self, state: SessionState, request: Request) -> None:
        self.sessions[state.session_id] = state
        self.requests[state.session_id] = request
        self.versions[state.session_id] = 1
        self.owners.update(dict.fromkeys(request.slots, state.session_id))
        self._changed.add(state.session_id)

    def acquire(self, holder: str, ttl_s: float) -> int | None:
        """The token of the lease, which is the holder's for so long from now on; None if another has it."""
        lease, now = self.lease, self._world.now
        if lease.holder != holder and lease.until > now:
            return None
        if lease.holder != holder or lease.until <= now:
            self.lease = Lease(holder, lease.token + 1, now + ttl_s)
        else:
            lease.until = now + ttl_s
        return self.lease.token

    # ---- transactions

    def submit(self, changes: Sequence[Change], then: Callable[[Answer], None], *, token: int | None = None) -> None:
        """All of the changes, or none. ``token``: of the leader's lease; None for what every manager may write."""
        world = self._world
        if not world.chance(world.faults.slow):
            then(self._commit(changes, token))
            return
        delay = world.rng.uniform(0.1, _SLOWEST_S)
        if delay <= PATIENCE_S:
            world.after(delay, lambda: then(self._commit(changes, token)))
            return
        if world.chance(0.5):
            world.after(delay, lambda: self._commit(changes, token))
        world.after(PATIENCE_S, lambda: then(None))

    def _commit(self, changes: Sequence[Change], token: int | None) -> bool:
        if token is not None and token != self.lease.token:
            return False
        if any(c.version != self.versions[c.session_id] for c in changes) or not self._has_room(changes):
            return False
        for change in changes:
            self._apply(change)
        return True

    def _has_room(self, changes: Sequence[Change]) -> bool:
        wanted: dict[AgentId, ResourceSlot] = {}
        for change in changes:
            for effect in change.effects:
                if isinstance(effect, TakeSlots):
                    target = effect.target
                    asked = self.slots_of(target.kernel_id)
                    wanted[target.agent_id] = wanted.get(target.agent_id, ResourceSlot()) + asked
        return all(asked + self.held(agent_id) <= self._totals[agent_id] for agent_id, asked in wanted.items())

    def _apply(self, change: Change) -> None:
        session_id, before = change.session_id, self.sessions[change.session_id]
        if before.status.is_final and change.after != before:
            raise AssertionError(f"{session_id} left {before.status}, which is final")
        for effect in change.effects:
            match effect:
                case TakeSlots(target=target):
                    if target.kernel_id in self.taken:
                        raise AssertionError(f"slots of {target.kernel_id} are taken twice")
                    self.taken[target.kernel_id] = target.agent_id
                case ReleaseSlots(target=target):
                    if self.taken.pop(target.kernel_id, None) != target.agent_id:
                        raise AssertionError(f"slots of {target.kernel_id} are released but not taken")
                case EmitEvent(name=name):
                    self.events.append((session_id, name))
                case _:
                    pass
        if change.after.status is SessionStatus.RUNNING and before.status is not SessionStatus.RUNNING:
            self.started[session_id] = change.at
        self.sessions[session_id] = change.after
        self.versions[session_id] += 1
        self.plans.update(change.plans)
        self._changed.add(session_id)

    # ---- reading

    def slots_of(self, kernel_id: KernelId) -> ResourceSlot:
        return self.requests[self.owners[kernel_id]].slots[kernel_id]

    def held(self, agent_id: AgentId) -> ResourceSlot:
        """What is counted as taken on an agent."""
        return sum((self.slots_of(k) for k, a in self.taken.items() if a == agent_id), ResourceSlot())

    def in_status(self, *statuses: SessionStatus) -> list[SessionState]:
        return [s for s in self.sessions.values() if s.status in statuses]

    def check(self) -> list[str]:
        """What is broken in what has changed since the last check: every state is sound, slots are taken exactly for
        the kernels that hold some, and of no agent more than it has."""
        if not self._changed:
            return []
        changed, self._changed = self._changed, set()
        broken = [text for session_id in changed for text in machine.check(self.sessions[session_id])]
        holding = {k.kernel_id: k.agent_id for s in self.sessions.values() for k in s.kernels if k.status in HOLDING}
        if holding != self.taken:
            broken.append(f"taken slots {self.taken} are not those of the holding kernels {holding}")
        for agent_id, total in self._totals.items():
            if not (counted := self.held(agent_id)) <= total:
                broken.append(f"{agent_id} has {total!r}, and {counted!r} of it are taken")
        return broken
