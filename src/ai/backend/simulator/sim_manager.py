"""A manager reduced to what it decides: durable sessions, level-triggered loops, commands that may be lost.

Everything durable changes in one transaction (:meth:`SimManager._apply`); a crash happens between transactions and
loses the commands of the last one. The loops repeat them from the status alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from uuid import UUID

from ai.backend.common.devices import DeviceAllocation
from ai.backend.common.errors import BackendError, Conflict, CreationDenied, Unavailable
from ai.backend.common.ids import AgentId, KernelId, SessionId
from ai.backend.common.slots import ResourceSlot
from ai.backend.common.states import ClusterMode, KernelEventReason, KernelStatus, SessionStatus, SessionType
from ai.backend.core.lifecycle import session as machine
from ai.backend.core.lifecycle.effects import (
    CreateKernels,
    DestroyKernels,
    Effect,
    EmitEvent,
    KernelTarget,
    ReleaseSlots,
    RestartKernels,
    TakeSlots,
)
from ai.backend.core.lifecycle.events import (
    KernelObserved,
    KernelsAbandoned,
    SessionCreationFailed,
    SessionDestroyRequested,
    SessionDispatched,
    SessionEvent,
    SessionScheduled,
)
from ai.backend.core.lifecycle.kernel import HOLDING, KernelState, is_orphan
from ai.backend.core.lifecycle.session import SessionState
from ai.backend.core.scheduling.decide import decide
from ai.backend.core.scheduling.policy import Policy
from ai.backend.core.scheduling.snapshot import AgentView, HeldKernel, PendingKernel, PendingSession, Snapshot
from ai.backend.simulator.network import World
from ai.backend.simulator.sim_agent import SimAgent

_EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


class SimManager:
    """See the module."""

    def __init__(self, world: World, agents: Mapping[AgentId, SimAgent], policy: Policy | None = None) -> None:
        self.sessions: dict[SessionId, SessionState] = {}
        self.taken: dict[KernelId, AgentId] = {}
        self.events: list[tuple[SessionId, str]] = []
        self._world = world
        self._agents = agents
        self._policy = policy or Policy()
        self._slots: dict[KernelId, ResourceSlot] = {}
        self._plans: dict[KernelId, DeviceAllocation] = {}
        self._modes: dict[SessionId, ClusterMode] = {}
        self._owners: dict[KernelId, SessionId] = {}
        self._enqueued: dict[SessionId, float] = {}
        for loop in (self._schedule, self._dispatch, self._terminate, self._restart, self._heartbeats):
            self._every(loop)

    # ---- what users do

    def enqueue(self, number: int, requests: list[ResourceSlot], mode: ClusterMode, kind: SessionType) -> SessionId:
        session_id = SessionId(UUID(int=number * 1000))
        kernels = []
        for n, slots in enumerate(requests):
            kernel_id = KernelId(UUID(int=number * 1000 + 1 + n))
            self._slots[kernel_id] = slots
            self._owners[kernel_id] = session_id
            kernels.append(KernelState(kernel_id=kernel_id, is_main=n == 0))
        self._modes[session_id] = mode
        self._enqueued[session_id] = self._world.now
        self.sessions[session_id] = SessionState(session_id=session_id, kernels=tuple(kernels), session_type=kind)
        return session_id

    def request(self, session_id: SessionId, event: SessionEvent) -> None:
        """A request of the user; one out of place is refused and changes nothing."""
        try:
            self._run(self._apply(session_id, event))
        except Conflict:
            return

    # ---- one transaction, and what follows it

    def _apply(self, session_id: SessionId, event: SessionEvent) -> tuple[Effect, ...]:
        before = self.sessions[session_id]
        after, effects = machine.step(before, event)
        if before.status.is_final and after != before:
            raise AssertionError(f"{session_id} left {before.status} by {event}")
        for effect in effects:
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
        self.sessions[session_id] = after
        return effects

    def _run(self, effects: tuple[Effect, ...]) -> None:
        """Commands after the transaction. A crash of the manager loses them."""
        if self._world.chance(self._world.faults.crash * 5):
            return
        for effect in effects:
            match effect:
                case DestroyKernels(targets=targets, reason=reason):
                    for target in targets:
                        self._destroy(target, reason)
                case RestartKernels(targets=targets):
                    for target in targets:
                        self._call(target, lambda agent, t=target: agent.restart(t))  # type: ignore[misc]  # bound now
                case CreateKernels(session_id=session_id):
                    self._create(session_id)
                case _:
                    pass

    def _call(self, target: KernelTarget, call: Callable[[SimAgent], None]) -> None:
        agent = self._agents[target.agent_id]
        try:
            self._world.rpc(lambda: call(agent))
        except (Unavailable, Conflict):
            return

    def _destroy(self, target: KernelTarget, reason: KernelEventReason) -> None:
        self._call(target, lambda agent: agent.destroy(target, reason))

    def _create(self, session_id: SessionId) -> None:
        """Send the creation of a SCHEDULED session; what is refused decides, what is lost is sent again later."""
        session = self.sessions[session_id]
        if session.status is not SessionStatus.SCHEDULED:
            return
        for kernel in session.kernels:
            target = kernel.target
            slots = self._slots[kernel.kernel_id]
            plan = self._plans.get(kernel.kernel_id, DeviceAllocation())
            agent = self._agents[target.agent_id]
            try:
                self._world.rpc(lambda a=agent, t=target, s=slots, p=plan: a.create(t, s, p))  # type: ignore[misc]  # bound now
            except Unavailable:
                return
            except BackendError as e:
                is_denied = isinstance(e, CreationDenied)
                failed = SessionCreationFailed(
                    kernel_ids=frozenset({kernel.kernel_id}),
                    reason=KernelEventReason.CREATION_DENIED if is_denied else KernelEventReason.FAILED_TO_CREATE,
                    retryable=not is_denied,
                )
                self._run(self._apply(session_id, failed))
                return
        self._run(self._apply(session_id, SessionDispatched()))

    # ---- loops

    def _every(self, loop: Callable[[], None]) -> None:
        def again() -> None:
            loop()
            self._world.after(self._world.rng.uniform(0.5, 3.0), again)

        self._world.after(self._world.rng.uniform(0.0, 1.0), again)

    def _in_status(self, *statuses: SessionStatus) -> list[SessionState]:
        return [s for s in self.sessions.values() if s.status in statuses]

    def snapshot(self) -> Snapshot:
        """What the planner would see now."""
        held: dict[AgentId, list[HeldKernel]] = {a: [] for a in self._agents}
        for kernel_id, agent_id in self.taken.items():
            devices = self._plans.get(kernel_id, DeviceAllocation())
            held[agent_id].append(HeldKernel(kernel_id=kernel_id, slots=self._slots[kernel_id], devices=devices))
        return Snapshot(
            resource_group="default",
            agents=tuple(
                AgentView(
                    agent_id=a.agent_id,
                    architecture="x86_64",
                    plugins=a.plugins,
                    held=tuple(held[a.agent_id]),
                    is_schedulable=a.is_up,
                )
                for a in self._agents.values()
            ),
            pending=tuple(
                PendingSession(
                    session_id=s.session_id,
                    name=f"s{s.session_id.int // 1000}",
                    kernels=tuple(
                        PendingKernel(kernel_id=k.kernel_id, slots=self._slots[k.kernel_id], image="i")
                        for k in s.kernels
                    ),
                    enqueued_at=_EPOCH + timedelta(seconds=self._enqueued[s.session_id]),
                    cluster_mode=self._modes[s.session_id],
                )
                for s in self._in_status(SessionStatus.PENDING)
            ),
        )

    def _schedule(self) -> None:
        now = _EPOCH + timedelta(seconds=self._world.now)
        snapshot = self.snapshot()
        plan = decide(snapshot, self._policy, now=now, rng=self._world.rng)
        told = [p.session_id for p in plan.placements] + [s.session_id for s in plan.skips if s.message]
        if sorted(told) != sorted(s.session_id for s in snapshot.pending):
            raise AssertionError("a pending session is neither placed nor explained, or both")
        for placement in plan.placements:
            self._plans.update({k.kernel_id: k.devices for k in placement.kernels})
            event = SessionScheduled(agents={k.kernel_id: k.agent_id for k in placement.kernels})
            self._run(self._apply(placement.session_id, event))

    def _dispatch(self) -> None:
        for session in self._in_status(SessionStatus.SCHEDULED):
            self._create(session.session_id)

    def _terminate(self) -> None:
        for session in self._in_status(SessionStatus.TERMINATING):
            for kernel in session.kernels:
                if kernel.status is KernelStatus.TERMINATING:
                    self._destroy(kernel.target, kernel.reason)

    def _restart(self) -> None:
        for session in self._in_status(SessionStatus.RESTARTING):
            for kernel in session.kernels:
                if kernel.status is KernelStatus.RESTARTING:
                    self._call(kernel.target, lambda agent, t=kernel.target: agent.restart(t))  # type: ignore[misc]  # bound now

    def _heartbeats(self) -> None:
        """Compare what each agent holds with what it should hold."""
        for agent in self._agents.values():
            try:
                present = self._world.rpc(agent.presence)
            except Unavailable:
                continue
            for kernel_id, attempt in present:
                kernel = self.sessions[self._owners[kernel_id]].kernel(kernel_id)
                if is_orphan(kernel, agent_id=agent.agent_id, attempt=attempt):
                    target = KernelTarget(kernel_id=kernel_id, agent_id=agent.agent_id, attempt=attempt)
                    self._destroy(target, KernelEventReason.NOT_FOUND_IN_MANAGER)

    # ---- reports

    def observe(self, observed: KernelObserved) -> None:
        """Idempotent; the acknowledgement is the return."""
        session_id = self._owners[observed.kernel_id]
        before = self.sessions[session_id]
        kernel = before.kernel(observed.kernel_id)
        effects = self._apply(session_id, observed)
        if (
            kernel is not None
            and kernel.attempt != observed.attempt
            and (effects or self.sessions[session_id] != before)
        ):
            raise AssertionError(f"{observed} is of another attempt than {kernel.attempt} and changed something")
        self._run(effects)

    def give_up(self, agent_id: AgentId) -> None:
        """Declare an agent dead."""
        for session in list(self.sessions.values()):
            lost = frozenset(k.kernel_id for k in session.kernels if k.agent_id == agent_id and k.status in HOLDING)
            if lost:
                self._run(self._apply(session.session_id, KernelsAbandoned(kernel_ids=lost)))

    def destroy_all(self) -> None:
        for session in list(self.sessions.values()):
            self.request(session.session_id, SessionDestroyRequested())

    def check(self) -> list[str]:
        """Every state is sound, and slots are taken exactly for the kernels that hold some."""
        broken = [text for s in self.sessions.values() for text in machine.check(s)]
        holding = {k.kernel_id: k.agent_id for s in self.sessions.values() for k in s.kernels if k.status in HOLDING}
        if holding != self.taken:
            broken.append(f"taken slots {self.taken} are not those of the holding kernels {holding}")
        return broken
