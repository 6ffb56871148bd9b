"""Defines the interface of a plane, which authenticates clients of the gateway in the agent's process or in HAProxy."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Collection
from typing import Protocol

from ai.backend.agent.gateway.model import Route

BACKLOG = 1024
MAX_HANDSHAKES, MAX_HANDSHAKES_OF_ADDRESS = 1024, 512


class Clients(Protocol):
    """Defines the methods of the gateway that a plane calls for its clients."""

    def find_route(self, name: str | None) -> Route | None:
        """Returns the open route of this name."""

    def connect(self, route: Route, client: asyncio.Transport, tcp: socket.socket | None = None) -> None:
        """Connects an authenticated client to the service of its route, or cuts the client. ``tcp`` is the client's own
        connection where ``client`` is another one, and is taken over.
        """

    def refuse(self, reason: str) -> None:
        """Adds a refused client to the count of refusals for this reason, a word of ``REFUSALS``."""

    def cut_all(self) -> None:
        """Cuts every connection."""


class GatewayPlane(Protocol):
    """Authenticates clients by TLS 1.3, and hands over those that the authority of their route has certified.

    A client whose connection is cut gets no ``close_notify``. Whatever the plane, no byte of a client decides where it
    is connected, but the name of a route.
    """

    descriptors: int
    """How many descriptors of this process a connection takes."""

    async def start(self, listener: socket.socket, authorities: Collection[str]) -> None:
        """Accepts clients. The socket stays the caller's. Raises InvalidInput, OSError."""

    async def trust(self, authorities: Collection[str]) -> None:
        """Accepts new clients only with certificates of these authorities, in PEM. Open connections stay. Raises
        LimitExceeded.
        """

    async def stop(self) -> None:
        """Stops accepting clients, and cuts the clients that are not authenticated yet. Safe twice."""
