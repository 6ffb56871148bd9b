"""Queries of the scheduler's explanations, queues and shares."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from ai.backend.infra.http.fields import Name
from ai.backend.infra.http.routes import Schema


class ExplainQuery(Schema, frozen=True):
    """The query of an explanation; ``count`` is the number of equal sessions that are requested at once."""

    count: Annotated[int, Meta(ge=1, le=100)] = 1


class QueueQuery(Schema, frozen=True):
    scaling_group: Name
    limit: Annotated[int, Meta(ge=1, le=100)] = 50
    offset: Annotated[int, Meta(ge=0, le=1_000_000)] = 0


class SharesQuery(Schema, frozen=True):
    scaling_group: Name
