"""Finds the resource group and agents of a requested session, and checks that it could ever fit there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import msgspec

from ai.backend.common import errors
from ai.backend.common.ids import AgentId, DomainName, ResourceGroupName, SlotName
from ai.backend.common.slots import ResourceSlot
from ai.backend.common.states import AgentStatus, ClusterMode, GroupType
from ai.backend.common.structs import replace
from ai.backend.core.allocation.node import NodeAllocator
from ai.backend.core.allocation.variants import repaired_device
from ai.backend.core.scheduling.options import USUAL_PRIORITY, read
from ai.backend.manager.access.caller import Caller
from ai.backend.manager.access.checks import is_permitted, scope_of
from ai.backend.manager.access.permissions import Operation, Scope
from ai.backend.manager.agents.capabilities import DeviceReader, agents_with_class
from ai.backend.manager.agents.model import Agent
from ai.backend.manager.agents.store import AgentStore
from ai.backend.manager.identity.model import Group
from ai.backend.manager.identity.store import IdentityStore
from ai.backend.manager.images.model import Image
from ai.backend.manager.resource_groups.model import Beneficiary, ResourceGroup
from ai.backend.manager.resource_groups.store import ResourceGroupStore
from ai.backend.manager.sessions.model import CreateSession

DEFAULT_SLOTS = {SlotName("cpu"): Decimal(1), SlotName("mem"): Decimal(268_435_456)}


def _check_devices(agents: Sequence[Agent], slots: ResourceSlot, devices: DeviceReader) -> None:
    """Raises what the allocator raises if no agent's devices can serve the slots, as a share larger than a device."""
    if all(name in DEFAULT_SLOTS for name in slots.nonzero()):
        return
    placement_error: errors.BackendError | None = None
    for agent in agents:
        # Failed devices may recover, and taints end.
        healthy_plugins = [
            replace(plugin, devices=tuple(repaired_device(device) for device in plugin.devices))
            for plugin in devices.plugins_of(agent)
        ]
        try:
            NodeAllocator.from_devices(healthy_plugins).allocate(slots)
        except errors.BackendError as e:  # also for devices that contradict each other: other agents may be sound
            placement_error = e
        else:
            return
    if placement_error is not None:
        raise placement_error


def _slot_names(agent: Agent, devices: DeviceReader) -> frozenset[str]:
    """Returns the names of all slots of an agent, including the slots of unhealthy devices."""
    return frozenset(
        slot.slot_name for plugin in devices.plugins_of(agent) for device in plugin.devices for slot in device.slots
    )


class Candidates(msgspec.Struct, frozen=True):
    """Holds the project, the resource group and the agents that a session may use. ``open_groups``: all resource groups
    that its owner may use. ``uses_host_network``: the resource group gives sessions the network of their node.
    """

    domain: DomainName
    group: Group
    resource_group: ResourceGroupName
    open_groups: frozenset[ResourceGroupName]
    agents: Sequence[Agent]
    designated: tuple[AgentId, ...]
    priority: int = USUAL_PRIORITY
    uses_host_network: bool = False


class PlannedKernel(msgspec.Struct, frozen=True):
    """A kernel of a session that is being created. ``number`` counts from 1 in each role."""

    role: str
    number: int
    image: Image
    slots: ResourceSlot
    options: Mapping[str, Any] = msgspec.field(default_factory=dict)


DEFAULT_GROUP = "default"
"""The name of the project of a request without a project (spec 03-08:262); the published client always names it."""


def _choose_group(name: str, own_groups: Sequence[Group], other_groups: Sequence[Group]) -> Group:
    """Returns the project that has this name or id. A user who is not in the default group gets their only group
    instead of it. Raises NotFound; InvalidInput for a user of several groups, who must choose (spec 03-01:275).
    """
    group = next((group for group in (*own_groups, *other_groups) if name in (group.name, str(group.id))), None)
    if group is not None and group.is_active:
        return group
    usable_groups = [group for group in own_groups if group.is_active and group.type is GroupType.GENERAL]
    if name != DEFAULT_GROUP or not usable_groups:
        raise errors.NotFound(f"There is no group {name[:64]!r} for you.", data={"group": "unknown"})
    if len(usable_groups) > 1:
        names = [group.name for group in usable_groups]
        message = f"You are in several groups: name one of {', '.join(names[:10])}."
        raise errors.InvalidInput(message, data={"group": "required", "available": names})
    return usable_groups[0]


