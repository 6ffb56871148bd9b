"""Defines the values of the service gateway."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Protocol

import msgspec
from cryptography.x509 import Certificate

REFUSALS = ("handshake", "route", "authority", "limit", "service")
"""The words for the reasons of refused connections. The reasons are: no TLS or no valid certificate; an unknown route;
a certificate of another authority; too many connections; the service cannot be reached.
"""


class RouteRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Stores the durable part of a route. ``direct_port`` is its port of the host where addresses are direct."""

    kernel_id: str
    port: int
    authority: str
    direct_port: int | None = None


class OpenConnection(Protocol):
    """Represents a connection of a client to a route."""

    last_used: float

    def abort(self) -> None:
        """Cuts both sides at once. Safe twice."""


@dataclass(slots=True, eq=False)
class Route:
    """Describes a way to a port of a kernel, for clients with a certificate of ``authority``."""

    name: str
    record: RouteRecord
    authority: Certificate
    connections: set[OpenConnection] = field(default_factory=set)
    listener: asyncio.Server | None = None
    is_open: bool = True


@dataclass(slots=True)
class Traffic:
    """Counts bytes and connections since the agent's start."""

    accepted: int = 0
    to_service: int = 0
    to_client: int = 0
    refused: dict[str, int] = field(default_factory=lambda: dict.fromkeys(REFUSALS, 0))
