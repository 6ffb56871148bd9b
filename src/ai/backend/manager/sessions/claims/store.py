"""Declares the store of device claims. Every method is one transaction."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol
from uuid import UUID

from ai.backend.common.ids import AgentId
from ai.backend.manager.query.model import Page
from ai.backend.manager.sessions.claims.model import Claim, ClaimChange, ClaimQuery, ClaimUser


class ClaimStore(Protocol):
    """Stores device claims beside sessions, whose changes may change claims as well."""

    async def insert_claim(self, claim: Claim, *, max_claims: int | None) -> None:
        """Writes a new claim. Raises Conflict for a name that its owner has used in the project, and LimitExceeded if
        its access key has as many claims as it may have."""

    async def save_claims(self, changes: Sequence[ClaimChange]) -> None:
        """Applies all changes or none, with the slots of their agents. Raises StaleVersion if a claim was changed
        meanwhile, or if a live session names one that is deleted."""

    async def claims(self, query: ClaimQuery) -> Page[Claim]: ...

    async def claims_by_id(self, claim_ids: Collection[UUID]) -> list[Claim]: ...

    async def claims_on(self, agent_id: AgentId) -> list[Claim]:
        """Returns the claims that hold devices of an agent."""
        ...

    async def claim_users(self, claim_ids: Collection[UUID]) -> list[ClaimUser]:
        """Returns the live sessions that name the claims, the oldest first."""
        ...
