"""Reads, creates and changes resource groups and their associations (spec 03-09, "Scaling Group")."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ai.backend.common.errors import Conflict, InvalidInput, NotFound
from ai.backend.common.ids import AccessKey, DomainName, ResourceGroupName
from ai.backend.common.names import check_slug
from ai.backend.core.scheduling.options import check, order_name
from ai.backend.infra.clock import Clock
from ai.backend.infra.loop import PeriodicLoop
from ai.backend.manager.access.caller import Caller
from ai.backend.manager.access.checks import require, scope_of
from ai.backend.manager.access.permissions import Operation, Scope
from ai.backend.manager.identity.service import IdentityService
from ai.backend.manager.identity.store import IdentityStore
from ai.backend.manager.resource_groups.model import Beneficiary, ResourceGroup
from ai.backend.manager.resource_groups.order_plugins import load_order_plugin
from ai.backend.manager.resource_groups.placement_plugins import load_placement_plugin
from ai.backend.manager.resource_groups.store import ResourceGroupStore, ResourceGroupUse

_URL_PATTERN = re.compile(r"https?://[A-Za-z0-9._:\[\]-]+/?")
DRIVERS = ("static",)
"""The ways to start the agents of a resource group (spec 03-09, ``driver``); ``static`` means by hand."""


@dataclass(slots=True)
class ResourceGroupService:
    """Reads and changes resource groups; after a change, the loops in ``after_change`` are woken. Changes raise
    Forbidden if the role of the caller does not permit them, and NotFound for a missing group.
    """

    store: ResourceGroupStore
    identities: IdentityStore
    identity: IdentityService
    use: ResourceGroupUse
    clock: Clock
    after_change: list[PeriodicLoop] = field(default_factory=list)

    async def available_groups(
        self, caller: Caller, *, group: str | None = None, is_active: bool | None = True
    ) -> Sequence[ResourceGroup]:
        """Returns the resource groups that are public or open to the caller's domain, groups or keypair. Superadmins
        get all resource groups. With ``group`` (id or name), only this group counts. Raises NotFound if the caller
        does not see it.
        """
        if scope_of(caller, Operation.SEE_RESOURCE_GROUPS) is Scope.ALL and group is None:
            return await self.store.resource_groups(is_active=is_active)
        if group is None:
            user_groups = await self.identities.groups(user_id=caller.user_id)
        else:
            user_groups = [
                user_group
                for user_group in await self.identity.groups(caller)
                if group in (user_group.name, str(user_group.id))
            ]
            if not user_groups:
                raise NotFound(f"There is no group {group[:64]!r} for you.", data={"group": "unknown"})
        beneficiaries = [Beneficiary.group(user_group.id) for user_group in user_groups]
        beneficiaries += [Beneficiary.domain(caller.domain_name), Beneficiary.keypair(caller.access_key)]
        return await self.store.resource_groups(beneficiaries, is_active=is_active)

    async def groups_open_to(
        self,
        caller: Caller,
        *,
        domain_name: str | None = None,
        group: str | None = None,
        access_key: str | None = None,
        is_active: bool | None = None,
    ) -> Sequence[ResourceGroup]:
        """Returns the resource groups that a domain, a group (id or name) or a keypair may use.

        Returns none if the caller does not see the domain, group or keypair.
        """
        if domain_name is not None:
            if all(domain.name != domain_name for domain in await self.identity.domains(caller)):
                return []
            beneficiaries = [Beneficiary.domain(domain_name)]
        elif group is not None:
            groups = await self.identity.groups(caller)
            beneficiaries = [
                Beneficiary.group(candidate.id) for candidate in groups if group in (str(candidate.id), candidate.name)
            ]
        else:
            try:
                keypair = await self.identity.keypair(caller, access_key)
            except NotFound:
                return []
            beneficiaries = [Beneficiary.keypair(keypair.access_key)]
        return await self.store.resource_groups(beneficiaries, is_active=is_active) if beneficiaries else []

    async def create(self, caller: Caller, name: str, values: Mapping[str, Any]) -> ResourceGroup:
        """Creates a resource group. Raises InvalidName; InvalidInput for unknown schedulers or options; Conflict."""
        require(caller, Operation.CHANGE_RESOURCE_GROUPS)
        check_slug(name, what="name", allow_dots=True)
        group = ResourceGroup(name=ResourceGroupName(name), created_at=self.clock.now(), **_check_fields(values))
        await self.store.put_resource_group(group, only_new=True)
        return group

    async def modify(self, caller: Caller, name: str, values: Mapping[str, Any]) -> ResourceGroup:
        """Changes a resource group, with effect from the next pass of the scheduler. Raises InvalidInput as
        :meth:`create`.
        """
        require(caller, Operation.CHANGE_RESOURCE_GROUPS)
        changed_group = await self.store.change_resource_group(name, **_check_fields(values))
        if changed_group is None:
            raise _group_not_found_error(name)
        for background_loop in self.after_change:
            background_loop.wake()
        return changed_group

    async def delete(self, caller: Caller, name: str) -> None:
        """Deletes a resource group. Raises Conflict while it has living agents or live sessions."""
        require(caller, Operation.CHANGE_RESOURCE_GROUPS)
        agents, sessions = await self.use.living_agents(name), await self.use.count_live_sessions(name)
        if agents or sessions:
            raise Conflict(
                f"{name[:64]!r} has {len(agents)} living agents and {sessions} live sessions.",
                data={"name": "in use", "agents": agents[:10], "sessions": sessions},
            )
        if not await self.store.delete_resource_group(name):
            raise _group_not_found_error(name)

    async def associate(self, caller: Caller, name: str, beneficiary: Beneficiary) -> None:
        """Allows a domain, group or keypair to use a resource group. Raises NotFound also for the domain, group or
        keypair.
        """
        require(caller, Operation.CHANGE_RESOURCE_GROUPS)
        if await self.store.resource_group(name) is None:
            raise _group_not_found_error(name)
        beneficiary_kind, id_ = beneficiary
        if beneficiary_kind == "domain" and await self.identities.domain(DomainName(id_)) is None:
            raise NotFound(f"There is no domain {id_[:64]!r}.")
        if beneficiary_kind == "group" and all(
            str(user_group.id) != id_ for user_group in await self.identities.groups()
        ):
            raise NotFound(f"There is no group {id_}.")
        if beneficiary_kind == "keypair" and await self.identities.keypair(AccessKey(id_)) is None:
            raise NotFound("There is no such keypair.")
        await self.store.associate(name, beneficiary)

    async def dissociate(self, caller: Caller, name: str | None, beneficiary: Beneficiary) -> None:
        """Withdraws from a domain, group or keypair the right to use one resource group, or all if the name is None.
        Raises NotFound if a named group was not associated.
        """
        require(caller, Operation.CHANGE_RESOURCE_GROUPS)
        removed_count = await self.store.dissociate(name, beneficiary)
        if name is not None and not removed_count:
            raise NotFound(f"The resource group {name[:64]!r} is not associated with that.")


def _check_fields(values: Mapping[str, Any]) -> dict[str, Any]:
    """Checks the fields of a new or changed resource group, and returns those to be stored.

    None values are left out, and the scheduler gets its canonical spelling.
    """
    fields = {name: value for name, value in values.items() if value is not None}
    if fields.get("driver", DRIVERS[0]) not in DRIVERS:
        raise InvalidInput(f"driver is one of {', '.join(DRIVERS)}.", data={"driver": "unknown"})
    for name in ("driver_opts", "scheduler_opts"):
        if not isinstance(fields.get(name, {}), Mapping):
            raise InvalidInput(f"{name} is an object.", data={name: "malformed"})
    _check_app_proxy(fields)
    options = fields.get("scheduler_opts", {})
    placement_name = options.get("agent_selection_strategy")
    plugin_names = (
        {placement_name}
        if isinstance(placement_name, str) and load_placement_plugin(placement_name) is not None
        else set()
    )
    order = fields.get("scheduler")
    if isinstance(order, str) and order_name(order) is None and load_order_plugin(order) is not None:
        plugin_names.add(order)
    check(order, options, plugins=plugin_names)
    if order is not None:
        fields["scheduler"] = order_name(order) or order
    return fields


def _check_app_proxy(fields: Mapping[str, Any]) -> None:
    """Checks the address of the app proxy's coordinator; an empty text means that there is no coordinator. Raises
    InvalidInput.
    """
    address = fields.get("wsproxy_addr")
    if address and _URL_PATTERN.fullmatch(str(address)) is None:
        raise InvalidInput("wsproxy_addr is http://HOST:PORT or https://HOST.", data={"wsproxy_addr": "malformed"})


def _group_not_found_error(name: str) -> NotFound:
    return NotFound(f"There is no resource group {name[:64]!r}.")
