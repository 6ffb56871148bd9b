"""Predicts if a session would start now, before the session is created.

Also finds what excludes each agent, and which smaller requests would start.

A trial is a decision on the present snapshot in which the sessions that are tried wait at the end of the queue, so it
says what the scheduler would do, with every session, reservation, quota and policy that there is. Nothing is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from decimal import ROUND_FLOOR, Decimal
from enum import StrEnum
from itertools import islice, zip_longest

import msgspec

from ai.backend.common.ids import AgentId, SessionId
from ai.backend.common.slots import ResourceSlot
from ai.backend.common.structs import replace
from ai.backend.core.allocation.requests.amounts import replace_amounts, slots_with_amounts
from ai.backend.core.allocation.requests.attributes import attributes_of
from ai.backend.core.allocation.requests.compiled import DeviceRequest
from ai.backend.core.allocation.variants import repaired_device
from ai.backend.core.scheduling.decide import IncrementalScheduler, SchedulingCycle
from ai.backend.core.scheduling.explain import WithheldDevice, withheld_devices
from ai.backend.core.scheduling.index.agent_state import NodeClassCache
from ai.backend.core.scheduling.index.agents import AgentIndex, Demand
from ai.backend.core.scheduling.index.equivalence import EquivalenceClass, QueuedSession, apply_alternative
from ai.backend.core.scheduling.index.slot_index import ranks_in_mask
from ai.backend.core.scheduling.ordering.queue import Queue
from ai.backend.core.scheduling.plan import Plan, Skip, SkipReason
from ai.backend.core.scheduling.policy import Policy, Rng
from ai.backend.core.scheduling.snapshot import PendingSession, Snapshot

MAX_PROPOSALS = 4
MAX_WITHHELD = 16
_MIB = 2**20


class Outcome(StrEnum):
    """Names what becomes of a session: the session starts now, a change may let it start, or waiting is useless."""

    NOW = "now"
    WAITS = "waits"
    NEVER = "never"


_HOPELESS = frozenset(
    {
        SkipReason.DEPENDENCY_FAILED,
        SkipReason.NO_AGENT,
        SkipReason.NO_MATCHING_AGENT,
        SkipReason.UNSUPPORTED_RESOURCE,
        SkipReason.NO_MATCHING_DEVICE,
        SkipReason.DEVICES_FAILED,
        SkipReason.NEVER_FITS,
    }
)
"""Reasons that end only when somebody changes the cluster or the request."""


def outcome_of(reason: SkipReason | None) -> Outcome:
    """Returns the outcome for the reason why a session was not placed.

    The reason None means that the session was placed.
    """
    if reason is None:
        return Outcome.NOW
    return Outcome.NEVER if reason in _HOPELESS else Outcome.WAITS


class Exclusion(StrEnum):
    """Names why an agent cannot take a kernel now. If several reasons apply, the first in this order counts."""

    NOT_SCHEDULABLE = "not-schedulable"
    NOT_DESIGNATED = "not-designated"
    ARCHITECTURE = "architecture"
    FEATURE = "feature"
    IMAGE = "image"
    NO_SUCH_DEVICE = "no-such-device"
    TOO_SMALL = "too-small"
    RESERVED = "reserved"
    BUSY = "busy"
    SCATTERED = "scattered"


class Proposal(msgspec.Struct, frozen=True, kw_only=True):
    """Describes a smaller request by the slots of each kernel and the number of kernels.

    ``device_request``: the alternative that takes these slots, in place of all alternatives; empty if these say no
    amounts.
    """

    slots: ResourceSlot
    kernels: int
    device_request: str = ""


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the result of a trial decision for the sessions that were watched.

    Attributes:
        plan: the whole plan.
        order: every pending session as it was tried.
        skip: why the first watched session that was not placed was not; None if all were placed.
        placed: how many of the watched sessions were placed.
        startable: agents that could take the first watched session, or its largest kernel, at its turn.
        exclusions: the other agents of the resource group, each once.
        withheld: devices that the first watched session could be given if nothing were wrong with them, the first few.
        largest_free: the most of each slot that is free on one agent then.
        proposals: smaller requests that seem to fit; only a trial of one tells.
    """

    plan: Plan
    order: Sequence[SessionId]
    skip: Skip | None = None
    placed: int = 0
    startable: Sequence[AgentId] = ()
    exclusions: Mapping[Exclusion, Sequence[AgentId]] = msgspec.field(default_factory=dict)
    withheld: Sequence[WithheldDevice] = ()
    largest_free: ResourceSlot = msgspec.field(default_factory=ResourceSlot)
    proposals: Sequence[Proposal] = ()

    @property
    def outcome(self) -> Outcome:
        return outcome_of(self.skip.reason if self.skip is not None else None)

    def reserved_for(self, session_id: SessionId) -> list[AgentId]:
        """Returns the agents that the decision keeps back for a session."""
        return [agent_id for agent_id, holder_id in self.plan.reserved if holder_id == session_id]


