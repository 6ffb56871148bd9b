"""A manager reduced to what it decides: level-triggered loops over a database, commands that may be lost.

Several of them share one database; the one that holds the lease runs the loops. What is durable changes in transactions
of :class:`~ai.backend.simulator.database.Database`. A crash loses everything else: commands, transactions that are
waited for, what was heard of agents. The loops do it again from the statuses alone. Each manager has its own clock.
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
from ai.backend.core.lifecycle.effects import CreateKernels, DestroyKernels, Effect, KernelTarget, RestartKernels
from ai.backend.core.lifecycle.events import (
    KernelObserved,
    KernelsAbandoned,
    SessionCreationFailed,
    SessionDegraded,
    SessionDestroyRequested,
    SessionDispatched,
    SessionEvent,
    SessionRecovered,
    SessionScheduled,
    SessionStartOverRequested,
)
from ai.backend.core.lifecycle.kernel import HOLDING, KernelState, is_orphan
from ai.backend.core.lifecycle.session import SessionState
from ai.backend.core.scheduling.decide import IncrementalScheduler, decide
from ai.backend.core.scheduling.ordering.fair_share import occupied
from ai.backend.core.scheduling.plan import Placement, Plan
from ai.backend.core.scheduling.policy import Policy
from ai.backend.core.scheduling.snapshot import (
    AgentView,
    HeldKernel,
    PendingKernel,
    PendingSession,
    RunningSession,
    Snapshot,
)
from ai.backend.simulator.database import Answer, Change, Database, Request
from ai.backend.simulator.network import World
from ai.backend.simulator.sim_agent import SimAgent

_EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
LEASE_S = 6.0
LOST_S, GIVEN_UP_S = 12.0, 25.0
"""An agent that was not heard for so long is lost; its kernels are given up."""
S = SessionStatus
_STARTING = (S.SCHEDULED, S.PREPARING, S.PULLING, S.PREPARED, S.CREATING)


class SimManager:
    """See the module. ``skew``: seconds that its wall clock is ahead; ``drift``: how fast its clock runs."""

    def __init__(
        self,
        world: World,
        database: Database,
        agents: Mapping[AgentId, SimAgent],
        policy: Policy | None = None,
        *,
        name: str = "m-0",
        skew: float = 0.0,
        drift: float = 1.0,
    ) -> None:
        self.name = name
        self.is_up = True
        self.skew = skew
        self._drift = drift
        self._world = world
        self._database = database
        self._agents = agents
        self._policy = policy or Policy()
        self._life = 0
        self._token: int | None = None
        self._leads_until = self._stopped_until = 0.0
        self._busy: set[str] = set()
        self._scheduler: IncrementalScheduler | None = None
        self._passes = 0
        self._heard: dict[AgentId, float] = {}
        self._every("lead", self._lead, 0.5, 1.5)
        for loop in (self._schedule, self._dispatch, self._terminate, self._restart, self._heartbeats, self._sweep):
            self._every(loop.__name__, loop, 0.5, 3.0)

    # ---- its clocks, its life

    def clock(self) -> float:
        """Of the wall."""
        return self._world.now + self.skew

    def _monotonic(self) -> float:
        return self._world.now * self._drift

    @property
    def leads(self) -> bool:
        return self._token is not None and self._monotonic() < self._leads_until

    def crash(self) -> None:
        """The process is killed; it comes back later, maybe with another time."""
        self.is_up = False
        self._life += 1
        self._token = self._scheduler = None
        self._busy.clear()
        world = self._world
        world.after(world.rng.uniform(1.0, 20.0), self._come_back)

    def _come_back(self) -> None:
        self.is_up = True
        self.skew = self._world.rng.uniform(-1.0, 1.0) * self._world.faults.skew

    def _every(self, name: str, loop: Callable[[], None], least: float, most: float) -> None:
        def again() -> None:
            self._world.after(self._world.rng.uniform(least, most), again)
            is_running = self.is_up and self._world.now >= self._stopped_until
            if is_running and name not in self._busy and (self.leads or name == "lead"):
                loop()

        self._world.after(self._world.rng.uniform(0.0, 1.0), again)

    def _lead(self) -> None:
        """Ask for the lease. A process may be killed or stopped at any time; now and then it is, before it asks."""
        world = self._world
        if world.chance(world.faults.crash * 2):
            self.crash()
            return
        if world.chance(world.faults.crash * 2):
            self._stopped_until = world.now + world.rng.uniform(2.0, 15.0)
            return
        asked = self._monotonic()
        try:
            token = self._world.rpc(lambda: self._database.acquire(self.name, LEASE_S))
        except Unavailable:
            return
        if token is None:
            self._token = None
        else:
            if token != self._token:
                self._heard.clear()
            self._token, self._leads_until = token, asked + 0.8 * LEASE_S

    # ---- what users do; any manager serves them

    def enqueue(
        self,
        number: int,
        requests: list[ResourceSlot],
        mode: ClusterMode,
        kind: SessionType,
        *,
        priority: int = 10,
        delay_s: float = 0.0,
    ) -> SessionId:
        session_id = SessionId(UUID(int=number * 1000))
        kernels = tuple(
            KernelState(kernel_id=KernelId(UUID(int=number * 1000 + 1 + n)), is_main=n == 0)
            for n in range(len(requests))
        )
        request = Request(
            number=number,
            slots={k.kernel_id: slots for k, slots in zip(kernels, requests, strict=True)},
            mode=mode,
            session_type=kind,
            priority=priority,
            starts_at=self._world.now + delay_s if delay_s else 0.0,
            may_start_over=kind is SessionType.BATCH and number % 2 == 0,
            enqueued_at=self.clock(),
        )
        self._database.insert(SessionState(session_id=session_id, kernels=kernels, session_type=kind), request)
        return session_id

    def request(self, session_id: SessionId, event: SessionEvent) -> None:
        """A request of the user; one out of place is refused and changes nothing."""
        self._change(session_id, event)

    # ---- one transaction, and what follows it

    def _while_alive(self, then: Callable[[Answer], None]) -> Callable[[Answer], None]:
        life = self._life
        return lambda answer: then(answer) if life == self._life else None

    def _made(self, session_id: SessionId, event: SessionEvent, plans: Mapping[KernelId, DeviceAllocation]) -> Change:
        """Raises Conflict."""
        after, _, effects = machine.step(self._database.sessions[session_id], event)
        version = self._database.versions[session_id]
        return Change(
            session_id=session_id, version=version, after=after, effects=effects, plans=plans, at=self._world.now
        )

    def _change(
        self,
        session_id: SessionId,
        event: SessionEvent,
        *,
        fenced: bool = False,
        then: Callable[[], None] = lambda: None,
        tries: int = 3,
    ) -> None:
        """``then`` is called once it is certain that the event has been taken in."""
        try:
            change = self._made(session_id, event, {})
        except Conflict:
            return
        if change.after == self._database.sessions[session_id] and not change.effects:
            then()
            return

        def go_on(answer: Answer) -> None:
            if answer:
                self._run(change.effects)
                then()
            elif answer is False and tries > 1:
                self._change(session_id, event, fenced=fenced, then=then, tries=tries - 1)

        self._database.submit([change], self._while_alive(go_on), token=self._token if fenced else None)

    def _run(self, effects: tuple[Effect, ...]) -> None:
        """Commands after the transaction, if this manager leads; else the loops of the one that does find them."""
        if self._world.chance(self._world.faults.crash):
            self.crash()
            return
        for effect in effects if self.leads else ():
            match effect:
                case DestroyKernels(targets=targets, reason=reason):
                    for target in targets:
                        self._destroy(target, reason)
                case RestartKernels(session_id=session_id):
                    self._restart_in_place(self._database.sessions[session_id])
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
        session, database = self._database.sessions[session_id], self._database
        if session.status is not S.SCHEDULED:
            return
        for kernel in session.kernels:
            target, slots = kernel.target, database.slots_of(kernel.kernel_id)
            plan = database.plans.get(kernel.kernel_id, DeviceAllocation())
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
                self._change(session_id, failed, fenced=True, tries=1)
                return
        self._change(session_id, SessionDispatched(), fenced=True, tries=1)

    # ---- scheduling

    def snapshot(self) -> Snapshot:
        """What the planner would see now."""
        database = self._database
        held: dict[AgentId, list[HeldKernel]] = {a: [] for a in self._agents}
        for kernel_id, agent_id in database.taken.items():
            devices, slots = database.plans.get(kernel_id, DeviceAllocation()), database.slots_of(kernel_id)
            held[agent_id].append(HeldKernel(kernel_id=kernel_id, slots=slots, devices=devices))
        holdings = [(database.requests[database.owners[k]].scope, database.slots_of(k)) for k in database.taken]
        return Snapshot(
            resource_group="default",
            agents=tuple(
                AgentView(
                    agent_id=a.agent_id,
                    architecture="x86_64",
                    plugins=a.plugins,
                    held=tuple(held[a.agent_id]),
                    is_schedulable=self._silence(a.agent_id) <= LOST_S,
                    location=a.location,
                )
                for a in self._agents.values()
            ),
            pending=tuple(self._pending(s) for s in database.in_status(S.PENDING)),
            running=self._running() if self._policy.preempts else (),
            occupied=occupied(holdings),
            used_lately=occupied(holdings),
        )

    def _pending(self, state: SessionState) -> PendingSession:
        request = self._database.requests[state.session_id]
        return PendingSession(
            session_id=state.session_id,
            name=f"s{request.number}",
            kernels=tuple(
                PendingKernel(kernel_id=k.kernel_id, slots=request.slots[k.kernel_id], image="i") for k in state.kernels
            ),
            enqueued_at=_EPOCH + timedelta(seconds=request.enqueued_at),
            priority=request.priority,
            cluster_mode=request.mode,
            starts_at=_EPOCH + timedelta(seconds=request.starts_at) if request.starts_at else None,
            avoided_agents=tuple({k.agent_id: None for k in state.kernels if k.agent_id is not None}),
            scope=request.scope,
        )

    def _running(self) -> tuple[RunningSession, ...]:
        database = self._database
        return tuple(
            RunningSession(
                session_id=s.session_id,
                priority=database.requests[s.session_id].priority,
                started_at=_EPOCH + timedelta(seconds=database.started.get(s.session_id, 0.0)),
                kernels=tuple((k.agent_id, k.kernel_id) for k in s.kernels if k.agent_id and k.status in HOLDING),
                is_preemptible=s.status is S.RUNNING,
                is_ending=s.status is S.TERMINATING,
                starts_over=database.requests[s.session_id].may_start_over,
            )
            for s in database.in_status(S.RUNNING, S.TERMINATING)
        )

    def plan(self) -> Plan:
        """Plans a pass on the scheduler of the previous pass.

        Raises:
            AssertionError: a waiting session is neither placed nor explained, or both; or the free slots of the
                scheduler differ from those of a new one, which is checked in every fourth pass.
        """
        snapshot = self.snapshot()
        scheduler, self._scheduler = self._scheduler, None
        self._passes += 1
        if scheduler is None or not scheduler.update(snapshot):
            scheduler = IncrementalScheduler(snapshot)
        elif self._passes % 4 == 0 and scheduler.free != IncrementalScheduler(snapshot).free:
            raise AssertionError("the incremental scheduler has drifted")
        plan = decide(scheduler, self._policy, now=_EPOCH + timedelta(seconds=self.clock()), rng=self._world.rng)
        self._scheduler = scheduler
        told = [p.session_id for p in plan.placements] + [s.session_id for s in plan.skips if s.message]
        if sorted(told) != sorted(s.session_id for s in snapshot.pending):
            raise AssertionError("a pending session is neither placed nor explained, or both")
        return plan

    def _schedule(self) -> None:
        if not self._database.in_status(S.PENDING):
            return
        plan = self.plan()
        changes = [self._placed(p) for p in plan.placements]
        for eviction in plan.evictions:
            event: SessionEvent = SessionDestroyRequested(reason=KernelEventReason.PREEMPTED)
            if eviction.starts_over:
                event = SessionStartOverRequested()
            self._change(eviction.session_id, event, fenced=True, tries=1)
        if not changes or not self.is_up:
            return
        self._busy.add("_schedule")

        def go_on(answer: Answer) -> None:
            self._busy.discard("_schedule")
            for change in changes if answer else ():
                if self.is_up:
                    self._run(change.effects)

        self._database.submit(changes, self._while_alive(go_on), token=self._token)

    def _placed(self, placement: Placement) -> Change:
        event = SessionScheduled(agents={k.kernel_id: k.agent_id for k in placement.kernels})
        return self._made(placement.session_id, event, {k.kernel_id: k.devices for k in placement.kernels})

    # ---- the other loops

    def _dispatch(self) -> None:
        for session in self._database.in_status(S.SCHEDULED):
            if self.is_up:
                self._create(session.session_id)

    def _terminate(self) -> None:
        for session in self._database.in_status(S.TERMINATING):
            for kernel in session.kernels:
                if kernel.status is KernelStatus.TERMINATING:
                    self._destroy(kernel.target, session.reason)

    def _restart(self) -> None:
        for session in self._database.in_status(S.RESTARTING):
            self._restart_in_place(session)

    def _restart_in_place(self, session: SessionState) -> None:
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
            self._heard[agent.agent_id] = self._monotonic()
            for kernel_id, attempt in present:
                kernel = self._database.sessions[self._database.owners[kernel_id]].kernel(kernel_id)
                if is_orphan(kernel, agent_id=agent.agent_id, attempt=attempt):
                    target = KernelTarget(kernel_id=kernel_id, agent_id=agent.agent_id, attempt=attempt)
                    self._destroy(target, KernelEventReason.NOT_FOUND_IN_MANAGER)

    def _silence(self, agent_id: AgentId) -> float:
        now = self._monotonic()
        return now - self._heard.setdefault(agent_id, now)

    def _sweep(self) -> None:
        """What the silence of agents means for their sessions."""
        for session in list(self._database.sessions.values()):
            held = {
                k.kernel_id: self._silence(k.agent_id) for k in session.kernels if k.agent_id and k.status in HOLDING
            }
            silent = frozenset(k for k, silence in held.items() if silence > LOST_S)
            gone = frozenset(k for k, silence in held.items() if silence > GIVEN_UP_S)
            event: SessionEvent | None = None
            if silent and session.status in _STARTING:
                event = SessionCreationFailed(kernel_ids=silent, reason=KernelEventReason.AGENT_LOST, retryable=True)
            elif gone:
                event = KernelsAbandoned(kernel_ids=gone)
            elif silent and session.status is S.RUNNING:
                event = SessionDegraded()
            elif not silent and session.status is S.RUNNING_DEGRADED:
                event = SessionRecovered()
            if event is not None and self.is_up:
                self._change(session.session_id, event, fenced=True, tries=1)

    # ---- reports

    def observe(self, observed: KernelObserved, acknowledge: Callable[[], None]) -> None:
        """Idempotent. It is acknowledged once it is stored."""
        before = self._database.sessions[self._database.owners[observed.kernel_id]]
        kernel = before.kernel(observed.kernel_id)
        after, _, effects = machine.step(before, observed)
        if kernel is not None and kernel.attempt != observed.attempt and (effects or after != before):
            raise AssertionError(f"{observed} is of another attempt than {kernel.attempt} and changed something")
        self._change(before.session_id, observed, then=acknowledge)

    def give_up(self, agent_id: AgentId) -> None:
        """Declare an agent dead."""
        for session in list(self._database.sessions.values()):
            lost = frozenset(k.kernel_id for k in session.kernels if k.agent_id == agent_id and k.status in HOLDING)
            if lost:
                self._change(session.session_id, KernelsAbandoned(kernel_ids=lost))

    def destroy_all(self) -> None:
        for session in list(self._database.sessions.values()):
            self.request(session.session_id, SessionDestroyRequested())
