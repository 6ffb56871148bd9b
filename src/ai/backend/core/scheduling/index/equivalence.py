"""Pending sessions as the scheduler reads them: equal requests are one object, so that each is answered once."""

from __future__ import annotations

from collections.abc import Collection, Hashable
from dataclasses import dataclass, field

from ai.backend.common.ids import SessionId
from ai.backend.common.states import ClusterMode
from ai.backend.core.scheduling.index.agents import AgentIndex, Demand, scarcity
from ai.backend.core.scheduling.plan import SkipReason
from ai.backend.core.scheduling.snapshot import PendingKernel, PendingSession

Verdict = tuple[SkipReason, str]
MOST_SHAPES = 4096
"""What is remembered of requests does not grow for ever."""


@dataclass(slots=True, eq=False)
class EquivalenceClass:
    """Everything about a session that decides which agents can serve it.

    Attributes:
        whole: what one agent must give; None for a multi-node session.
        parts: what is asked for each kernel.
        hardest: the kernels' places in ``parts``, those that ask for the most of the scarcest slots first.
        never: why it can never run here, however long it waits; None if it can, or while it is not judged.
        stuck: why it cannot start now; set for the rest of the pass, in which agents only lose what they have free.
        group: those that wait for that reason.
    """

    whole: Demand | None
    parts: tuple[Demand, ...]
    hardest: tuple[int, ...]
    is_judged: bool = False
    never: Verdict | None = None
    stuck: Verdict | None = None
    group: list[SessionId] | None = None

    @property
    def able_parts(self) -> tuple[Demand, ...]:
        return self.parts if self.whole is None else (self.whole,)


@dataclass(slots=True, eq=False)
class QuotaClass:
    """Sessions of one shape that count against the same quotas. ``group``: those that wait for these."""

    shape: EquivalenceClass
    quotas: tuple[str, ...]
    group: list[SessionId] | None = None


@dataclass(slots=True, eq=False)
class QueuedSession:
    """One pending session. ``is_gated``: time or other sessions decide whether it may start at all."""

    session: PendingSession
    lane: QuotaClass
    is_gated: bool


@dataclass(slots=True)
class EquivalenceCache:
    """The shapes and lanes of one fleet."""

    fleet: AgentIndex
    lanes: dict[tuple[int, tuple[str, ...]], QuotaClass] = field(default_factory=dict)
    shapes: dict[Hashable, EquivalenceClass] = field(default_factory=dict)
    _read: dict[Hashable, EquivalenceClass] = field(default_factory=dict)
    """What a session asks for, as it is written -> its shape."""
    _started_by: dict[tuple[str, str | None, frozenset[str]], Hashable] = field(default_factory=dict)
    _masks: dict[int, int] = field(default_factory=dict)

    def entry(self, session: PendingSession) -> QueuedSession:
        kernels = session.kernels
        if len(kernels) == 1:
            k = kernels[0]
            key: Hashable = k.slots, k.requirements, self._starters(k), session.designated_agents
        else:
            asked = tuple((k.slots, k.requirements, self._starters(k)) for k in kernels)
            key = asked, session.cluster_mode, session.designated_agents
        shape = self._read.get(key)
        if shape is None:
            shape = self._read[key] = self._shape(session)
        lane = self.lanes.get((id(shape), session.quotas))
        if lane is None:
            lane = self.lanes[id(shape), session.quotas] = QuotaClass(shape, session.quotas)
        return QueuedSession(session, lane, session.starts_at is not None or bool(session.dependencies))

    def tidy(self, entries: Collection[QueuedSession]) -> None:
        """Forget lanes that nobody is in, and how sessions were written, once there are many more of them than
        ``entries``, which are all that wait."""
        most = MOST_SHAPES + 2 * len(entries)
        if len(self.lanes) > most:
            self.lanes = {(id(e.lane.shape), e.lane.quotas): e.lane for e in entries}
        if len(self._read) > most:
            self._read.clear()

    def _starters(self, kernel: PendingKernel) -> Hashable:
        """Equal for kernels that the same agents can start; what no agent can start is equal to nothing else."""
        image = kernel.image, kernel.architecture, kernel.needs
        found = self._started_by.get(image)
        if found is None:
            mask = self.fleet.matching(kernel)
            found = self._started_by[image] = self._masks.setdefault(mask, len(self._masks)) if mask else image
        return found

    def _shape(self, session: PendingSession) -> EquivalenceClass:
        fleet, kernels = self.fleet, session.kernels
        scope = fleet.designated(session.designated_agents) if session.designated_agents else fleet.everyone
        parts = tuple(fleet.demand([k], scope) for k in kernels)
        together = session.cluster_mode is ClusterMode.SINGLE_NODE or len(parts) == 1
        whole = (parts[0] if len(parts) == 1 else fleet.demand(kernels, scope)) if together else None
        # Equal demands are one object, but what no agent matches is told apart by its image.
        nowhere = (
            session.designated_agents,
            *(k.image for k in kernels),
            *(k.architecture for k in kernels),
            *(k.needs for k in kernels),
        )
        key = whole, parts, None if all(p.matching for p in parts) else nowhere
        found = self.shapes.get(key)
        if found is None:
            found = self.shapes[key] = EquivalenceClass(whole, parts, _hardest_first(parts))
        return found


def _hardest_first(parts: tuple[Demand, ...]) -> tuple[int, ...]:
    slots = sorted({slot for part in parts for slot in part.total}, key=scarcity)

    def key(i: int) -> tuple[object, ...]:
        return *(-parts[i].total[slot] for slot in slots), i

    return tuple(sorted(range(len(parts)), key=key))