class TrialScheduler:
    """Keeps a scheduler for repeated trials on the snapshots of one resource group."""

    def __init__(self, node_classes: NodeClassCache | None = None) -> None:
        self._node_classes = node_classes if node_classes is not None else NodeClassCache()
        self._scheduler: IncrementalScheduler | None = None
        self._trials = 0

    def run(
        self,
        snapshot: Snapshot,
        policy: Policy,
        *,
        now: datetime,
        rng: Rng,
        tried: Sequence[PendingSession] = (),
        watched: Collection[SessionId] = (),
    ) -> Trial:
        """Makes a trial decision with the sessions ``tried`` added to the queue.

        ``watched``: pending sessions that the trial is about, in place of ``tried``.

        Raises:
            InvalidInput: the policy names an unknown order or placement.
        """
        policy.check()
        extended_snapshot = replace(snapshot, pending=(*snapshot.pending, *tried)) if tried else snapshot
        scheduler, self._scheduler = self._scheduler, None  # not used again after a failure: its state is unknown
        self._trials += 1
        if scheduler is None or self._trials % _RENEW_AFTER == 0 or not scheduler.update(extended_snapshot):
            scheduler = IncrementalScheduler(extended_snapshot, self._node_classes)
        subject_ids = tuple(session.session_id for session in tried) or tuple(watched)
        cycle = _ObservedCycle(scheduler, policy, now=now, rng=rng, subject_ids=frozenset(subject_ids))
        trial = cycle.run_trial(subject_ids)
        for placement in trial.plan.placements:
            scheduler.withdraw(placement.session_id)
        self._scheduler = scheduler
        return trial


_RENEW_AFTER = 500
"""After this many trials, the scheduler is created anew, because it caches every request that it has seen."""


class _ObservedQueue:
    """Calls ``observe`` with each session before the session is tried."""

    def __init__(self, queue: Queue, observe: Callable[[QueuedSession], None]) -> None:
        self._queue = queue
        self._observe = observe

    def __iter__(self) -> Iterator[QueuedSession]:
        for queued_session in self._queue:
            self._observe(queued_session)
            yield queued_session

    def record_placement(self, queued_session: QueuedSession, choice: EquivalenceClass) -> None:
        self._queue.record_placement(queued_session, choice)


class _ObservedCycle(SchedulingCycle):
    """Records the order of the queue, and the state of the agents when the first watched session is tried."""

    def __init__(
        self,
        scheduler: IncrementalScheduler,
        policy: Policy,
        *,
        now: datetime,
        rng: Rng,
        subject_ids: frozenset[SessionId],
    ) -> None:
        super().__init__(scheduler, policy, now=now, rng=rng)
        self._snapshot = scheduler.snapshot
        self._queue = _ObservedQueue(self._queue, self._observe)
        self._subjects = subject_ids
        self._order: list[SessionId] = []
        self._subject: QueuedSession | None = None
        self._startable: list[AgentId] = []
        self._exclusions: dict[Exclusion, list[AgentId]] = {}
        self._withheld: Sequence[WithheldDevice] = ()
        self._largest_free = ResourceSlot()

    def _observe(self, queued_session: QueuedSession) -> None:
        session_id = queued_session.session.session_id
        self._order.append(session_id)
        if self._subject is None and session_id in self._subjects:
            self._subject = queued_session
            self._largest_free = _largest_free(self._index, self._reserved)
            self._startable, self._exclusions = _sort_agents(
                self._index, self._snapshot, queued_session, self._reserved
            )
            self._withheld = _withheld_devices(self._index, queued_session)

    def run_trial(self, subject_ids: Sequence[SessionId]) -> Trial:
        plan = self.run()
        placed_ids = {placement.session_id for placement in plan.placements}
        waiting_ids = [session_id for session_id in subject_ids if session_id not in placed_ids]
        skip = _skip_of(plan, waiting_ids[0]) if waiting_ids else None
        proposals: Sequence[Proposal] = ()
        if skip is not None and self._subject is not None and self._subject.session.session_id == skip.session_id:
            reserved_mask = 0
            for rank, holding_session in self._holders.items():
                if holding_session.session_id not in self._subjects:
                    reserved_mask |= 1 << rank
            proposals = tuple(islice(_propose(self._index, self._subject, reserved_mask), MAX_PROPOSALS))
        return Trial(
            plan=plan,
            order=self._order,
            skip=skip,
            placed=len(subject_ids) - len(waiting_ids),
            startable=self._startable,
            exclusions=self._exclusions,
            withheld=self._withheld,
            largest_free=self._largest_free,
            proposals=proposals,
        )


