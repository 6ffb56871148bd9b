"""Stores device claims in memory, with the semantics of the SQL store."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Protocol
from uuid import UUID

from ai.backend.common.errors import StaleVersion
from ai.backend.common.ids import AgentId
from ai.backend.common.slots import ResourceSlot
from ai.backend.common.states import ClaimStatus
from ai.backend.common.structs import replace
from ai.backend.manager.agents.model import Agent
from ai.backend.manager.leadership.memory import check_fence
from ai.backend.manager.query.model import Page
from ai.backend.manager.sessions.claims.model import (
    Claim,
    ClaimChange,
    ClaimQuery,
    ClaimUser,
    claim_deltas,
    claim_exists,
    too_many_claims,
)
from ai.backend.manager.sessions.model import Session


class ClaimMemory(Protocol):
    """Holds the data that the claim store shares with the other stores in memory."""

    claims: dict[UUID, Claim]

    @property
    def agents(self) -> dict[AgentId, Agent]: ...


class MemoryClaims(ABC):
    """Implements :class:`ai.backend.manager.sessions.claims.store.ClaimStore`."""

    _memory: ClaimMemory

    @property
    @abstractmethod
    def _live(self) -> list[Session]:
        """Returns the sessions that have not ended."""

    @abstractmethod
    def _agents_with_deltas(self, deltas: Mapping[AgentId, ResourceSlot]) -> dict[AgentId, Agent]:
        """Returns the agents of ``deltas`` after the change of their occupied slots, by agent id."""

    def check_claims(self, changes: Iterable[ClaimChange]) -> None:
        """Raises StaleVersion if a claim was changed meanwhile, or if a live session names a claim that is to be
        deleted.
        """
        for change in changes:
            stored_claim = self._memory.claims.get(change.old.id)
            if stored_claim is None or stored_claim.version != change.old.version:
                raise StaleVersion(f"claim {change.old.id} is not at version {change.old.version} any more")
            is_named = any(session.claim_id == change.old.id for session in self._live)
            if change.new.status is ClaimStatus.DELETED and is_named:
                raise StaleVersion(f"a session names the claim {change.old.id}")

    def put_claims(self, changes: Iterable[ClaimChange]) -> None:
        """Stores changes of claims that :meth:`check_claims` has accepted."""
        for change in changes:
            if change.new.status is ClaimStatus.DELETED:
                del self._memory.claims[change.old.id]
            else:
                self._memory.claims[change.old.id] = replace(change.new, version=change.old.version + 1)

    async def insert_claim(self, claim: Claim, *, max_claims: int | None) -> None:
        check_fence()
        name_key = claim.user_id, claim.group_id, claim.name
        stored_claims = list(self._memory.claims.values())
        if any(
            (stored_claim.user_id, stored_claim.group_id, stored_claim.name) == name_key
            for stored_claim in stored_claims
        ):
            raise claim_exists(claim.name)
        if (
            max_claims is not None
            and sum(stored_claim.access_key == claim.access_key for stored_claim in stored_claims) >= max_claims
        ):
            raise too_many_claims(max_claims)
        self._memory.claims[claim.id] = claim

    async def save_claims(self, changes: Sequence[ClaimChange]) -> None:
        check_fence()
        self.check_claims(changes)
        moved_agents = self._agents_with_deltas(claim_deltas(changes))
        self.put_claims(changes)
        self._memory.agents.update(moved_agents)

    async def claims(self, query: ClaimQuery) -> Page[Claim]:
        matching_claims = [
            claim
            for claim in self._memory.claims.values()
            if query.user_id in (None, claim.user_id)
            and query.group_id in (None, claim.group_id)
            and query.domain_name in (None, claim.domain_name)
            and query.name in (None, claim.name)
            and (query.ids is None or claim.id in query.ids)
            and (query.agents is None or claim.agent in query.agents)
            and (claim.agent is not None or not query.is_held)
        ]
        matching_claims.sort(key=lambda claim: (-claim.created_at.timestamp(), str(claim.id)))
        return Page(items=matching_claims[query.offset : query.offset + query.limit], total_count=len(matching_claims))

    async def claims_by_id(self, claim_ids: Collection[UUID]) -> list[Claim]:
        return [claim for claim_id in claim_ids if (claim := self._memory.claims.get(claim_id)) is not None]

    async def claims_on(self, agent_id: AgentId) -> list[Claim]:
        return [claim for claim in self._memory.claims.values() if claim.agent == agent_id]

    async def claim_users(self, claim_ids: Collection[UUID]) -> list[ClaimUser]:
        return [
            ClaimUser(claim_id=session.claim_id, session_id=session.id, name=session.name, status=session.status)
            for session in self._live
            if session.claim_id is not None and session.claim_id in claim_ids
        ]
