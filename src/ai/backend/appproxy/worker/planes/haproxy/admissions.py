"""Remembers which cookies the gate has admitted to which circuit, so that HAProxy may pass them on by itself."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from uuid import UUID

from ai.backend.appproxy.worker.access.gate import Admission, Gate, Request
from ai.backend.appproxy.worker.access.replies import Response
from ai.backend.common.wire.appproxy import AppMode, Circuit
from ai.backend.core.proxy.headers import values_of

ADMISSION_S = 3600.0
"""Seconds until a cookie comes to the gate again: less than half of a permit's life, before which none is renewed."""
_MAX_ADMISSIONS = 50_000


def admission_key(cookie: str, circuit: UUID) -> str:
    """Returns the key of HAProxy's map for a Cookie field as the client sent it."""
    return f"{hashlib.sha256(cookie.encode('latin-1')).hexdigest()}/{circuit.hex}"


class ReportingGate(Gate):
    """A gate that reports the cookies that it admits to circuits with permits."""

    on_admitted: Callable[[UUID, str], None] = staticmethod(lambda circuit, key: None)

    @classmethod
    def like(cls, gate: Gate, on_admitted: Callable[[UUID, str], None]) -> ReportingGate:
        """Returns a gate with the rules of another one."""
        reporting = cls.__new__(cls)
        reporting.__dict__.update(gate.__dict__)
        reporting.on_admitted = on_admitted
        return reporting

    def check(self, circuit: Circuit, request: Request, peer: str) -> Admission | Response:
        verdict = super().check(circuit, request, peer)
        if (
            isinstance(verdict, Admission)
            and circuit.app_mode is AppMode.INTERACTIVE
            and not circuit.open_to_public
            and verdict.set_cookie is None
            and len(lines := values_of(request.headers, b"cookie")) == 1
        ):
            self.on_admitted(circuit.id, admission_key(lines[0], circuit.id))
        return verdict


class Admissions:
    """Admitted cookies with the time at which each has to come to the gate again."""

    def __init__(self) -> None:
        self._expiries: dict[str, tuple[UUID, float]] = {}

    def add(self, circuit: UUID, key: str, now: float) -> bool:
        """Returns False if the cookie was there already, or too many are."""
        if key in self._expiries or len(self._expiries) >= _MAX_ADMISSIONS:
            return False
        self._expiries[key] = (circuit, now + ADMISSION_S)
        return True

    def take(self, *, circuit: UUID | None = None, now: float | None = None) -> list[str]:
        """Removes the cookies of a circuit, or those whose time is over, and returns their keys."""
        keys = [
            key
            for key, (owner, expiry) in self._expiries.items()
            if owner == circuit or (now is not None and expiry <= now)
        ]
        for key in keys:
            del self._expiries[key]
        return keys

    @property
    def all(self) -> Mapping[str, tuple[UUID, float]]:
        return self._expiries
