"""Declares the stores of model services and of their use. One contract suite (tests/contract/store) runs on every
implementation.

Every method is one transaction.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Protocol
from uuid import UUID

from ai.backend.common.errors import Conflict, LimitExceeded
from ai.backend.manager.query.model import Page
from ai.backend.manager.serving.model import (
    EndpointQuery,
    EndpointToken,
    Service,
    ServingChange,
    ServingEvent,
    UseKey,
    UseQuery,
    UseReport,
    UseSums,
)


class ServingStore(Protocol):
    """Stores endpoints with their revisions, replicas and rules, their tokens and their history."""

    async def insert(self, service: Service, event: ServingEvent, *, limit: int) -> None:
        """Writes a new endpoint with all its rows, or writes nothing. Raises Conflict if its id or, among living
        endpoints of its user, its name is taken (``data.name``), and LimitExceeded for a user with ``limit`` living
        endpoints.
        """

    async def save(self, change: ServingChange) -> None:
        """Stores all parts of a change, or none. Raises StaleVersion if the endpoint was changed meanwhile."""

    async def get(self, endpoint_id: UUID) -> Service | None: ...

    async def get_by_rule(self, rule_id: UUID) -> Service | None:
        """Returns the service to which a scaling rule belongs."""
        ...

    async def live(self) -> list[Service]:
        """Returns all endpoints that are not destroyed, oldest first."""
        ...

    async def search(self, query: EndpointQuery) -> Page[Service]: ...

    async def history(self, endpoint_id: UUID, *, limit: int, offset: int = 0) -> list[ServingEvent]:
        """Returns events of an endpoint, newest first."""
        ...

    async def add_token(self, token: EndpointToken) -> None: ...

    async def tokens(self, endpoint_id: UUID, *, limit: int, offset: int = 0) -> Page[EndpointToken]:
        """Returns the tokens of an endpoint, newest first."""
        ...

    async def purge(self, *, before: datetime) -> int:
        """Deletes destroyed endpoints and events older than ``before``; returns the number of events."""
        ...


class EndpointUsageStore(Protocol):
    """Stores the hourly use of replicas by tokens. The use of an endpoint is deleted with the endpoint."""

    async def position(self, coordinator_id: str) -> int:
        """Returns the number of the last report of a coordinator that was stored, or 0 before the first."""
        ...

    async def add(
        self, coordinator_id: str, *, after_number: int, last_number: int, use: Mapping[UseKey, UseSums]
    ) -> None:
        """Adds the use in a coordinator's reports with numbers after ``after_number`` up to ``last_number``. Use of
        endpoints that are not stored is dropped. Raises StaleVersion, and adds nothing, if ``after_number`` is not the
        last report that was added.
        """

    async def usage(self, query: UseQuery) -> UseReport: ...

    async def purge_usage(self, *, before_hour: int) -> int:
        """Deletes the use in hours before ``before_hour``, and returns the number of deleted rows."""
        ...


def name_taken(name: str) -> Conflict:
    """Returns the error for a new endpoint whose name another live endpoint of its user already has."""
    return Conflict(f"You have an endpoint {name!r} already.", data={"name": "taken"})


def too_many_endpoints(limit: int) -> LimitExceeded:
    """Returns the error for an endpoint with which its user would exceed the limit of endpoints."""
    return LimitExceeded(f"A user has at most {limit} endpoints.", data={"endpoints": limit})
