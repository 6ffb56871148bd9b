"""Implements the use cases of device claims: creation, reading, release and deletion."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from ai.backend.common.devices import DeviceHealth
from ai.backend.common.errors import Forbidden, NotFound, StaleVersion
from ai.backend.common.ids import DeviceId
from ai.backend.common.states import AgentStatus, ClaimStatus
from ai.backend.common.structs import replace
from ai.backend.core.allocation.node import devices_by_id
from ai.backend.core.lifecycle.claim import ClaimTrigger
from ai.backend.infra.bus import Bus
from ai.backend.infra.clock import Clock
from ai.backend.manager.access.caller import Caller
from ai.backend.manager.access.checks import is_permitted, scope_of
from ai.backend.manager.access.permissions import Operation, Scope
from ai.backend.manager.agents.capabilities import DeviceReader
from ai.backend.manager.agents.store import AgentStore
from ai.backend.manager.identity.service import IdentityService
from ai.backend.manager.query.model import Page
from ai.backend.manager.sessions.claims.creation import ClaimFactory, CreateClaim
from ai.backend.manager.sessions.claims.model import Claim, ClaimQuery, ClaimUser, ClaimView, advance
from ai.backend.manager.sessions.claims.store import ClaimStore
from ai.backend.manager.topics import CLAIM, SCHEDULE

_MAX_TRIES = 20


@dataclass(eq=False, repr=False, kw_only=True)
class ClaimService:
    """Creates, reads, releases and deletes device claims on behalf of callers. ``ref`` is the id of a claim, or the
    name of one of the owner's; another user's claim is NotFound unless the caller's role sees it. ``owner_access_key``
    as in IdentityService.resolve_owner.
    """

    store: ClaimStore
    factory: ClaimFactory
    agents: AgentStore
    devices: DeviceReader
    identity: IdentityService
    bus: Bus
    clock: Clock

    async def create(self, caller: Caller, request: CreateClaim) -> ClaimView:
        """Creates a claim, which holds nothing until a session uses it. Raises as :meth:`ClaimFactory.build`, and
        Conflict for a name that the owner has used in the project."""
        owner = await self.identity.resolve_owner(caller, request.owner_access_key)
        claim, max_claims = await self.factory.build(caller, owner, request)
        await self.store.insert_claim(claim, max_claims=max_claims)
        return ClaimView(claim=claim)

    async def search(
        self, caller: Caller, query: ClaimQuery, *, owner_access_key: str | None = None
    ) -> Page[ClaimView]:
        """Returns claims: users see their own, admins those of their domain, superadmins all."""
        scope = scope_of(caller, Operation.SEE_CLAIMS)
        if owner_access_key is not None:
            owner = await self.identity.resolve_owner(caller, owner_access_key)
            query = replace(query, user_id=owner.user_id)
        elif scope is Scope.DOMAIN:
            query = replace(query, domain_name=caller.domain_name)
        elif scope is not Scope.ALL:
            query = replace(query, user_id=caller.user_id)
        page = await self.store.claims(query)
        return Page(items=await self._views(page.items), total_count=page.total_count)

    async def get(self, caller: Caller, ref: str, *, owner_access_key: str | None = None) -> ClaimView:
        """Returns a claim. Raises NotFound, and InvalidInput for a name in several projects."""
        claim = await self._get_claim(caller, ref, owner_access_key, Operation.SEE_CLAIMS)
        return (await self._views([claim]))[0]

    async def release(self, caller: Caller, ref: str, *, owner_access_key: str | None = None) -> ClaimView:
        """Gives the devices of a claim back to their agent and keeps the claim. Raises Conflict while a session holds
        it.
        """
        return await self._apply_trigger(caller, ref, owner_access_key, ClaimTrigger.RELEASE_REQUESTED)

    async def delete(self, caller: Caller, ref: str, *, owner_access_key: str | None = None) -> ClaimView:
        """Deletes a claim now, or marks it for deletion while live sessions name it. A claim that is marked accepts no
        new session, and goes with the end of its last session. Returns the claim as it is then. Repeating the call is
        harmless while the claim exists.
        """
        view = await self._apply_trigger(caller, ref, owner_access_key, ClaimTrigger.DELETE_REQUESTED)
        if view.users:
            return view
        change = advance(view.claim, ClaimTrigger.NO_LONGER_NAMED, now=self.clock.now())
        if change is None:  # it is about to become idle; the loop deletes it then
            self.bus.publish(CLAIM)
            return view
        try:
            await self.store.save_claims([change])
        except StaleVersion:
            return view
        self.bus.publish(SCHEDULE)
        return ClaimView(claim=change.new)

    async def _apply_trigger(
        self, caller: Caller, ref: str, owner_access_key: str | None, trigger: ClaimTrigger
    ) -> ClaimView:
        for _ in range(_MAX_TRIES):
            claim = await self._get_claim(caller, ref, owner_access_key, Operation.CHANGE_CLAIMS)
            change = advance(
                await self._idle_if_unused(claim), trigger, now=self.clock.now(), info="released by its owner"
            )
            if change is None:
                return (await self._views([claim]))[0]
            try:
                await self.store.save_claims([replace(change, old=claim)])
            except StaleVersion:
                continue
            self.bus.publish(CLAIM)
            self.bus.publish(SCHEDULE)
            changed_claim = replace(change.new, version=claim.version + 1)
            return (await self._views([changed_claim]))[0]
        raise StaleVersion(f"the claim {ref[:64]} changes too fast")

    async def _idle_if_unused(self, claim: Claim) -> Claim:
        """Returns a claim as idle if it is stored as IN_USE but no session holds its devices any more."""
        if claim.status is ClaimStatus.IN_USE and not any(
            user.holds for user in await self.store.claim_users([claim.id])
        ):
            change = advance(claim, ClaimTrigger.LEFT, now=self.clock.now())
            return change.new if change is not None else claim
        return claim

    async def _views(self, claims: Sequence[Claim]) -> list[ClaimView]:
        users_by_claim: dict[UUID, list[ClaimUser]] = {}
        for user in await self.store.claim_users([claim.id for claim in claims]):
            users_by_claim.setdefault(user.claim_id, []).append(user)
        problems = await self._problems(claims)
        return [
            ClaimView(claim=claim, users=users_by_claim.get(claim.id, ()), problem=problems.get(claim.id, ""))
            for claim in claims
        ]

    async def _problems(self, claims: Sequence[Claim]) -> Mapping[UUID, str]:
        problems: dict[UUID, str] = {}
        for claim in claims:
            if claim.agent is None:
                continue
            agent = await self.agents.agent(claim.agent)
            if agent is None or agent.status is not AgentStatus.ALIVE:
                problems[claim.id] = "the node of its devices does not answer"
                continue
            device_of_id = devices_by_id(self.devices.plugins_of(agent))
            for device_id in sorted({device_id for devices in claim.devices.values() for device_id in devices}):
                device = device_of_id.get(DeviceId(device_id))
                if device is None:
                    problems[claim.id] = f"its node has no device {device_id} any more"
                elif device.health is not DeviceHealth.HEALTHY:
                    reason = f": {device.health_reason:.200}" if device.health_reason else ""
                    problems[claim.id] = f"its device {device_id} cannot be used{reason}"
        return problems

    async def _get_claim(self, caller: Caller, ref: str, owner_access_key: str | None, operation: Operation) -> Claim:
        owner = await self.identity.resolve_owner(caller, owner_access_key)
        try:
            query = ClaimQuery(ids=[UUID(ref)], limit=1)
        except ValueError:
            query = ClaimQuery(name=ref, user_id=owner.user_id, limit=2)
        page = await self.store.claims(query)
        claim = next(iter(page.items), None)
        if claim is None or not _is_permitted(caller, Operation.SEE_CLAIMS, claim):
            raise NotFound(f"There is no such device claim: {ref[:64]!r}.")
        if page.total_count > 1:
            raise NotFound(f"You have device claims {ref[:64]!r} in several projects; give the id of one.")
        if not _is_permitted(caller, operation, claim):
            raise Forbidden("The device claim belongs to somebody else.")
        return claim


def _is_permitted(caller: Caller, operation: Operation, claim: Claim) -> bool:
    return is_permitted(caller, operation, domain_name=claim.domain_name, is_own=claim.user_id == caller.user_id)
