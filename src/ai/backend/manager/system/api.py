"""REST routes of system."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from ai.backend.infra.http.routes import Schema


class StatusQuery(Schema, frozen=True):
    """The published client sends a status along with the question."""

    status: str | None = None


class StatusBody(Schema, frozen=True):
    status: Literal["running", "frozen"]
    force_kill: bool = False


class AnnouncementBody(Schema, frozen=True):
    enabled: bool
    message: Annotated[str, Meta(max_length=65_536)] | None = None