def _skip_of(plan: Plan, session_id: SessionId) -> Skip | None:
    for wait in plan.waits:
        if session_id in wait.session_ids:
            return Skip(session_id=session_id, reason=wait.reason, message=wait.message, is_final=wait.is_final)
    return None


# ---- agents


def _largest_demand(equivalence_class: EquivalenceClass) -> Demand:
    """Returns the demand on one agent: of the whole session, or of the largest kernel of a multi-node session."""
    return equivalence_class.whole or equivalence_class.parts[equivalence_class.hardest[0]]


def _largest_free(index: AgentIndex, reserved_mask: int) -> ResourceSlot:
    """Returns the largest free amount of each slot on any agent that is not reserved.

    Two slots may come from different agents.
    """
    agent_mask = index.all_agents & ~reserved_mask
    if not agent_mask:
        return ResourceSlot(dict.fromkeys(index.indexes, Decimal(0)))
    return ResourceSlot(
        {
            slot: index.agents[slot_index.richest_rank(agent_mask)].available[slot]
            for slot, slot_index in index.indexes.items()
        }
    )


def _sort_agents(
    index: AgentIndex, snapshot: Snapshot, queued_session: QueuedSession, reserved_mask: int
) -> tuple[list[AgentId], dict[Exclusion, list[AgentId]]]:
    """Returns the agents that could take the session, and the other agents grouped by the reason that excludes them."""
    session, equivalence_class = queued_session.session, queued_session.quota_class.equivalence_class
    demand = _largest_demand(equivalence_class)
    designated_mask = (
        index.designated_mask(session.designated_agents) if session.designated_agents else index.all_agents
    )
    capable_mask = index.capable_mask(demand)
    fitting_mask = demand.fitting_mask() & capable_mask
    exclusions: dict[Exclusion, list[AgentId]] = {}

    def exclude(exclusion: Exclusion, agent_mask: int) -> None:
        if agent_mask:
            exclusions.setdefault(exclusion, []).extend(agent.agent_id for agent in index.agents_in(agent_mask))

    unschedulable_ids = [view.agent_id for view in snapshot.agents if view.agent_id not in index.ranks]
    if unschedulable_ids:
        exclusions[Exclusion.NOT_SCHEDULABLE] = unschedulable_ids
    exclude(Exclusion.NOT_DESIGNATED, index.all_agents & ~designated_mask)
    for agent in index.agents_in(designated_mask & ~demand.matching_mask):
        architectures = {kernel.architecture for kernel in session.kernels} - {None}
        features = frozenset[str]().union(*(kernel.needs for kernel in session.kernels))
        if architectures and agent.view.architecture not in architectures:
            exclusion = Exclusion.ARCHITECTURE
        else:
            exclusion = Exclusion.IMAGE if features <= agent.view.features else Exclusion.FEATURE
        exclusions.setdefault(exclusion, []).append(agent.agent_id)
    exclude(Exclusion.NO_SUCH_DEVICE, demand.matching_mask & ~demand.supporting_mask)
    exclude(Exclusion.TOO_SMALL, demand.supporting_mask & ~capable_mask)
    exclude(Exclusion.RESERVED, capable_mask & reserved_mask)
    open_mask = capable_mask & ~reserved_mask
    exclude(Exclusion.BUSY, open_mask & ~(fitting_mask | demand.refused_mask))
    exclude(Exclusion.SCATTERED, open_mask & demand.refused_mask)
    return [agent.agent_id for agent in index.agents_in(open_mask & fitting_mask)], exclusions


def _withheld_devices(index: AgentIndex, queued_session: QueuedSession) -> list[WithheldDevice]:
    """Returns the devices that one of the session's alternatives selects, and that are failed, cordoned, worked on or
    tainted."""
    session, equivalence_class = queued_session.session, queued_session.quota_class.equivalence_class
    withheld: dict[WithheldDevice, None] = {}
    for alternative in equivalence_class.choices:
        request = alternative.parts[0].device_request
        matching_mask = _largest_demand(alternative).matching_mask
        if session.designated_agents:
            matching_mask &= index.designated_mask(session.designated_agents)
        agents = [
            withheld_device
            for withheld_device in index.agents_in(matching_mask)
            if withheld_device.node_class.repaired_class is not withheld_device.node_class
        ]
        for device, withheld_device in withheld_devices(
            alternative.total, agents, request.tolerated if request is not None else ()
        ):
            if request is None or request.selects(attributes_of(repaired_device(device))):
                withheld[withheld_device] = None
            if len(withheld) == MAX_WITHHELD:
                return [*withheld]
    return [*withheld]


# ---- smaller requests


