"""In which order pending sessions are tried. A new order is a function and a row of :data:`ORDERS`.

Larger priorities come first in every order; an order decides among equal ones.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from heapq import heapify, heappop, heapreplace
from itertools import groupby
from typing import Protocol

from ai.backend.common.slots import ResourceSlot
from ai.backend.core.scheduling.index.equivalence import QueuedSession
from ai.backend.core.scheduling.snapshot import PendingSession, Snapshot


class Queue(Protocol):
    """Sessions in the order in which they are tried. ``placed`` tells it at once what has become of the last one."""

    def __iter__(self) -> Iterator[QueuedSession]: ...

    def placed(self, entry: QueuedSession) -> None: ...


Order = Callable[[Sequence[QueuedSession], Snapshot, ResourceSlot], Queue]
"""(sessions in the order of fifo, what is known of their owners, what all agents have together) -> queue."""


def fifo_key(session: PendingSession) -> tuple[object, ...]:
    """Larger priority first, then older, then by id so that the order is total."""
    return -session.priority, session.enqueued_at, session.session_id.int


class Fixed:
    """An order that nothing changes."""

    def __init__(self, entries: Iterable[QueuedSession]) -> None:
        self._entries = entries

    def __iter__(self) -> Iterator[QueuedSession]:
        return iter(self._entries)

    def placed(self, entry: QueuedSession) -> None:
        """It does not matter."""


def fifo(entries: Sequence[QueuedSession], snapshot: Snapshot, capacity: ResourceSlot) -> Queue:
    return Fixed(entries)


def lifo(entries: Sequence[QueuedSession], snapshot: Snapshot, capacity: ResourceSlot) -> Queue:
    """The youngest first."""
    by_priority = groupby(entries, key=lambda e: e.session.priority)
    return Fixed([entry for _, level in by_priority for entry in reversed(list(level))])


class _Scope:
    """A domain, project or user: what it uses, relative to its weight, and what of it waits.

    ``share``: the largest fraction of any slot of the cluster (its dominant share), over its weight.
    """

    __slots__ = ("children", "heap", "name", "share", "used", "waiting", "weight")

    def __init__(self, name: str, used: ResourceSlot, weight: float) -> None:
        self.name = name
        self.used = {slot: float(q) for slot, q in used.items()}
        self.weight = weight
        self.share = 0.0
        self.waiting: deque[QueuedSession] = deque()
        self.children: dict[str, _Scope] = {}
        self.heap: list[tuple[float, str, _Scope]] = []


class Shares:
    """Whoever has the least share comes next, at every level of the hierarchy; within a user the oldest session.

    What was placed counts at once. O(depth * log(scopes)) for each session. Source: Ghodsi et al., Dominant Resource
    Fairness (NSDI'11), applied to a tree as in hierarchical fair sharing.
    """

    def __init__(
        self,
        entries: Sequence[QueuedSession],
        capacity: ResourceSlot,
        used: Mapping[str, ResourceSlot],
        weights: Mapping[str, float],
        path: Callable[[PendingSession], tuple[str, ...]],
    ) -> None:
        self._capacity = {slot: float(q) for slot, q in capacity.items() if q}
        self._used, self._weights, self._path = used, weights, path
        self._entries = entries
        self._root = _Scope("", ResourceSlot(), 1.0)
        self._last: QueuedSession | None = None

    def _child(self, parent: _Scope, name: str) -> _Scope:
        found = parent.children.get(name)
        if found is None:
            used = self._used.get(name, ResourceSlot())
            found = parent.children[name] = _Scope(name, used, max(self._weights.get(name, 1.0), 1e-9))
            self._weigh(found)
        return found

    def _weigh(self, scope: _Scope) -> None:
        capacity = self._capacity
        shares = [used / capacity[slot] for slot, used in scope.used.items() if slot in capacity]
        scope.share = max(shares, default=0.0) / scope.weight

    def __iter__(self) -> Iterator[QueuedSession]:
        for _, level in groupby(self._entries, key=lambda e: e.session.priority):
            yield from self._level(level)

    def _level(self, entries: Iterable[QueuedSession]) -> Iterator[QueuedSession]:
        """All sessions of one priority."""
        for entry in entries:
            scope, name = self._root, ""
            for part in self._path(entry.session):
                name = f"{name}/{part}" if name else part
                scope = self._child(scope, name)
            scope.waiting.append(entry)
        self._fill(self._root)
        root = self._root
        while root.heap or root.waiting:
            way = [root]
            while way[-1].heap:
                way.append(way[-1].heap[0][2])
            entry = way[-1].waiting.popleft()
            self._last = None
            yield entry
            self._settle(way, entry if self._last is entry else None)

    def _fill(self, scope: _Scope) -> bool:
        """Put the children that wait, or whose children do, in order; whether there is anything."""
        scope.heap = [(child.share, child.name, child) for child in scope.children.values() if self._fill(child)]
        heapify(scope.heap)
        return bool(scope.heap or scope.waiting)

    def _settle(self, way: Sequence[_Scope], placed: QueuedSession | None) -> None:
        if placed is not None:
            gained = [(slot, float(q)) for slot, q in placed.session.total.items()]
            for scope in way[1:]:
                for slot, quantity in gained:
                    scope.used[slot] = scope.used.get(slot, 0.0) + quantity
                self._weigh(scope)
        for parent, child in zip(reversed(way[:-1]), reversed(way[1:]), strict=True):
            if child.heap or child.waiting:
                heapreplace(parent.heap, (child.share, child.name, child))
            else:
                heappop(parent.heap)

    def placed(self, entry: QueuedSession) -> None:
        self._last = entry


def drf(entries: Sequence[QueuedSession], snapshot: Snapshot, capacity: ResourceSlot) -> Queue:
    """The user with the least dominant share of what is occupied now."""
    return Shares(entries, capacity, snapshot.occupied, {}, lambda s: ("/".join(s.scope),))


def fair_share(entries: Sequence[QueuedSession], snapshot: Snapshot, capacity: ResourceSlot) -> Queue:
    """Domain, then project, then user with the least share of what was used lately, relative to its weight."""
    return Shares(entries, capacity, snapshot.used_lately, snapshot.weights, lambda s: s.scope)


ORDERS: Mapping[str, Order] = {"fifo": fifo, "lifo": lifo, "drf": drf, "fair-share": fair_share}
