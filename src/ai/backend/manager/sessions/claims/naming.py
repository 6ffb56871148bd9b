"""Checks the device claim that a new session names."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ai.backend.common.errors import InvalidInput
from ai.backend.common.ids import GroupId, UserId
from ai.backend.common.slots import ResourceSlot, parse_quantity
from ai.backend.common.states import ClusterMode
from ai.backend.core.allocation.sharing import anonymous_slots
from ai.backend.core.allocation.variants import HOST_PLUGINS
from ai.backend.manager.agents.capabilities import DeviceReader
from ai.backend.manager.agents.model import Agent
from ai.backend.manager.images.model import Image
from ai.backend.manager.sessions.claims.model import Claim, ClaimQuery, no_such_claim
from ai.backend.manager.sessions.claims.store import ClaimStore
from ai.backend.manager.sessions.model import CreateSession

_FIELD = "config.claim"


class ClaimLookup(msgspec.Struct, frozen=True):
    """Finds the claims that sessions of an owner name, and checks that a session may use one."""

    store: ClaimStore
    devices: DeviceReader

    async def find(self, user_id: UserId, group_id: GroupId, name: str) -> Claim:
        """Returns the claim of an owner in a project. Raises NotFound, also for one that is to be deleted."""
        page = await self.store.claims(ClaimQuery(user_id=user_id, group_id=group_id, name=name, limit=1))
        claim = next(iter(page.items), None)
        if claim is None or claim.is_deleting:
            raise no_such_claim(name)
        return claim

    def check(self, request: CreateSession, claim: Claim, agents: Sequence[Agent]) -> None:
        """Raises InvalidInput if the request for a session contradicts the device claim that it names."""
        accelerators = {
            name
            for resources in (request.resources, *(role.resources for role in request.roles))
            for name, amount in (resources or {}).items()
            if name not in HOST_PLUGINS and parse_quantity(amount)
        }
        if accelerators:
            message = (
                f"The accelerators of this session are those of the claim {claim.name}; leave out {min(accelerators)}."
            )
            raise InvalidInput(
                message, data={"config.resources": f"{min(accelerators)}: not with a claim", _FIELD: "given"}
            )
        if request.device_requests or request.variant_requirements:
            message = f"The claim {claim.name} says what its devices must be, not the session."
            raise InvalidInput(message, data={_FIELD: "not with requests for devices"})
        if not claim.status.holds_devices:
            check_identity(self.devices, agents, claim.requested_slots, field=_FIELD)
        if request.cluster_size > 1:
            self._check_cluster(request, claim, agents)

    def _check_cluster(self, request: CreateSession, claim: Claim, agents: Sequence[Agent]) -> None:
        if request.cluster_mode is not ClusterMode.SINGLE_NODE:
            raise InvalidInput("The devices of a claim are on one node.", data={"clusterMode": "not with a claim"})
        if (slot := self.unshared_slot(claim, agents)) is not None:
            message = (
                f"Several kernels hold a claim at once only where all agents let them share whole devices; "
                f"{slot} is not shared so."
            )
            raise InvalidInput(message, data={"clusterSize": "not with this claim"})

    def unshared_slot(self, claim: Claim, agents: Sequence[Agent]) -> str | None:
        """Returns a slot of a claim that several workloads cannot share on one of the agents, or None if all can be
        shared.
        """
        for agent in agents:
            plugins = self.devices.plugins_of(agent)
            shareable_amounts = {
                (slot.slot_name, slot.amount)
                for plugin in plugins
                if plugin.alloc_map is not None and plugin.alloc_map.shareable
                for device in plugin.devices
                for slot in device.slots
            }
            offered_amounts = {
                (slot.slot_name, slot.amount)
                for plugin in plugins
                for device in plugin.devices
                for slot in device.slots
            }
            for name, quantity in claim.requested_slots.items():
                offered_sizes = {amount for slot_name, amount in offered_amounts if slot_name == name}
                if any(
                    (name, offered_size) not in shareable_amounts or quantity % offered_size
                    for offered_size in offered_sizes
                ):
                    return name
        return None


def check_identity(devices: DeviceReader, agents: Sequence[Agent], slots: ResourceSlot, *, field: str) -> None:
    """Checks that at least one agent can give a claim the same devices again. Raises InvalidInput."""
    slot_names = [name for name in slots.nonzero() if name not in HOST_PLUGINS]
    plugins_of_agent = [devices.plugins_of(agent) for agent in agents]
    for name in slot_names:
        offering_plugins = [
            plugins
            for plugins in plugins_of_agent
            if any(slot.slot_name == name for plugin in plugins for device in plugin.devices for slot in device.slots)
        ]
        if offering_plugins and all(anonymous_slots(plugins, [name]) for plugins in offering_plugins):
            message = (
                f"A claim cannot keep {name}: the nodes that have it count such devices only, and others choose which "
                "one a session gets, so the next session of the claim would get another."
            )
            raise InvalidInput(message, data={field: f"{name}: devices without an identity"})


def without_accelerators(slots: ResourceSlot, claim: Claim, image: Image) -> ResourceSlot:
    """Returns a kernel's slots without the accelerators, since the claim of its session provides the accelerators.
    Raises InvalidInput if the image needs more than that.
    """
    for name, minimum_amount in image.min_slots.items():
        if name not in HOST_PLUGINS and minimum_amount > claim.requested_slots[name]:
            message = f"The image {image.name} needs at least {minimum_amount} of {name}, and the claim has less."
            raise InvalidInput(message, data={_FIELD: f"{name}: below the minimum of the image"})
    return ResourceSlot({name: quantity for name, quantity in slots.items() if name in HOST_PLUGINS})
