"""Settings of GraphQL queries."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from ai.backend.infra.settings import Settings


class GraphQLSettings(Settings):
    """Limits of a GraphQL query."""

    max_depth: int = Field(16, ge=4, description="How deep selections may be nested.")
    max_cost: int = Field(
        50_000, ge=100, description="Fields that a query may ask for, each times the page sizes of the lists around it."
    )
    introspection: Literal["everybody", "superadmins", "nobody"] = Field(
        "superadmins", description="To whom the schema is told: everybody, superadmins or nobody."
    )
