"""Computes the quotas of keypairs, groups and domains, and their usage (spec 03-09: ``total_resource_slots``)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from decimal import Decimal

import msgspec

from ai.backend.common.ids import AccessKey, DomainName, GroupId
from ai.backend.common.slots import INFINITY, ResourceSlot
from ai.backend.core.scheduling.snapshot import Quota
from ai.backend.manager.identity.model import ResourcePolicy
from ai.backend.manager.identity.store import IdentityStore
from ai.backend.manager.sessions.model import Session
from ai.backend.manager.sessions.store import SessionStore


def quota_names(session: Session) -> tuple[str, ...]:
    """Returns the names of the quotas that a session counts against."""
    return f"keypair:{session.access_key}", f"group:{session.group_id}", f"domain:{session.domain_name}"


def fill_limits(names: Iterable[str], limits: ResourceSlot, *, default_limit: Decimal = INFINITY) -> ResourceSlot:
    """Returns the limit of each slot in ``limits``, and ``default_limit`` for each other slot in ``names``."""
    limited_names = set(limits)
    return ResourceSlot(
        {name: (limits[name] if name in limited_names else default_limit) for name in {*names, *limited_names}}
    )


def policy_limits(names: Iterable[str], policy: ResourcePolicy) -> ResourceSlot:
    """Returns the amount of each slot that a keypair may occupy. A LIMITED policy allows nothing of slots that it does
    not name.
    """
    return ResourceSlot({name: policy.limit_of(name) for name in {*names, *policy.total_resource_slots}})


def scope_limits(names: Iterable[str], total_resource_slots: ResourceSlot) -> ResourceSlot:
    """Returns the amount of each slot that a group or a domain may occupy. Slots without an entry are unlimited."""
    return fill_limits(names, total_resource_slots)


class QuotaUsage(msgspec.Struct, frozen=True):
    """Computes how much of each quota is in use, from the kernels in all resource groups.

    So the usage always equals the real use.
    """

    sessions: SessionStore
    identities: IdentityStore

    async def quotas(
        self, pending_sessions: Sequence[Session], claimed_slots: Collection[str] = ()
    ) -> Mapping[str, Quota]:
        """Returns the quotas that limit the pending sessions, with their usage, by the names of :func:`quota_names`.

        The device claims of the sessions request ``claimed_slots``.
        """
        slots = {name for session in pending_sessions for kernel in session.kernels for name in kernel.requested_slots}
        slots.update(claimed_slots)
        quotas: dict[str, Quota] = {}
        await self._add_keypairs(quotas, {session.access_key for session in pending_sessions}, slots)
        group_ids = {session.group_id for session in pending_sessions}
        for domain in {session.domain_name for session in pending_sessions}:
            await self._add_domain(quotas, domain, slots, group_ids)
        return quotas

    async def _add_keypairs(self, quotas: dict[str, Quota], keys: set[AccessKey], slots: set[str]) -> None:
        limits = {
            policy.name: _finite_limits(policy_limits(slots, policy)) for policy in await self.identities.policies()
        }
        if not any(map(len, limits.values())):
            return
        for key in keys:
            keypair = await self.identities.keypair(key)
            limit = limits.get(keypair.resource_policy) if keypair is not None else None
            if limit is not None and len(limit):
                used_slots = await self.sessions.occupied(access_key=key)
                quotas[f"keypair:{key}"] = Quota(label="your keypair", limit=limit, used=used_slots)

    async def _add_domain(
        self, quotas: dict[str, Quota], name: DomainName, slots: set[str], group_ids: set[GroupId]
    ) -> None:
        domain = await self.identities.domain(name)
        limit = (
            _finite_limits(scope_limits(slots, domain.total_resource_slots)) if domain is not None else ResourceSlot()
        )
        if len(limit):
            used_slots = await self.sessions.occupied(domain_name=name)
            quotas[f"domain:{name}"] = Quota(label=f"the domain {name}", limit=limit, used=used_slots)
        for group in await self.identities.groups(domain_name=name):
            limit = _finite_limits(scope_limits(slots, group.total_resource_slots))
            if group.id in group_ids and len(limit):
                used_slots = await self.sessions.occupied(group_id=group.id)
                quotas[f"group:{group.id}"] = Quota(label=f"the group {group.name}", limit=limit, used=used_slots)


def _finite_limits(limits: ResourceSlot) -> ResourceSlot:
    return ResourceSlot({name: amount for name, amount in limits.items() if amount.is_finite()})