def _propose(index: AgentIndex, queued_session: QueuedSession, reserved_mask: int) -> Iterator[Proposal]:
    """Yields smaller requests that seem to fit the free resources.

    If alternatives state amounts, yields one request of each alternative in turn, the preferred alternative first.
    """
    session, equivalence_class = queued_session.session, queued_session.quota_class.equivalence_class
    if not equivalence_class.has_amounts:
        yield from _propose_by(index, session, equivalence_class, reserved_mask)
        return
    alternatives_and_requests = [
        (alternative, alternative.parts[0].device_request) for alternative in equivalence_class.choices
    ]
    amount_slots = slots_with_amounts(request for _, request in alternatives_and_requests if request is not None)
    proposals_of_alternatives = [
        _with_alternative(
            _propose_by(index, apply_alternative(session, request, amount_slots), alternative, reserved_mask), request
        )
        for alternative, request in alternatives_and_requests
        if request is not None
    ]
    for proposals in zip_longest(*proposals_of_alternatives):
        yield from filter(None, proposals)


def _with_alternative(proposals: Iterable[Proposal], request: DeviceRequest) -> Iterator[Proposal]:
    for proposal in proposals:
        yield replace(proposal, device_request=replace_amounts(request, proposal.slots))


def _propose_by(
    index: AgentIndex, session: PendingSession, equivalence_class: EquivalenceClass, reserved_mask: int
) -> Iterator[Proposal]:
    """Yields smaller requests, the closest to the original first: less of one slot, then fewer kernels, then less of
    every slot. Only for sessions whose kernels are alike."""
    kernel_count, slots = len(session.kernels), session.kernels[0].slots
    demand = _largest_demand(equivalence_class)
    agent_mask = demand.supporting_mask & ~reserved_mask
    if not agent_mask or any(kernel.slots != slots for kernel in session.kernels):
        return
    kernels_of_agent = kernel_count if equivalence_class.whole is not None else 1
    seen_proposals = {Proposal(slots=slots, kernels=kernel_count)}

    def is_new(proposal: Proposal) -> bool:
        is_known = proposal in seen_proposals
        seen_proposals.add(proposal)
        return not is_known

    for slot in demand.order:
        sufficient_mask = agent_mask
        for (slot_index, amount_micro), other_slot in zip(demand.ranked, demand.order, strict=True):
            if other_slot != slot:
                sufficient_mask &= slot_index.mask_with_free(amount_micro)
        if not sufficient_mask:
            continue
        richest_agent = index.agents[index.indexes[slot].richest_rank(sufficient_mask)]
        amount = _round_down(richest_agent.available[slot] / kernels_of_agent, slots[slot])
        if 0 < amount < slots[slot]:
            proposal = Proposal(slots=ResourceSlot({**slots, slot: amount}), kernels=kernel_count)
            if is_new(proposal):
                yield proposal
    if (
        kernel_count > 1
        and (fewer_count := min(kernel_count - 1, _count_fitting_kernels(index, agent_mask, slots, kernels_of_agent)))
        > 0
    ):
        proposal = Proposal(slots=slots, kernels=fewer_count)
        if is_new(proposal):
            yield proposal
    closest_agent = index.agents[index.closest_rank(demand, agent_mask)]
    clamped_slots = ResourceSlot(
        {
            slot: min(amount, _round_down(closest_agent.available[slot] / kernels_of_agent, amount))
            for slot, amount in slots.nonzero().items()
        }
    )
    if all(clamped_slots[slot] > 0 for slot in slots.nonzero()):
        proposal = Proposal(slots=clamped_slots, kernels=kernel_count)
        if is_new(proposal):
            yield proposal


def _count_fitting_kernels(index: AgentIndex, agent_mask: int, slots: ResourceSlot, kernels_of_agent: int) -> int:
    """Returns how many kernels of these slots fit the free resources, on one agent or, if kernels may be apart, on all
    agents."""
    kernel_counts = []
    for rank in ranks_in_mask(agent_mask):
        free_slots = index.agents[rank].available
        kernel_counts.append(min(int(free_slots[slot] / amount) for slot, amount in slots.nonzero().items()))
    return max(kernel_counts, default=0) if kernels_of_agent > 1 else sum(kernel_counts)


def _round_down(amount: Decimal, requested_amount: Decimal) -> Decimal:
    """Rounds an amount down to the kind of number that was requested: mebibytes, whole numbers or hundredths."""
    if requested_amount >= _MIB and requested_amount % _MIB == 0:
        return (amount / _MIB).to_integral_value(ROUND_FLOOR) * _MIB
    if requested_amount == requested_amount.to_integral_value():
        return amount.to_integral_value(ROUND_FLOOR)
    return amount.quantize(Decimal("0.01"), ROUND_FLOOR)
