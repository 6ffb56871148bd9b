"""Ends allocations of device claims that are due to end, and deletes unwanted claims that no session names."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from ai.backend.common.errors import BackendError, StaleVersion
from ai.backend.common.ids import AgentId, DeviceId
from ai.backend.common.states import AgentStatus, ClaimStatus
from ai.backend.common.structs import replace
from ai.backend.core.allocation.node import devices_by_id
from ai.backend.core.lifecycle.claim import ClaimTrigger
from ai.backend.infra.bus import Bus
from ai.backend.infra.clock import Clock
from ai.backend.infra.loop import PeriodicLoop
from ai.backend.manager.agents.capabilities import DeviceReader
from ai.backend.manager.agents.model import Agent
from ai.backend.manager.agents.settings import AgentSettings
from ai.backend.manager.agents.store import AgentStore
from ai.backend.manager.identity.store import IdentityStore
from ai.backend.manager.sessions.claims.model import Claim, ClaimChange, ClaimQuery, ClaimUser, advance
from ai.backend.manager.sessions.claims.store import ClaimStore
from ai.backend.manager.topics import SCHEDULE
from ai.backend.plugin.crash_points import crash_point

log = logging.getLogger(__name__)
_MAX_CLAIMS = 1_000_000
_OWNERS_EVERY_S = 60.0


@dataclass(eq=False, repr=False)
class ClaimLoop(PeriodicLoop):
    """Ends the allocation of a device claim if its sessions, idle time, owner or agent require the end.
    Level-triggered: what a crash leaves undone the next round does.
    """

    period_s = 5.0

    store: ClaimStore
    agents: AgentStore
    identities: IdentityStore
    devices: DeviceReader
    bus: Bus
    clock: Clock
    agent_settings: AgentSettings
    _missing_since: dict[UUID, float] = field(default_factory=dict, init=False)
    _owners_at: float = field(default=float("-inf"), init=False)

    async def once(self) -> None:
        claims = (await self.store.claims(ClaimQuery(limit=_MAX_CLAIMS))).items
        if not claims:
            self._missing_since.clear()
            return
        users_by_claim: dict[UUID, list[ClaimUser]] = {}
        for user in await self.store.claim_users([claim.id for claim in claims]):
            users_by_claim.setdefault(user.claim_id, []).append(user)
        agents = {agent.id: agent for agent in await self.agents.agents()}
        orphan_ids, locked_out_ids = await self._ids_without_owner(claims)
        held_ids = {claim.id for claim in claims if claim.status.holds_devices}
        self._missing_since = {
            claim_id: missing_since for claim_id, missing_since in self._missing_since.items() if claim_id in held_ids
        }
        for claim in claims:
            change = self._due_change(
                claim,
                users_by_claim.get(claim.id, ()),
                agents,
                is_orphan=claim.id in orphan_ids,
                is_locked_out=claim.id in locked_out_ids,
            )
            if change is None:
                continue
            crash_point("before-commit-claim")
            try:
                await self.store.save_claims([change])
            except StaleVersion:
                self.wake()  # a session was placed or created meanwhile
                continue
            except BackendError as e:
                log.warning("the claim %s stays %s: %s", claim.id, claim.status, e)
                continue
            crash_point("after-commit-claim")
            log.info("claim %s: %s -> %s", claim.id, claim.status, change.new.status)
            if claim.status.holds_devices and not change.new.status.holds_devices:
                self.bus.publish(SCHEDULE)

    def _due_change(
        self,
        claim: Claim,
        users: Sequence[ClaimUser],
        agents: Mapping[AgentId, Agent],
        *,
        is_orphan: bool,
        is_locked_out: bool = False,
    ) -> ClaimChange | None:
        """Returns the change of a claim that is due now because of its sessions, owner or agent, or None."""
        new_claim = claim
        if is_orphan and not claim.is_deleting:
            new_claim = self._advance(new_claim, ClaimTrigger.DELETE_REQUESTED)
        if any(user.holds for user in users):
            return ClaimChange(old=claim, new=new_claim) if new_claim is not claim else None
        new_claim = self._advance(new_claim, ClaimTrigger.LEFT, "no session ran with its devices")
        if new_claim.status is ClaimStatus.IDLE:
            due_end = self._end_if_due(new_claim, agents)
            if is_locked_out:
                due_end = ClaimTrigger.IDLE_TIME_OVER, "the keypair that it belongs to is not active"
            new_claim = self._advance(new_claim, *due_end) if due_end is not None else new_claim
        if not users:
            new_claim = self._advance(new_claim, ClaimTrigger.NO_LONGER_NAMED)
        return ClaimChange(old=claim, new=replace(new_claim, version=claim.version)) if new_claim is not claim else None

    def _advance(self, claim: Claim, trigger: ClaimTrigger, info: str | None = None) -> Claim:
        change = advance(claim, trigger, now=self.clock.now(), info=info)
        return change.new if change is not None else claim

    def _end_if_due(self, claim: Claim, agents: Mapping[AgentId, Agent]) -> tuple[ClaimTrigger, str] | None:
        """Returns why an idle claim must give its devices back now, as a trigger and a text, or None.

        None means that the claim keeps its devices.
        """
        assert claim.agent is not None
        assert claim.idle_since is not None
        now, agent = self.clock.now(), agents.get(claim.agent)
        idle_s = (now - claim.idle_since).total_seconds()
        if claim.idle_timeout_s is not None and idle_s >= claim.idle_timeout_s:
            return ClaimTrigger.IDLE_TIME_OVER, f"no session used it for {claim.idle_timeout_s:g} seconds"
        if agent is None:
            return ClaimTrigger.AGENT_LOST, f"its agent {claim.agent} was removed"
        if agent.status in (AgentStatus.LOST, AgentStatus.TERMINATED):
            self._missing_since.pop(claim.id, None)
            is_given_up = (
                agent.lost_at is not None and (now - agent.lost_at).total_seconds() > self.agent_settings.abandon_s
            )
            return (ClaimTrigger.AGENT_LOST, f"its agent {claim.agent} was lost") if is_given_up else None
        if gone_device := self._find_gone_device(claim, agent):
            return ClaimTrigger.DEVICE_GONE, f"its agent {claim.agent} has no device {gone_device} any more"
        return None

    def _find_gone_device(self, claim: Claim, agent: Agent) -> str:
        """Returns a device of a claim that counts as removed, since its agent has not listed the device for long; else
        "". Plugins may list their devices some time after a restart.
        """
        listed_ids = devices_by_id(self.devices.plugins_of(agent)).keys()
        held_ids = {DeviceId(device_id) for devices in claim.devices.values() for device_id in devices}
        missing_ids = sorted(held_ids - listed_ids)
        if not missing_ids:
            self._missing_since.pop(claim.id, None)
            return ""
        missing_since = self._missing_since.setdefault(claim.id, self.clock.monotonic())
        return missing_ids[0] if self.clock.monotonic() - missing_since > self.agent_settings.abandon_s else ""

    async def _ids_without_owner(self, claims: Sequence[Claim]) -> tuple[set[UUID], set[UUID]]:
        """Returns the ids of claims whose user was deleted, and the ids of claims whose keypair is not active. The
        owners are looked up only after some time has passed since the last look-up; otherwise both sets are empty.
        """
        if self.clock.monotonic() - self._owners_at < _OWNERS_EVERY_S:
            return set(), set()
        self._owners_at = self.clock.monotonic()
        deleted_user_ids = {
            user_id
            for user_id in {claim.user_id for claim in claims}
            if await self.identities.user(uuid=user_id) is None
        }
        active_keys = await self.identities.active_keys({claim.access_key for claim in claims})
        locked_out_ids = {claim.id for claim in claims if claim.access_key not in active_keys}
        return {claim.id for claim in claims if claim.user_id in deleted_user_ids}, locked_out_ids
