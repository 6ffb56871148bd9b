"""Prevents that replicas of an endpoint share a device claim which only one session may use at a time."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Protocol

import msgspec

from ai.backend.common.errors import InvalidInput
from ai.backend.common.ids import GroupId, UserId
from ai.backend.common.serving import ServedRevisionStatus
from ai.backend.core.serving.model import RolloutKind, RolloutPolicy
from ai.backend.manager.serving.model import Endpoint, Revision, Service, ServingChange

_TARGET_STATUSES = frozenset({ServedRevisionStatus.PENDING, ServedRevisionStatus.ROLLING_OUT})
_LIVE_STATUSES = _TARGET_STATUSES | {ServedRevisionStatus.ACTIVE}


class ClaimSharing(Protocol):
    """Finds out if several sessions may use a device claim at once."""

    async def unshared_slot(self, user_id: UserId, group_id: GroupId, name: str) -> str | None:
        """Returns a slot because of which only one session at a time may use a claim, or None if several may.

        Workloads cannot share such a slot on an agent of the claim's resource group. Raises NotFound.
        """


class _SharingCause(StrEnum):
    REPLICAS = "replicas"
    ROLL_OUT = "roll-out"


class ReplicaClaims(msgspec.Struct, frozen=True):
    """Refuses changes of endpoints after which two replicas would wait for the same device claim for ever."""

    sharing: ClaimSharing

    async def check(
        self, endpoint: Endpoint, revisions: Iterable[Revision], old_service: Service | None = None
    ) -> None:
        """Raises InvalidInput if several replicas of an endpoint would need a claim that cannot be shared.

        Only one session at a time may use such a claim. An endpoint that already did so before the change is
        accepted. Raises NotFound for a claim that does not exist.
        """
        old_needs = (
            _claims_needed_at_once(old_service.endpoint, old_service.revisions)
            if old_service is not None
            else frozenset()
        )
        for claim_name, cause in sorted(_claims_needed_at_once(endpoint, revisions) - old_needs):
            slot = await self.sharing.unshared_slot(endpoint.user_id, endpoint.group_id, claim_name)
            if slot is None:
                continue
            explanation = (
                f"Sessions use the claim {claim_name} in turn, "
                f"since not all agents let them share whole devices of {slot}."
            )
            if cause is _SharingCause.REPLICAS:
                message = f"{explanation} {endpoint.name} has one replica at most, by hand and by autoscaling."
                raise InvalidInput(message, data={"desired_session_count": "several replicas not with this claim"})
            message = (
                f"{explanation} A new revision takes it over after the old one has ended: give the policy "
                '{"kind": "rolling", "max_surge": 0, "max_unavailable": 1}, or another claim.'
            )
            raise InvalidInput(message, data={"policy": "both revisions at once not with this claim"})

    async def check_change(self, service: Service, change: ServingChange) -> None:
        """Checks the endpoint as it would be after a change, as :meth:`check` does."""
        changed_ids = {revision.id for revision in change.revisions}
        unchanged_revisions = [revision for revision in service.revisions if revision.id not in changed_ids]
        await self.check(change.endpoint, [*change.revisions, *unchanged_revisions], service)


def _claims_needed_at_once(endpoint: Endpoint, revisions: Iterable[Revision]) -> frozenset[tuple[str, _SharingCause]]:
    """Returns the claims that several replicas of an endpoint may need at once, each with the cause."""
    live_revisions = [revision for revision in revisions if revision.status in _LIVE_STATUSES and revision.spec.claim]
    max_replicas = max(endpoint.desired, endpoint.scaling.max_replicas if endpoint.scaling is not None else 0)
    claims_of_replicas = {
        (str(revision.spec.claim), _SharingCause.REPLICAS) for revision in live_revisions if max_replicas > 1
    }
    active_claims = {
        revision.spec.claim for revision in live_revisions if revision.status is ServedRevisionStatus.ACTIVE
    }
    target_claims = [str(revision.spec.claim) for revision in live_revisions if revision.status in _TARGET_STATUSES]
    shared_claims = set(target_claims) & active_claims | {
        claim_name for claim_name in target_claims if target_claims.count(claim_name) > 1
    }
    return frozenset(
        claims_of_replicas
        | {
            (str(claim_name), _SharingCause.ROLL_OUT)
            for claim_name in shared_claims
            if not _is_in_turn(endpoint.policy)
        }
    )


def _is_in_turn(policy: RolloutPolicy) -> bool:
    """Returns True if a roll-out policy ends an old replica before it starts a new one."""
    return policy.kind is RolloutKind.ROLLING and policy.max_surge == 0 and policy.max_unavailable > 0
