"""Records the cookies that the gate has accepted for each circuit, so that HAProxy can pass their requests alone.

HAProxy does not ask the gate again about such a cookie until the cookie expires here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from uuid import UUID

from ai.backend.appproxy.worker.access.gate import Admission, Gate, Request
from ai.backend.appproxy.worker.access.replies import Response
from ai.backend.common.wire.appproxy import AppMode, Circuit
from ai.backend.core.proxy.headers import values_of

ADMISSION_S = 3600.0
"""Seconds until a cookie comes to the gate again: less than half of a permit's life, before which none is renewed."""
MAX_OF_CIRCUIT = 256
"""Cookies of one circuit: an app that changes its own with each reply uses up no place of others."""
_MAX_ADMISSIONS = 50_000


def admission_key(cookie: str, circuit: UUID) -> str:
    """Returns the key in HAProxy's map for a Cookie field as the client sent it."""
    return f"{hashlib.sha256(cookie.encode('latin-1')).hexdigest()}/{circuit.hex}"


class ReportingGate(Gate):
    """Checks requests as a :class:`Gate`, and calls ``on_admitted`` with each cookie that admitted a browser."""

    on_admitted: Callable[[UUID, str], None] = staticmethod(lambda circuit, key: None)

    @classmethod
    def from_gate(cls, gate: Gate, on_admitted: Callable[[UUID, str], None]) -> ReportingGate:
        """Returns a reporting gate with the rules of another gate."""
        reporting_gate = cls.__new__(cls)
        reporting_gate.__dict__.update(gate.__dict__)
        reporting_gate.on_admitted = on_admitted
        return reporting_gate

    def check(self, circuit: Circuit, request: Request, peer: str) -> Admission | Response:
        verdict = super().check(circuit, request, peer)
        if (
            isinstance(verdict, Admission)
            and circuit.app_mode is AppMode.INTERACTIVE
            and not circuit.open_to_public
            and verdict.set_cookie is None
            and len(cookie_fields := values_of(request.headers, b"cookie")) == 1
        ):
            self.on_admitted(circuit.id, admission_key(cookie_fields[0], circuit.id))
        return verdict


class Admissions:
    """Holds admitted cookies with the time at which each cookie must be checked by the gate again."""

    def __init__(self) -> None:
        self._expiries: dict[str, tuple[UUID, float]] = {}
        self._of_circuits: dict[UUID, dict[str, None]] = {}

    def add(self, circuit: UUID, key: str, now: float) -> list[str] | None:
        """Adds a cookie, and returns the keys of the circuit's oldest cookies that were removed for it.

        Returns None if the cookie was there already, or if there are too many.
        """
        circuit_keys = self._of_circuits.get(circuit, {})
        removed_keys = (
            list(circuit_keys)[: len(circuit_keys) + 1 - MAX_OF_CIRCUIT] if len(circuit_keys) >= MAX_OF_CIRCUIT else []
        )
        if key in self._expiries or len(self._expiries) - len(removed_keys) >= _MAX_ADMISSIONS:
            return None
        self._remove(removed_keys)
        self._expiries[key] = (circuit, now + ADMISSION_S)
        self._of_circuits.setdefault(circuit, {})[key] = None
        return removed_keys

    def take_keys(self, *, circuit: UUID | None = None, now: float | None = None) -> list[str]:
        """Removes the cookies of a circuit and the cookies that have expired by ``now``, and returns their keys.

        Without ``circuit`` or without ``now`` the respective cookies stay.
        """
        keys = list(self._of_circuits.get(circuit, ())) if circuit is not None else []
        if now is not None:
            keys += [key for key, (_, expiry) in self._expiries.items() if expiry <= now]
        self._remove(keys)
        return keys

    def _remove(self, keys: Iterable[str]) -> None:
        for key in keys:
            circuit, _ = self._expiries.pop(key)
            circuit_keys = self._of_circuits[circuit]
            del circuit_keys[key]
            if not circuit_keys:
                del self._of_circuits[circuit]

    @property
    def expiries_by_key(self) -> Mapping[str, tuple[UUID, float]]:
        return self._expiries
