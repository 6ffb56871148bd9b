"""Builds a device claim from a request, with every check that needs no lock."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from ai.backend.common.errors import InvalidInput, LimitExceeded, NotFound
from ai.backend.common.names import check_slug
from ai.backend.common.slots import ResourceSlot
from ai.backend.common.structs import replace
from ai.backend.core.allocation.variants import HOST_PLUGINS
from ai.backend.manager.access.caller import Caller
from ai.backend.manager.identity.model import ResourcePolicy
from ai.backend.manager.images.model import Image
from ai.backend.manager.sessions.claims.model import Claim
from ai.backend.manager.sessions.claims.naming import check_identity
from ai.backend.manager.sessions.creation.alternatives import check_alternatives
from ai.backend.manager.sessions.creation.factory import SessionFactory
from ai.backend.manager.sessions.creation.feasibility import PlannedKernel
from ai.backend.manager.sessions.model import CreateSession

MAX_IDLE_S = 366 * 86_400.0


class CreateClaim(msgspec.Struct, frozen=True, kw_only=True):
    """A request for a device claim; the fields are those of a session's request. ``idle_timeout_s`` None selects the
    default, zero the longest time that the policy allows."""

    name: str
    resources: Mapping[str, str | int | float]
    device_requests: tuple[str, ...] = ()
    domain: str | None = None
    group: str | None = None
    scaling_group: str | None = None
    idle_timeout_s: float | None = None
    owner_access_key: str | None = None


class ClaimFactory(msgspec.Struct, frozen=True):
    """Builds claims from requests; errors name the field that is wrong."""

    sessions: SessionFactory

    async def build(self, caller: Caller, owner: Caller, request: CreateClaim) -> tuple[Claim, int | None]:
        """Returns a new claim, and the number of claims that its owner may have (None if the number is not limited).
        Raises InvalidInput, InvalidName, InvalidQuantity, UnsupportedResource, InsufficientResource, LimitExceeded,
        NotFound and Forbidden.
        """
        factory = self.sessions
        await factory.state.check_running()
        check_slug(request.name, what="name", max_length=64, allow_dots=True)
        slots = factory.parse_slots(request.resources).nonzero()
        if host_slots := sorted(set(slots) & set(HOST_PLUGINS)):
            message = f"A claim holds accelerators; {host_slots[0]} is requested by its sessions."
            raise InvalidInput(message, data={"resources": f"{host_slots[0]}: not of a claim"})
        session_request = CreateSession(
            image="",
            resources=request.resources,
            device_requests=request.device_requests,
            domain=request.domain,
            group=request.group,
            scaling_group=request.scaling_group,
        )
        candidates, _ = await factory.checker.locate(caller, owner, session_request)
        planned_kernels: tuple[PlannedKernel, ...] = (PlannedKernel("main", 1, Image(name="", architecture=""), slots),)
        alternatives, slots, planned_kernels = check_alternatives(
            session_request, slots, planned_kernels, factory.request_compiler, factory.slots.slot_types
        )
        if not slots.nonzero():
            raise InvalidInput("A claim requests accelerators.", data={"resources": "no accelerator is requested"})
        architectures = sorted({agent.architecture for agent in candidates.agents})
        if not architectures:
            raise NotFound(f"The resource group {candidates.resource_group} has no agents.")
        kernel_choices = [
            [replace(kernel, image=Image(name="the claim", architecture=architecture)) for kernel in kernels]
            for kernels in alternatives.kernels_of_alternatives(planned_kernels)
            for architecture in architectures
        ]
        await factory.checker.check_fits(session_request, kernel_choices, candidates)
        check_identity(factory.devices, candidates.agents, slots, field="resources")
        policies = await factory.identities.policies(name=owner.resource_policy)
        policy = policies[0] if policies else None
        _check_amounts(slots, policy)
        now = factory.clock.now()
        claim = Claim(
            id=factory.id_generator.uuid(),
            name=request.name,
            status_changed=now,
            domain_name=candidates.domain,
            group_id=candidates.group.id,
            group_name=candidates.group.name,
            user_id=owner.user_id,
            user_email=owner.email,
            access_key=owner.access_key,
            scaling_group=candidates.resource_group,
            requested_slots=slots,
            device_requests=alternatives.texts,
            idle_timeout_s=self._idle_timeout(request.idle_timeout_s, policy),
            created_at=now,
        )
        max_claims = policy.max_claims if policy is not None else 0
        return claim, max_claims or factory.settings.max_claims or None

    def _idle_timeout(self, requested_s: float | None, policy: ResourcePolicy | None) -> float | None:
        """Returns the seconds after which an idle claim gives its devices back, or None if it never does. Raises
        InvalidInput.
        """
        longest_s = float(policy.max_claim_idle_time) if policy is not None else 0.0
        if requested_s is None:
            default_s = self.sessions.settings.claim_idle_timeout_s
            return min(filter(None, (default_s, longest_s)), default=None)
        if not 0 <= requested_s <= MAX_IDLE_S:
            raise InvalidInput("an idle time is at most a year", data={"idle_timeout": "out of range"})
        if longest_s and requested_s > longest_s:
            message = f"Your policy allows {longest_s:g} seconds without a session."
            raise InvalidInput(message, data={"idle_timeout": "too long", "max": longest_s})
        return min(filter(None, (requested_s, longest_s)), default=None)


def _check_amounts(slots: ResourceSlot, policy: ResourcePolicy | None) -> None:
    """Raises LimitExceeded if a claim alone exceeds the limits that its owner's policy sets for slots."""
    exceeded_slot = next(
        (name for name in sorted(slots) if policy is not None and slots[name] > policy.limit_of(name)), None
    )
    if policy is not None and exceeded_slot is not None:
        message = (
            f"Your policy allows {policy.limit_of(exceeded_slot)} of {exceeded_slot} in all; "
            f"the claim needs {slots[exceeded_slot]}."
        )
        raise LimitExceeded(message, data={"resources": f"{exceeded_slot}: more than your policy allows"})