def _check_options(caller: Caller, request: CreateSession, group: ResourceGroup) -> int:
    """Returns the priority of a request. Raises InvalidInput if the resource group refuses its type or priority."""
    options = read(group.scheduler_opts)
    if request.type not in options.allowed_session_types:
        allowed_types = sorted(options.allowed_session_types)
        message = f"Resource group {group.name} runs sessions of type {', '.join(allowed_types)} only."
        raise errors.InvalidInput(message, data={"type": "not allowed", "available": allowed_types})
    if request.priority is None:
        return min(USUAL_PRIORITY, options.max_priority)
    if request.priority > options.max_priority and not is_permitted(caller, Operation.EXCEED_PRIORITY):
        message = f"The priority may be at most {options.max_priority} in resource group {group.name}."
        raise errors.InvalidInput(message, data={"priority": "too large", "max": options.max_priority})
    return request.priority


def restrict_to_class(
    name: str,
    candidates: Candidates,
    planned_kernels: Sequence[PlannedKernel],
    devices: DeviceReader,
    *,
    has_folders: bool,
) -> tuple[Candidates, tuple[PlannedKernel, ...]]:
    """Returns only candidate agents that offer a runtime class, and kernels with the cost of the class added.

    Raises as ``agents_with_class``.
    """
    agents, class_slots = agents_with_class(
        candidates.agents,
        name,
        [kernel.slots for kernel in planned_kernels],
        candidates.resource_group,
        devices,
        has_folders=has_folders,
        uses_host_network=candidates.uses_host_network,
    )
    return replace(candidates, agents=agents), tuple(
        replace(kernel, slots=kernel.slots + class_slots) for kernel in planned_kernels
    )


