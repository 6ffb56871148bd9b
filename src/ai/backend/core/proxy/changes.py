"""Decides which open connections a changed circuit cuts, and which routes drain."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from uuid import UUID

import msgspec

from ai.backend.common.wire.appproxy import AppMode, Change, Circuit, State
from ai.backend.core.proxy.routing import RouteKey, key_of

DRAIN_S: Mapping[AppMode, float] = {AppMode.INTERACTIVE: 30.0, AppMode.INFERENCE: 600.0}
"""The seconds for which requests of a removed route may continue."""


class Changes(msgspec.Struct, frozen=True, kw_only=True):
    """Describes changes of circuits that a data plane applies at once.

    ``is_complete``: circuits that are not in them are removed as well.
    """

    version: int
    circuits: tuple[Circuit, ...] = ()
    removed: tuple[UUID, ...] = ()
    is_complete: bool = False


def changes_of(frame: State | Change) -> Changes:
    """Converts a frame of the worker link into changes of circuits."""
    if isinstance(frame, State):
        return Changes(version=frame.version, circuits=tuple(frame.circuits), is_complete=True)
    return Changes(version=frame.version, circuits=tuple(frame.set), removed=tuple(frame.removed))


def removed_ids(changes: Changes, current: Iterable[UUID]) -> set[UUID]:
    """Returns those of the currently served circuits that the changes remove."""
    if not changes.is_complete:
        return set(changes.removed)
    kept = {circuit.id for circuit in changes.circuits}
    return {circuit_id for circuit_id in current if circuit_id not in kept}


class Effects(msgspec.Struct, frozen=True, kw_only=True):
    """Describes the effects of a circuit's change on its open connections.

    ``is_revoked``: every open connection is cut at once. ``drained`` routes get nothing new, and are cut after
    ``drain_s``.
    """

    is_revoked: bool = False
    drained: frozenset[RouteKey] = msgspec.field(default_factory=frozenset)
    drain_s: float = 0.0


def effects_of(before: Circuit | None, after: Circuit | None) -> Effects:
    """Decides the effects of a circuit's change on its connections. None stands for a circuit that does not exist.

    A step that takes an access away cuts what is open: the connections were admitted by rules that hold no longer.
    """
    if before is None:
        return Effects()
    if after is None or _narrows(before, after):
        return Effects(is_revoked=True)
    kept = {key_of(route) for route in after.route_info}
    drained = frozenset(key for route in before.route_info if (key := key_of(route)) not in kept)
    return Effects(drained=drained, drain_s=DRAIN_S[after.app_mode] if drained else 0.0)


def _narrows(before: Circuit, after: Circuit) -> bool:
    identity = [
        (c.protocol, c.app_mode, c.frontend_mode, c.port, c.subdomain, c.user_id, c.endpoint_id)
        for c in (before, after)
    ]
    if identity[0] != identity[1]:
        return True
    if before.open_to_public and not after.open_to_public:
        return True
    return after.allowed_client_ips is not None and after.allowed_client_ips != before.allowed_client_ips
