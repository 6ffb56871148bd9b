"""REST routes of resource groups."""

from __future__ import annotations

from ai.backend.infra.http.fields import Name
from ai.backend.infra.http.routes import Schema


class GroupsQuery(Schema, frozen=True):
    group: Name | None = None
