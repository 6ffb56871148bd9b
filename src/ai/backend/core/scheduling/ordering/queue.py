"""Orders pending sessions, larger priorities first. A new order is a function and a row of :data:`ORDERS`."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from heapq import heapify, heappop, heapreplace
from itertools import groupby
from typing import Protocol

from ai.backend.common.slots import ResourceSlot
from ai.backend.core.scheduling.index.equivalence import EquivalenceClass, QueuedSession
from ai.backend.core.scheduling.snapshot import PendingSession, Snapshot


class Queue(Protocol):
    """Iterates over pending sessions in the order in which the scheduler tries them.

    ``placed`` is called at once when the last one was placed, with the alternative of its class that was chosen.
    """

    def __iter__(self) -> Iterator[QueuedSession]: ...

    def record_placement(self, queued_session: QueuedSession, choice: EquivalenceClass) -> None: ...


Order = Callable[[Sequence[QueuedSession], Snapshot, ResourceSlot], Queue]
"""(sessions in FIFO order, snapshot with the usage of their owners, capacity of all agents) -> queue."""


def fifo_key(session: PendingSession) -> tuple[object, ...]:
    """Returns a sort key: larger priority first, then older sessions, then by id so that the order is total."""
    return -session.priority, session.enqueued_at, session.session_id.int


class StaticQueue:
    """Iterates over sessions in a fixed order."""

    def __init__(self, queued_sessions: Iterable[QueuedSession]) -> None:
        self._queued = queued_sessions

    def __iter__(self) -> Iterator[QueuedSession]:
        return iter(self._queued)

    def record_placement(self, queued_session: QueuedSession, choice: EquivalenceClass) -> None:
        """Does nothing when a session was placed, because the order is fixed."""


def fifo(queued_sessions: Sequence[QueuedSession], snapshot: Snapshot, capacity: ResourceSlot) -> Queue:
    return StaticQueue(queued_sessions)


def lifo(queued_sessions: Sequence[QueuedSession], snapshot: Snapshot, capacity: ResourceSlot) -> Queue:
    """Orders pending sessions by priority, and those of equal priority the youngest first."""
    grouped_sessions = groupby(queued_sessions, key=lambda entry: entry.session.priority)
    return StaticQueue(
        [
            queued_session
            for _, sessions_of_priority in grouped_sessions
            for queued_session in reversed(list(sessions_of_priority))
        ]
    )


class _Scope:
    """Holds a domain, project or user with its weighted dominant share of the cluster and its pending sessions."""

    __slots__ = ("children", "heap", "name", "share", "used", "waiting", "weight")

    def __init__(self, name: str, used_slots: ResourceSlot, weight: float) -> None:
        self.name = name
        self.used = {slot: float(quantity) for slot, quantity in used_slots.items()}
        self.weight = weight
        self.share = 0.0
        self.waiting: deque[QueuedSession] = deque()
        self.children: dict[str, _Scope] = {}
        self.heap: list[tuple[float, str, _Scope]] = []


class ShareQueue:
    """Yields first the session of the scope with the smallest share of the cluster, at every level of the scopes.

    ``scope_path_of`` returns the scopes of a session, such as domain, project and user. Sessions of larger priority
    come before all others, and within a user, the oldest session comes first.

    What was placed counts at once. O(depth * log(scopes)) for each session. Source: Ghodsi et al., Dominant Resource
    Fairness (NSDI'11), applied to a tree as in hierarchical fair sharing.
    """

    def __init__(
        self,
        queued_sessions: Sequence[QueuedSession],
        capacity: ResourceSlot,
        used: Mapping[str, ResourceSlot],
        weights: Mapping[str, float],
        scope_path_of: Callable[[PendingSession], tuple[str, ...]],
    ) -> None:
        self._capacity = {slot: float(quantity) for slot, quantity in capacity.items() if quantity}
        self._queued, self._used, self._weights, self._path = queued_sessions, used, weights, scope_path_of
        self._root = _Scope("", ResourceSlot(), 1.0)
        self._last: EquivalenceClass | None = None

    def _child_scope(self, parent: _Scope, name: str) -> _Scope:
        child = parent.children.get(name)
        if child is None:
            used_slots = self._used.get(name, ResourceSlot())
            child = parent.children[name] = _Scope(name, used_slots, max(self._weights.get(name, 1.0), 1e-9))
            self._update_share(child)
        return child

    def _update_share(self, scope: _Scope) -> None:
        capacity = self._capacity
        shares = [used / capacity[slot] for slot, used in scope.used.items() if slot in capacity]
        scope.share = max(shares, default=0.0) / scope.weight

    def __iter__(self) -> Iterator[QueuedSession]:
        for _, sessions_of_priority in groupby(self._queued, key=lambda entry: entry.session.priority):
            yield from self._order_sessions(sessions_of_priority)

    def _order_sessions(self, queued_sessions: Iterable[QueuedSession]) -> Iterator[QueuedSession]:
        """Yields all sessions of one priority."""
        for queued_session in queued_sessions:
            scope, name = self._root, ""
            for path_part in self._path(queued_session.session):
                name = f"{name}/{path_part}" if name else path_part
                scope = self._child_scope(scope, name)
            scope.waiting.append(queued_session)
        self._build_heaps(self._root)
        root = self._root
        while root.heap or root.waiting:
            scope_path = [root]
            while scope_path[-1].heap:
                scope_path.append(scope_path[-1].heap[0][2])
            queued_session = scope_path[-1].waiting.popleft()
            self._last = None
            yield queued_session
            self._advance_queue(scope_path, self._last)

    def _build_heaps(self, scope: _Scope) -> bool:
        """Builds the heaps of scopes with pending sessions. Returns True if any session waits."""
        scope.heap = [(child.share, child.name, child) for child in scope.children.values() if self._build_heaps(child)]
        heapify(scope.heap)
        return bool(scope.heap or scope.waiting)

    def _advance_queue(self, scope_path: Sequence[_Scope], choice: EquivalenceClass | None) -> None:
        if choice is not None:
            gained_slots = [(slot, float(slot_quantity)) for slot, slot_quantity in choice.total.items()]
            for scope in scope_path[1:]:
                for slot, quantity in gained_slots:
                    scope.used[slot] = scope.used.get(slot, 0.0) + quantity
                self._update_share(scope)
        for parent, child in zip(reversed(scope_path[:-1]), reversed(scope_path[1:]), strict=True):
            if child.heap or child.waiting:
                heapreplace(parent.heap, (child.share, child.name, child))
            else:
                heappop(parent.heap)

    def record_placement(self, queued_session: QueuedSession, choice: EquivalenceClass) -> None:
        self._last = choice


def drf(queued_sessions: Sequence[QueuedSession], snapshot: Snapshot, capacity: ResourceSlot) -> Queue:
    """Orders sessions by the dominant share that each user occupies now, the smallest share first."""
    return ShareQueue(queued_sessions, capacity, snapshot.occupied, {}, lambda s: ("/".join(s.scope),))


def fair_share(queued_sessions: Sequence[QueuedSession], snapshot: Snapshot, capacity: ResourceSlot) -> Queue:
    """Orders sessions by the weighted share of recent usage, the smallest share first: of domains, then projects, then
    users."""
    return ShareQueue(queued_sessions, capacity, snapshot.used_lately, snapshot.weights, lambda s: s.scope)


ORDERS: Mapping[str, Order] = {"fifo": fifo, "lifo": lifo, "drf": drf, "fair-share": fair_share}
