"""Defines the SPI of data planes, which move the bytes of circuits for the worker."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol
from uuid import UUID

import msgspec

from ai.backend.common.wire.appproxy import AppMode, Circuit, FrontendMode, InferenceUsage, ProxyProtocol
from ai.backend.core.proxy.changes import Changes
from ai.backend.core.proxy.routing import RouteKey

_BROWSER_PROTOCOLS = frozenset((ProxyProtocol.HTTP, ProxyProtocol.TCP))


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """Describes which circuits a plane can serve.

    Weights, draining, permits, last-used times and revocation are no options: every plane has them. Without
    ``counts_bytes``, observations have no bytes, nor requests of raw TCP.
    """

    protocols: frozenset[ProxyProtocol]
    frontends: frozenset[FrontendMode]
    counts_bytes: bool = True


class Applied(msgspec.Struct, frozen=True, kw_only=True):
    """Describes the result of applying changes: the version that the plane serves now, and the failed circuits.

    ``failed`` maps each circuit that the plane cannot serve to the reason.
    """

    version: int
    failed: Mapping[UUID, str] = msgspec.field(default_factory=dict)


@dataclass(slots=True)
class Counts:
    """Holds counts for metrics. The keys are bounded: codes, and reasons of the worker."""

    responses: Counter[tuple[str, int]] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    upgrades: int = 0
    retries: int = 0


class CircuitObservation(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the counts of requests, connections and bytes of a circuit since the plane began to serve the circuit.

    ``last_used`` is unix time; ``queued`` requests wait for a route; ``waits`` is how often they began to.
    """

    requests: int
    last_used: float
    open: int
    received: int
    sent: int
    in_flight: Mapping[RouteKey, int]
    queued: int = 0
    waits: int = 0


class ConnectionFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Selects open connections by circuit, user and route. A field that is None matches every connection."""

    circuit: UUID | None = None
    user: UUID | None = None
    route: RouteKey | None = None


class DataPlane(Protocol):
    """Accepts connections of clients and passes their bytes to the routes of circuits.

    The plane continues to serve while the coordinator cannot be reached.
    """

    @property
    def capabilities(self) -> Capabilities: ...

    @property
    def counts(self) -> Counts:
        """Returns the counts of requests that this process has answered or forwarded."""

    async def start(self) -> None:
        """Opens the plane's listening addresses. Raises InvalidInput if none of them can be opened."""

    async def stop(self, *, drain_s: float = 0.0) -> None:
        """Refuses new connections, waits at most ``drain_s`` seconds for open ones, and aborts the rest."""

    async def apply(self, changes: Changes) -> Applied:
        """Adds, replaces and removes circuits of the plane as the changes say.

        The changed circuits are served when the call returns. A version that is applied again changes nothing.
        """

    async def refresh(self) -> None:
        """Updates the counts of circuits that :meth:`observe` returns."""

    def observe(self) -> Mapping[UUID, CircuitObservation]:
        """Returns the observations of all circuits, at most some seconds old."""

    def take_usage(self) -> list[InferenceUsage]:
        """Returns the tokens and requests that endpoints have used since the last call of this method."""

    def set_waiting_callback(self, callback: Callable[[], None]) -> None:
        """Sets the function that is called each time requests begin to wait for a route."""

    async def cut(self, connections: ConnectionFilter) -> int:
        """Ends open connections at once and returns how many there were."""


def refusal_of(circuit: Circuit, capabilities: Capabilities) -> str | None:
    """Returns the reason, with a code of spec 03-15, for which a plane cannot serve a circuit. None: it can."""
    if circuit.app_mode is AppMode.INTERACTIVE and circuit.protocol not in _BROWSER_PROTOCOLS:
        return "E20002: Protocol not available as interactive app"
    if circuit.protocol not in capabilities.protocols:
        return f"E00001: Server misconfigured - proxy-worker: the data plane has no {circuit.protocol}"
    if circuit.frontend_mode not in capabilities.frontends:
        return f"E00001: Server misconfigured - proxy-worker: the frontend is not {circuit.frontend_mode}"
    slot = circuit.port if circuit.frontend_mode is FrontendMode.PORT else circuit.subdomain
    if slot is None:
        return "E00001: Server misconfigured - coordinator: the circuit has no slot"
    if circuit.protocol is ProxyProtocol.TCP and circuit.frontend_mode is FrontendMode.WILDCARD:
        return "E00001: Server misconfigured - coordinator: raw TCP has no host name, and needs a port"
    return None
