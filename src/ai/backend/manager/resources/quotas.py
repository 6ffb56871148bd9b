"""What keypairs, groups and domains may occupy, and what they do (spec 03-09: ``total_resource_slots``)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal

from ai.backend.common.ids import AccessKey, DomainName, GroupId
from ai.backend.common.slots import INFINITY, ResourceSlot
from ai.backend.core.scheduling.snapshot import Quota
from ai.backend.manager.identity.model import ResourcePolicy
from ai.backend.manager.identity.store import IdentityStore
from ai.backend.manager.sessions.model import Session
from ai.backend.manager.sessions.store import SessionStore


def quota_names(session: Session) -> tuple[str, ...]:
    """The quotas that a session counts against, if these limit anything."""
    return f"keypair:{session.access_key}", f"group:{session.group_id}", f"domain:{session.domain_name}"


def bounded(names: Iterable[str], limits: ResourceSlot, *, unnamed: Decimal = INFINITY) -> ResourceSlot:
    """A limit for every slot; ``unnamed`` for those that ``limits`` does not mention (for it, missing would be
    zero)."""
    named = set(limits)
    return ResourceSlot({name: (limits[name] if name in named else unnamed) for name in {*names, *named}})


def policy_limits(names: Iterable[str], policy: ResourcePolicy) -> ResourceSlot:
    """What a keypair may occupy of each slot: nothing of what a LIMITED policy does not name."""
    unnamed = INFINITY if policy.default_for_unspecified == "UNLIMITED" else Decimal(0)
    return bounded(names, policy.total_resource_slots, unnamed=unnamed)


def scope_limits(names: Iterable[str], total_resource_slots: ResourceSlot) -> ResourceSlot:
    """What a group or a domain may occupy of each slot; it bounds only what it names."""
    return bounded(names, total_resource_slots)


class QuotaUsage:
    """Counts over all resource groups, from the kernels themselves, so that nothing can drift."""

    def __init__(self, sessions: SessionStore, identities: IdentityStore) -> None:
        self._sessions = sessions
        self._identities = identities

    async def quotas(self, pending: Sequence[Session]) -> Mapping[str, Quota]:
        """Those that limit these sessions, by :func:`quota_names`."""
        asked = {name for s in pending for k in s.kernels for name in k.requested_slots}
        found: dict[str, Quota] = {}
        await self._add_keypairs(found, {s.access_key for s in pending}, asked)
        wanted = {s.group_id for s in pending}
        for domain in {s.domain_name for s in pending}:
            await self._add_domain(found, domain, asked, wanted)
        return found

    async def _add_keypairs(self, found: dict[str, Quota], keys: set[AccessKey], asked: set[str]) -> None:
        limits = {p.name: _finite(policy_limits(asked, p)) for p in await self._identities.policies()}
        if not any(map(len, limits.values())):
            return
        for key in keys:
            keypair = await self._identities.keypair(key)
            limit = limits.get(keypair.resource_policy) if keypair is not None else None
            if limit is not None and len(limit):
                used = await self._sessions.occupied(access_key=key)
                found[f"keypair:{key}"] = Quota(label="your keypair", limit=limit, used=used)

    async def _add_domain(
        self, found: dict[str, Quota], name: DomainName, asked: set[str], wanted: set[GroupId]
    ) -> None:
        domain = await self._identities.domain(name)
        limit = _finite(scope_limits(asked, domain.total_resource_slots)) if domain is not None else ResourceSlot()
        if len(limit):
            used = await self._sessions.occupied(domain_name=name)
            found[f"domain:{name}"] = Quota(label=f"the domain {name}", limit=limit, used=used)
        for group in await self._identities.groups(domain_name=name):
            limit = _finite(scope_limits(asked, group.total_resource_slots))
            if group.id in wanted and len(limit):
                used = await self._sessions.occupied(group_id=group.id)
                found[f"group:{group.id}"] = Quota(label=f"the group {group.name}", limit=limit, used=used)


def _finite(limits: ResourceSlot) -> ResourceSlot:
    return ResourceSlot({name: amount for name, amount in limits.items() if amount.is_finite()})