@dataclass(eq=False, repr=False)
class FeasibilityChecker:
    """Finds the agents for a request among those that its owner may use, and checks whether it could fit."""

    identities: IdentityStore
    resource_groups: ResourceGroupStore
    agents: AgentStore
    devices: DeviceReader

    async def find(self, caller: Caller, owner: Caller, request: CreateSession) -> Candidates:
        """Returns the group, resource group and agents that ``request`` names, or the first that ``owner`` may use.

        Raises:
            NotFound: the owner has no access to what is named. Forbidden: ``caller`` may not choose agents.
            InvalidInput: the resource group refuses such a session.
        """
        candidates, resource_group = await self.locate(caller, owner, request)
        return replace(candidates, priority=_check_options(caller, request, resource_group))

    async def locate(self, caller: Caller, owner: Caller, request: CreateSession) -> tuple[Candidates, ResourceGroup]:
        """Returns candidates as :meth:`find` does, but without checking type and priority, and the resource group."""
        domain = DomainName(request.domain or owner.domain_name)
        if domain != owner.domain_name and scope_of(caller, Operation.USE_GROUPS) is not Scope.ALL:
            raise errors.NotFound(f"There is no domain {domain[:64]!r} for you.", data={"domain": "unknown"})
        own_groups = await self.identities.groups(domain_name=domain, user_id=owner.user_id)
        sees_others = scope_of(caller, Operation.USE_GROUPS) is not Scope.OWN
        other_groups = await self.identities.groups(domain_name=domain) if sees_others else []
        group = _choose_group(request.group or DEFAULT_GROUP, own_groups, other_groups)
        beneficiaries = (Beneficiary.domain(domain), Beneficiary.group(group.id), Beneficiary.keypair(owner.access_key))
        allowed_groups = await self.resource_groups.resource_groups(beneficiaries, is_active=True)
        requested_name = request.scaling_group
        chosen_group = (
            next((allowed_group for allowed_group in allowed_groups if allowed_group.name == requested_name), None)
            if requested_name
            else next(iter(allowed_groups), None)
        )
        if chosen_group is None:
            raise errors.NotFound(
                f"There is no resource group {requested_name[:64]!r} for you."
                if requested_name
                else "No resource group is open to you.",
                data={"config.scalingGroup": "unknown", "available": [group.name for group in allowed_groups]},
            )
        agents = await self.agents.agents(scaling_group=chosen_group.name)
        agents = [agent for agent in agents if agent.status is not AgentStatus.TERMINATED]
        if request.agent_list and not is_permitted(caller, Operation.CHOOSE_AGENTS):
            raise errors.Forbidden("Only administrators choose agents.", data={"config.agentList": "not allowed"})
        agent_ids = {agent.id for agent in agents}
        for agent in request.agent_list:
            if agent not in agent_ids:
                raise errors.NotFound(f"There is no agent {agent[:64]!r}.", data={"config.agentList": "unknown"})
        open_groups = frozenset(group.name for group in allowed_groups)
        designated_agents = tuple(AgentId(agent_id) for agent_id in request.agent_list)
        candidates = Candidates(
            domain,
            group,
            chosen_group.name,
            open_groups,
            agents,
            designated_agents,
            uses_host_network=chosen_group.use_host_network,
        )
        return candidates, chosen_group

    async def check_fits(
        self, request: CreateSession, kernel_choices: Sequence[Sequence[PlannedKernel]], candidates: Candidates
    ) -> None:
        """Refuses a request whose kernels could not fit even on empty agents, since the session would wait forever.
        Raises, for the first choice, ImageNotFound (no agent has this architecture), UnsupportedResource (no agent has
        such a slot), InsufficientResource, or what the allocator raises.
        """
        refusal: errors.BackendError | None = None
        for planned_kernels in kernel_choices:
            try:
                await self._check_choice(request, planned_kernels, candidates)
            except (errors.ResourceError, errors.InvalidQuantity, errors.ImageNotFound) as e:
                refusal = refusal or e
            else:
                return
        if refusal is not None:
            raise refusal

    async def _check_choice(
        self, request: CreateSession, planned_kernels: Sequence[PlannedKernel], candidates: Candidates
    ) -> None:
        total_slots = sum((kernel.slots for kernel in planned_kernels), ResourceSlot())
        is_single_node = request.cluster_mode is ClusterMode.SINGLE_NODE
        for kernel in {kernel.role: kernel for kernel in planned_kernels}.values():
            await self._check_capacity(
                kernel.image, kernel.slots, total_slots if is_single_node else kernel.slots, candidates
            )

    async def _check_capacity(
        self, image: Image, slots: ResourceSlot, total_slots: ResourceSlot, candidates: Candidates
    ) -> None:
        agents = [
            agent
            for agent in candidates.agents
            if agent.architecture == image.architecture
            and (not candidates.designated or agent.id in candidates.designated)
        ]
        large_enough_agents = [agent for agent in agents if total_slots <= agent.capacity]
        if large_enough_agents:
            _check_devices(large_enough_agents, slots, self.devices)
            return
        if not agents:
            message = f"No agent of {candidates.resource_group} can run {image.name} ({image.architecture})."
            raise errors.ImageNotFound(message)
        await self._check_offered(slots, agents, candidates)
        shortages = [total_slots.shortage(agent.capacity) for agent in agents]
        missing_slots = min(shortages, key=lambda shortage: (len(shortage), sum(shortage.values())))
        missing_text = ", ".join(f"{name} ({amount} short)" for name, amount in missing_slots.to_json().items())
        raise errors.InsufficientResource(
            f"No agent of {candidates.resource_group} could hold this even if it were empty; the one that comes "
            f"closest lacks {missing_text}.",
            data={"config.resources": "larger than every agent", "shortage": missing_slots.to_json()},
        )

    async def _check_offered(self, slots: ResourceSlot, agents: Sequence[Agent], candidates: Candidates) -> None:
        """Raises UnsupportedResource if one of the slots is offered by none of the given agents.

        The error names other resource groups that have the slot and are open to the owner.
        """
        offered_slots = {name for agent in agents for name in _slot_names(agent, self.devices)}
        missing_name = next((name for name in sorted(slots.nonzero()) if name not in offered_slots), None)
        if missing_name is None:
            return
        other_groups = sorted(
            {agent.scaling_group for agent in await self.agents.agents() if missing_name in agent.capacity}
            & candidates.open_groups
        )
        group_text = (
            f"agent {', '.join(candidates.designated)}"
            if candidates.designated
            else f"resource group {candidates.resource_group}"
        )
        where_text = f"it is in {', '.join(other_groups)}" if other_groups else "nor has any other that is open to you"
        raise errors.UnsupportedResource(
            f"The {group_text} has no resource slot {missing_name}; {where_text}.",
            data={
                "config.resources": f"not there: {missing_name}",
                "slot": missing_name,
                "resource_groups": other_groups,
            },
        )
