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


def removed_ids(changes: Changes, current_ids: Iterable[UUID]) -> set[UUID]:
    """Returns those of the currently served circuits that the changes remove."""
    if not changes.is_complete:
        return set(changes.removed)
    kept_ids = {circuit.id for circuit in changes.circuits}
    return {circuit_id for circuit_id in current_ids if circuit_id not in kept_ids}


class Effects(msgspec.Struct, frozen=True, kw_only=True):
    """Describes the effects of a circuit's change on its open connections.

    ``is_revoked``: every open connection is cut at once. ``drained`` routes get nothing new, and are cut after
    ``drain_s``.
    """

    is_revoked: bool = False
    drained: frozenset[RouteKey] = msgspec.field(default_factory=frozenset)
    drain_s: float = 0.0


def effects_of(old_circuit: Circuit | None, new_circuit: Circuit | None) -> Effects:
    """Decides the effects of a circuit's change on its connections. None stands for a circuit that does not exist.

    A step that takes an access away cuts what is open: the connections were admitted by rules that hold no longer.
    """
    if old_circuit is None:
        return Effects()
    if new_circuit is None or _restricts_access(old_circuit, new_circuit):
        return Effects(is_revoked=True)
    kept_keys = {key_of(route) for route in new_circuit.route_info}
    drained_keys = frozenset(key for route in old_circuit.route_info if (key := key_of(route)) not in kept_keys)
    return Effects(drained=drained_keys, drain_s=DRAIN_S[new_circuit.app_mode] if drained_keys else 0.0)


def _restricts_access(old_circuit: Circuit, new_circuit: Circuit) -> bool:
    identities = [
        (
            circuit.protocol,
            circuit.app_mode,
            circuit.frontend_mode,
            circuit.port,
            circuit.subdomain,
            circuit.user_id,
            circuit.endpoint_id,
        )
        for circuit in (old_circuit, new_circuit)
    ]
    if identities[0] != identities[1]:
        return True
    if old_circuit.open_to_public and not new_circuit.open_to_public:
        return True
    return (
        new_circuit.allowed_client_ips is not None and new_circuit.allowed_client_ips != old_circuit.allowed_client_ips
    )
