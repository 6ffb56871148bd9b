"""Tracks the state of one endpoint at a worker: the next replica, waiting requests, and usage."""

from __future__ import annotations

import random
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Protocol
from uuid import UUID

import msgspec

from ai.backend.appproxy.worker.access.tokens import Grant
from ai.backend.common.wire.appproxy import AppMode, Circuit, ServingOptions
from ai.backend.core.proxy.breaker import Breaker
from ai.backend.core.proxy.routing import RouteKey
from ai.backend.core.serving.limits import Estimate, InferenceMeter, Refusal, Reservation
from ai.backend.core.serving.routing import Pick, Prompt, ReplicaPicker, RetryBudget
from ai.backend.core.serving.usage import Cost, UsageKey, UsageTracker

RELEASE_PER_REPLICA = 16
"""The number of waiting requests that a replica gets at once. Each further one follows when another one has ended."""


class ServedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Describes a request that a replica has ended. ``first_byte_s`` is None if no answer began."""

    cost: Cost
    is_error: bool
    busy_s: float
    first_byte_s: float | None


def _do_nothing() -> None: ...
def _ignore_request(_request: ServedRequest) -> None: ...


@dataclass(slots=True)
class Counters:
    """Holds the state that all endpoints of a worker share: token limits, token usage, and callbacks.

    The callbacks are called when requests begin to wait for a replica, and when requests have ended.
    """

    meter: InferenceMeter = field(default_factory=InferenceMeter)
    book: UsageTracker = field(default_factory=UsageTracker)
    dice: random.Random = field(default_factory=random.Random)
    clock: Callable[[], float] = time.monotonic
    on_waiting: Callable[[], None] = _do_nothing
    on_served: Callable[[ServedRequest], None] = _ignore_request


class WaitingRequest(Protocol):
    """Represents a request that waits for a replica."""

    size: int

    def release(self) -> None:
        """Makes the waiting request try to get a replica again, because a replica may be available now."""


class ServedEndpoint:
    """Manages the requests of one endpoint at a worker: chooses replicas, holds requests, and counts token usage.

    The object exists as long as the circuit of the endpoint is served.
    """

    def __init__(self, circuit: Circuit, counters: Counters, breaker: Breaker) -> None:
        self.circuit = circuit
        self.options = _options_of(circuit)
        self.counters = counters
        self._breaker = breaker
        self.budget = RetryBudget()
        self.picker = ReplicaPicker(kind=self.options.routing, dice=counters.dice)
        self.picker.update(circuit.route_info)
        self._held: OrderedDict[WaitingRequest, None] = OrderedDict()
        self._held_bytes = 0
        self.waits = 0

    @property
    def models(self) -> Collection[str]:
        """Returns the names of the endpoint's models, which requests to the base URL of all models contain."""
        return self.options.models or [self.options.name]

    @property
    def queued(self) -> int:
        return len(self._held)

    @property
    def has_replicas(self) -> bool:
        return not self.picker.is_empty

    def update(self, circuit: Circuit) -> None:
        """Replaces the circuit of the endpoint. Requests that wait are released if there is a replica."""
        self.circuit = circuit
        self.options = _options_of(circuit)
        self.picker.kind = self.options.routing
        self.picker.update(circuit.route_info)
        self.release()

    # Replicas

    def pick(self, prompt: Prompt, failed_routes: frozenset[RouteKey], now: float) -> Pick | None:
        """Chooses a replica for a request, and adds the request to the load of this replica.

        Returns None if there is no replica, or all have failed the request. Replicas that fail are used again where all
        others are excluded.
        """
        ejected_routes = self._breaker.ejected_keys(len(self.circuit.route_info), now)
        excluded_routes = ejected_routes | failed_routes
        pick = self.picker.pick(prompt, excluded_routes, len(excluded_routes))
        if pick is None and ejected_routes:
            pick = self.picker.pick(prompt, failed_routes, len(failed_routes))
        if pick is not None:
            self.picker.begin(pick)
        return pick

    def end_request(self, pick: Pick) -> None:
        """Ends a request at its replica. The next waiting request may then use the replica."""
        self.picker.end(pick)
        if self._held:
            self.release()

    # Waiting

    @property
    def is_releasing(self) -> bool:
        """Returns True while the endpoint still has waiting requests, which arrived before any new request."""
        return bool(self._held)

    def hold(self, request: WaitingRequest) -> bool:
        """Adds a request to the requests that wait for a replica, and returns False if no further request may wait.

        The first wait is reported at once.
        """
        serving_options = self.options
        if (
            len(self._held) >= serving_options.hold_requests
            or self._held_bytes + request.size > serving_options.hold_bytes
        ):
            return False
        self._held[request] = None
        self._held_bytes += request.size
        if len(self._held) == 1:
            self.waits += 1
            self.counters.on_waiting()
        return True

    def withdraw(self, request: WaitingRequest) -> None:
        """Removes a request from the requests that wait for a replica."""
        if request in self._held:
            del self._held[request]
            self._held_bytes -= request.size

    def release(self) -> None:
        """Releases as many waiting requests as the replicas take at once, in the order of arrival."""
        loads_by_route = self.picker.loads
        release_count = RELEASE_PER_REPLICA * len(loads_by_route) - sum(
            load.requests for load in loads_by_route.values()
        )
        while self._held and release_count > 0:
            release_count -= 1
            request = next(iter(self._held))
            self.withdraw(request)
            request.release()

    # Limits and usage

    def admit(self, grant: Grant | None, estimate: Estimate) -> Reservation | Refusal | None:
        """Admits a request within the limits of its token, or else within the endpoint's limits for each token.

        Returns None if there are no limits.
        """
        limits = (grant.limits if grant is not None else None) or self.options.limits
        if limits is None or limits.is_empty:
            return None
        return self.counters.meter.admit(self._limit_key(grant), limits, estimate, self.counters.clock())

    def _limit_key(self, grant: Grant | None) -> str:
        """Returns the key under which the token usage of a request is counted against its limits.

        The usage of a token with limits of its own is counted at all endpoints together. The usage of any other token
        is counted at this endpoint only.
        """
        if grant is not None and grant.limits is not None:
            return grant.token
        return f"{self.circuit.id} {grant.token if grant else ''}"

    def rate_limit_fields(self, grant: Grant | None) -> bytes:
        """Returns the header fields that state the remainder of the limits."""
        now, field_lines = self.counters.clock(), b""
        for name, quota in self.counters.meter.quotas(self._limit_key(grant), now):
            quota_figures = (("limit", quota.limit), ("remaining", quota.remaining), ("reset", f"{quota.reset_s:.3f}s"))
            field_lines += "".join(f"x-ratelimit-{key}-{name}: {value}\r\n" for key, value in quota_figures).encode()
        return field_lines

    def complete(self, reservation: Reservation | None, cost: Cost) -> None:
        """Replaces a reservation of tokens, made by :meth:`admit`, by the tokens that the request really used."""
        if reservation is not None:
            self.counters.meter.complete(reservation, Estimate(prompt=cost.prompt, output=cost.output))

    def count_request(self, grant: Grant | None, pick: Pick, served_request: ServedRequest) -> None:
        """Adds an ended request and its tokens to the usage of its endpoint."""
        circuit, route = self.circuit, pick.target.route
        usage_key = UsageKey(
            minute=int(time.time() // 60),
            token=grant.token if grant else "",
            user=grant.user if grant else None,
            circuit=circuit.id,
            endpoint=circuit.endpoint_id,
            project=self.options.project,
            revision=route.revision.id if route.revision else None,
            session=route.session_id,
        )
        self.counters.book.count(
            usage_key,
            served_request.cost,
            is_error=served_request.is_error,
            busy_s=served_request.busy_s,
            first_byte_s=served_request.first_byte_s,
        )
        self.counters.on_served(served_request)


def _options_of(circuit: Circuit) -> ServingOptions:
    """Returns the serving options of an endpoint's circuit, or options without waiting requests if it has none.

    Managers that do not know serving options send circuits without them.
    """
    return circuit.serving or ServingOptions(name=str(circuit.endpoint_id), hold_requests=0)


def endpoint_of(circuit: Circuit, counters: Counters, breaker: Breaker) -> ServedEndpoint | None:
    """Returns the endpoint of a circuit. Returns None for a circuit of an app."""
    return ServedEndpoint(circuit, counters, breaker) if circuit.app_mode is AppMode.INFERENCE else None


def requests_by_session(in_flight: Mapping[RouteKey, int]) -> dict[UUID, int]:
    """Returns the number of open requests by session."""
    counts_by_session: dict[UUID, int] = {}
    for route_key, request_count in in_flight.items():
        session_id = UUID(route_key.partition(" ")[0])
        counts_by_session[session_id] = counts_by_session.get(session_id, 0) + request_count
    return counts_by_session
