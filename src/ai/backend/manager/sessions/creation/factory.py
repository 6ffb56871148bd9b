"""Builds a session from a request, with every check that needs no lock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from uuid import UUID

from ai.backend.common.errors import ImageNotFound, InvalidInput, InvalidQuantity, LimitExceeded, UnsupportedResource
from ai.backend.common.ids import GroupId, KernelId, SessionId, SlotName, UserId
from ai.backend.common.names import check_slot_name
from ai.backend.common.slots import BinarySize, ResourceSlot, parse_quantity
from ai.backend.common.states import SessionStatus, SlotType
from ai.backend.common.structs import replace
from ai.backend.core.allocation.requests.compiled import RequestCompiler
from ai.backend.infra.clock import Clock, IdGenerator
from ai.backend.infra.telemetry.tracing import current_traceparent
from ai.backend.manager.access.caller import Caller
from ai.backend.manager.agents.capabilities import (
    ENCRYPTION,
    DeviceReader,
    agents_with_networks,
    is_encrypted,
    needs_of,
)
from ai.backend.manager.agents.plugin_options import check_plugin_options
from ai.backend.manager.agents.slots import SlotCatalogue
from ai.backend.manager.agents.store import AgentStore
from ai.backend.manager.dotfiles.service import DotfileService
from ai.backend.manager.folders.model import FolderMount
from ai.backend.manager.identity.model import ResourcePolicy
from ai.backend.manager.identity.store import IdentityStore
from ai.backend.manager.images.model import Image
from ai.backend.manager.images.service import ImageService, merge_images, resolve_image
from ai.backend.manager.resource_groups.store import ResourceGroupStore
from ai.backend.manager.sessions.claims.model import Claim
from ai.backend.manager.sessions.claims.naming import ClaimLookup, without_accelerators
from ai.backend.manager.sessions.creation import feasibility
from ai.backend.manager.sessions.creation import request as checks
from ai.backend.manager.sessions.creation.alternatives import check_alternatives
from ai.backend.manager.sessions.creation.diagnosed_devices import check_diagnosed_devices
from ai.backend.manager.sessions.creation.mounts import SessionMounts
from ai.backend.manager.sessions.model import CreateSession, Kernel, OwnerLimits, Session
from ai.backend.manager.sessions.settings import SessionSettings
from ai.backend.manager.sessions.store import SessionStore
from ai.backend.manager.system.service import ManagerState

_SUDO_VARIABLE = "SUDO_SESSION_ENABLED"
_REQUEST_FIELDS = (
    *("type", "tag", "cluster_mode", "cluster_size", "runtime_class", "startup_command"),
    *("batch_timeout_s", "exec_timeout_s", "sealed_environ"),
)
"""The fields of a session that are those of its request."""


@dataclass(eq=False, repr=False)
class SessionFactory:
    """Builds PENDING sessions from requests; errors name the field that is wrong."""

    sessions: SessionStore
    agents: AgentStore
    identities: IdentityStore
    resource_groups: ResourceGroupStore
    slots: SlotCatalogue
    settings: SessionSettings
    clock: Clock
    id_generator: IdGenerator
    devices: DeviceReader
    mounts: SessionMounts | None
    dotfiles: DotfileService
    state: ManagerState
    images: ImageService | None
    request_compiler: RequestCompiler = field(default_factory=RequestCompiler)

    def __post_init__(self) -> None:
        self.checker = feasibility.FeasibilityChecker(self.identities, self.resource_groups, self.agents, self.devices)
        self._naming = ClaimLookup(self.sessions, self.devices)

    async def build(
        self, caller: Caller, owner: Caller, request: CreateSession, session_id: SessionId | None = None
    ) -> tuple[Session, OwnerLimits]:
        """Returns a session and the limits of its owner; its id is new if ``session_id`` is None. Raises as
        ``SessionService.create``."""
        await self.state.check_running()
        checks.check_shape(request, self.settings)
        now = self.clock.now()
        candidates, claim = await self._find_candidates(caller, owner, request)
        is_network_encrypted = self.settings.encrypt_networks or is_encrypted(checks.check_flags(request))
        network_needs = needs_of(
            request.cluster_size, request.cluster_mode, "", is_encrypted_network=is_network_encrypted
        )
        if network_needs:
            candidates = replace(
                candidates, agents=agents_with_networks(candidates.agents, candidates.resource_group, network_needs)
            )
        image = await self._choose_image(owner, candidates, request.image, request.architecture)
        slots = self._requested_slots(request.resources, image)
        planned_kernels = await self._plan_kernels(owner, request, image, slots, candidates)
        if claim is not None:
            self._naming.check(request, claim, candidates.agents)
            slots = without_accelerators(slots, claim, image)
            planned_kernels = tuple(
                replace(kernel, slots=without_accelerators(kernel.slots, claim, kernel.image))
                for kernel in planned_kernels
            )
        alternatives, slots, planned_kernels = check_alternatives(
            request, slots, planned_kernels, self.request_compiler, self.slots.slot_types
        )
        mounts = await self._resolve_mounts(owner, request)
        if request.runtime_class:
            candidates, planned_kernels = feasibility.restrict_to_class(
                request.runtime_class, candidates, planned_kernels, self.devices, has_folders=bool(mounts)
            )
        limits = await self._check_policy(owner, request, planned_kernels)
        await self.checker.check_fits(request, alternatives.kernels_of_alternatives(planned_kernels), candidates)
        bootstrap_script = await self.dotfiles.bootstrap_script_of(
            owner, candidates.domain, candidates.group.id, request.bootstrap_script, mounts
        )
        session_id = session_id or SessionId(self.id_generator.uuid())
        session = Session(
            id=session_id,
            name=request.name or f"session-{session_id.hex[:10]}",
            **{name: getattr(request, name) for name in _REQUEST_FIELDS},
            status=SessionStatus.PENDING,
            status_history={SessionStatus.PENDING.value: now.isoformat()},
            status_changed=now,
            domain_name=candidates.domain,
            group_id=candidates.group.id,
            group_name=candidates.group.name,
            user_id=owner.user_id,
            user_email=owner.email,
            access_key=owner.access_key,
            created_by=caller.access_key,
            image=image.name,
            architecture=image.architecture,
            requested_slots=slots,
            variant_requirements=checks.check_requirements(request.variant_requirements),
            device_requests=alternatives.texts,
            plugin_options=check_plugin_options(
                request.plugin_options, [kernel.slots for kernel in planned_kernels], candidates.agents, self.devices
            ),
            diagnosed_devices=check_diagnosed_devices(caller, owner, request, candidates, self.devices),
            resource_opts=self._check_options(request, slots),
            environ=self._build_environ(owner, request.environ),
            mounts=tuple(mount.name for mount in mounts),
            vfolder_mounts=mounts,
            bootstrap_script=bootstrap_script,
            callback_url=checks.check_callback(request.callback_url),
            starts_at=checks.parse_start(request.starts_at, now) if request.starts_at else None,
            dependencies=await self._dependency_ids(owner, request.dependencies),
            priority=candidates.priority,
            scaling_group=candidates.resource_group,
            designated_agents=candidates.designated,
            preopen_ports=checks.check_ports(request.preopen_ports),
            created_at=now,
            trace=current_traceparent(),
            claim_id=claim.id if claim is not None else None,
            claim_name=claim.name if claim is not None else None,
            kernels=self._new_kernels(session_id, planned_kernels, now),
        )
        return session, limits

    async def _find_candidates(
        self, caller: Caller, owner: Caller, request: CreateSession
    ) -> tuple[feasibility.Candidates, Claim | None]:
        """Returns the candidates for a session, and the device claim that the session names (None without a claim). The
        candidates are in the resource group of the claim. Raises as :meth:`FeasibilityChecker.find`, NotFound, and
        InvalidInput if the request names another group.
        """
        if request.claim is None:
            return await self.checker.find(caller, owner, request), None
        candidates, _ = await self.checker.locate(caller, owner, request)
        claim = await self._naming.find(owner.user_id, candidates.group.id, request.claim)
        if request.scaling_group not in (None, claim.scaling_group):
            message = f"The claim {claim.name} is in the resource group {claim.scaling_group}."
            raise InvalidInput(message, data={"config.scalingGroup": "not that of the claim"})
        request = replace(request, scaling_group=claim.scaling_group)
        return await self.checker.find(caller, owner, request), claim

    async def check_rights(self, caller: Caller, owner: Caller, session: Session) -> None:
        """Checks that the owner may still use the project, resource group, folders and artifacts of an earlier session,
        which a new session is to use. Raises as ``SessionService.create``.
        """
        request = CreateSession(
            image=session.image,
            domain=session.domain_name,
            group=str(session.group_id),
            scaling_group=session.scaling_group,
        )
        await self.checker.locate(caller, owner, request)
        if self.mounts is not None:
            await self.mounts.check(owner, session.vfolder_mounts)

    async def unshared_slot(self, user_id: UserId, group_id: GroupId, name: str) -> str | None:
        """Returns a slot because of which only one session at a time may use a claim, or None if several may.

        Workloads cannot share such a slot on an agent of the claim's resource group. Raises NotFound.
        """
        claim = await self._naming.find(user_id, group_id, name)
        return self._naming.unshared_slot(claim, await self.agents.agents(scaling_group=claim.scaling_group))

    def _build_environ(self, owner: Caller, requested_variables: Mapping[str, str]) -> dict[str, str]:
        """Checks and returns the environment variables of a session.

        An administrator's setting of the owner, not the request, decides if the session's user may become root.
        """
        environ = dict(checks.check_environ(requested_variables, max_bytes=self.settings.max_environ_bytes))
        environ.pop(_SUDO_VARIABLE, None)
        return {**environ, _SUDO_VARIABLE: "1"} if owner.sudo_session_enabled else environ

    async def is_image_of(self, session: Session, reference: str) -> bool:
        """Returns True if ``reference`` names the image of this session, directly or by a current alias."""
        if session.image == reference:
            return True
        agents = await self.agents.agents(scaling_group=session.scaling_group)
        try:
            registered_images, aliases = (
                await self.images.images_of_reference(reference) if self.images is not None else ((), ())
            )
            images = merge_images(agents, registered_images, aliases)
            return resolve_image(images, reference, session.architecture).name == session.image
        except ImageNotFound:
            return False

    async def _resolve_mounts(self, owner: Caller, request: CreateSession) -> tuple[FolderMount, ...]:
        if self.mounts is not None:
            return await self.mounts.resolve(owner, request.mounts, request.mount_map, request.mount_options)
        for mount_ref in (*request.mounts, *request.mount_map, *request.mount_options):
            message = f"The folder {mount_ref[:64]!r} cannot be mounted: this cluster has no folders."
            raise InvalidInput(message, data={"config.mounts": f"no such folder: {mount_ref[:64]}"})
        return ()

    async def _choose_image(
        self, owner: Caller, candidates: feasibility.Candidates, reference: str, architecture: str | None
    ) -> Image:
        """Returns the image of a name that candidate agents can run. Raises as :meth:`ImageService.choose`."""
        if self.images is None:
            return resolve_image(merge_images(candidates.agents), reference, architecture)
        return await self.images.choose(owner, candidates.domain, candidates.agents, reference, architecture)

    async def _plan_kernels(
        self,
        owner: Caller,
        request: CreateSession,
        image: Image,
        slots: ResourceSlot,
        candidates: feasibility.Candidates,
    ) -> tuple[feasibility.PlannedKernel, ...]:
        """Returns the kernels of the session, grouped by role."""
        if not request.roles:
            roles = [("main", 1), ("sub", request.cluster_size - 1)]
            return tuple(
                feasibility.PlannedKernel(role, index + 1, image, slots)
                for role, kernel_count in roles
                for index in range(kernel_count)
            )
        planned_kernels: list[feasibility.PlannedKernel] = []
        for role in request.roles:
            role_image = await self._choose_image(owner, candidates, role.image, role.architecture)
            if role.name == "main" and role_image.name != image.name:
                role_image = image  # the request names another image
            resources = {**(role.resources or {}), **((request.resources or {}) if role.name == "main" else {})}
            role_slots = self._requested_slots(resources, role_image)
            environ = self._build_environ(owner, role.environ)
            bootstrap_script = checks.check_text(
                role.bootstrap_script, "bootstrap_script", self.settings.max_script_bytes
            )
            options = {"environ": environ, **({"bootstrap_script": bootstrap_script} if bootstrap_script else {})}
            if "shmem" in role.resource_opts:
                options["shmem"] = self._shared_memory_bytes(role.resource_opts, role_slots)
            planned_kernels += [
                feasibility.PlannedKernel(role.name, index + 1, role_image, role_slots, options)
                for index in range(role.replicas)
            ]
        return tuple(planned_kernels)

    async def _check_policy(
        self, owner: Caller, request: CreateSession, planned_kernels: Sequence[feasibility.PlannedKernel]
    ) -> OwnerLimits:
        """Returns the owner's limits, which are checked again when the session is inserted. Raises LimitExceeded for a
        session that would exceed them even if it were the only one, since it would wait forever (spec 03-08:333).
        """
        policies = await self.identities.policies(name=owner.resource_policy)
        limits = self._owner_limits(owner, policies)
        if not policies:
            return limits
        policy = policies[0]
        limit = policy.max_containers_per_session
        if 0 < limit < request.cluster_size:
            raise LimitExceeded(f"Your policy allows {limit} kernels in a session.", data={"clusterSize": limit})
        needed_slots = sum((kernel.slots for kernel in planned_kernels), ResourceSlot())
        exceeded_slot = next(
            (name for name in sorted(needed_slots) if needed_slots[name] > policy.limit_of(name)), None
        )
        if exceeded_slot is not None:
            message = (
                f"Your policy allows {policy.limit_of(exceeded_slot)} of {exceeded_slot} in all; "
                f"the session needs {needed_slots[exceeded_slot]}."
            )
            raise LimitExceeded(message, data={"config.resources": f"{exceeded_slot}: more than your policy allows"})
        return limits

    async def limits_of(self, owner: Caller) -> OwnerLimits:
        """Returns the limits of an owner, which are checked when sessions are inserted."""
        return self._owner_limits(owner, await self.identities.policies(name=owner.resource_policy))

    def _owner_limits(self, owner: Caller, policies: Sequence[ResourcePolicy]) -> OwnerLimits:
        max_live = self.settings.max_live_sessions or None
        if not policies:
            return OwnerLimits(max_live=owner.concurrency_limit or max_live)
        policy = policies[0]
        return OwnerLimits(
            max_live=min(filter(None, (policy.max_concurrent_sessions, owner.concurrency_limit)), default=max_live),
            max_pending=policy.max_pending_session_count or None,
            max_pending_slots=policy.max_pending_session_resource_slots,
        )

    def parse_slots(self, resources: Mapping[str, str | int | float] | None) -> ResourceSlot:
        """Returns requested slots. Raises InvalidQuantity, and UnsupportedResource for one that no agent ever had."""
        slot_types = self.slots.slot_types
        requested_quantities: dict[str, Decimal] = {}
        for name, value in (resources or {}).items():
            check_slot_name(name)
            is_bytes = name in slot_types and slot_types[name].slot_type is SlotType.BYTES
            try:
                quantity = parse_quantity(value, is_bytes=is_bytes)
            except InvalidQuantity as e:
                raise InvalidQuantity(f"{name}: {e}", data={"config.resources": f"{name}: malformed"}) from None
            if name not in slot_types:
                if not quantity:
                    continue
                available_names = ", ".join(sorted(slot_types)) or "none"
                raise UnsupportedResource(
                    f"No agent has ever offered the resource slot {name!r}; known slots are {available_names}.",
                    data={"config.resources": f"unknown slot: {name}", "available": sorted(slot_types)},
                )
            if quantity.is_infinite():
                raise InvalidQuantity(f"{name} must be finite", data={"config.resources": f"{name}: malformed"})
            requested_quantities[name] = quantity
        return ResourceSlot(requested_quantities)

    def _requested_slots(self, resources: Mapping[str, str | int | float] | None, image: Image) -> ResourceSlot:
        requested_quantities, slot_types = dict(self.parse_slots(resources)), self.slots.slot_types
        image_minimum = image.min_slots
        for slot in ("cpu", "mem"):
            if slot in slot_types and slot not in requested_quantities:
                requested_quantities[slot] = image_minimum[slot] or feasibility.DEFAULT_SLOTS[SlotName(slot)]
        for slot, minimum_amount in image_minimum.items():
            if requested_quantities.setdefault(slot, minimum_amount) < minimum_amount:
                message = f"The image {image.name} needs at least {minimum_amount} of {slot}."
                raise InvalidInput(message, data={"config.resources": f"{slot}: below the minimum of the image"})
        return ResourceSlot(requested_quantities).nonzero()

    def _check_options(self, request: CreateSession, slots: ResourceSlot) -> dict[str, str]:
        options = dict(request.resource_opts)
        for name in options:
            if name not in checks.OPTIONS:
                raise InvalidInput(f"unknown resource option {name[:64]!r}", data={"config.resource_opts": "unknown"})
        return {
            **options,
            **checks.check_flags(request),
            **({ENCRYPTION: "true"} if self.settings.encrypt_networks else {}),
            "shmem": self._shared_memory_bytes(options, slots),
        }

    def _shared_memory_bytes(self, options: Mapping[str, str], slots: ResourceSlot) -> str:
        """Returns the bytes of shared memory of a kernel with these slots. Raises InvalidQuantity, InvalidInput."""
        try:
            shmem = BinarySize.parse(str(options.get("shmem", self.settings.default_shmem)))
        except InvalidQuantity as e:
            raise InvalidQuantity(f"shmem: {e}", data={"config.resource_opts": "shmem: malformed"}) from None
        if "shmem" in options and slots["mem"] and shmem > slots["mem"]:
            message = "shmem exceeds the memory of the session"
            raise InvalidInput(message, data={"config.resource_opts": "shmem: too large"})
        return str(int(min(Decimal(shmem), slots["mem"] or Decimal(shmem))))

    async def _dependency_ids(self, owner: Caller, refs: Sequence[str]) -> tuple[SessionId, ...]:
        dependency_ids: list[SessionId] = []
        for ref in refs:
            try:
                session = await self.sessions.get(SessionId(UUID(ref)))
            except ValueError:
                live_sessions = await self.sessions.find_live(owner.access_key, ref)
                sessions_of_name = [session for session in live_sessions if session.name == ref] or live_sessions
                newest_session = await self.sessions.newest_named(owner.access_key, ref)
                session = sessions_of_name[0] if len(sessions_of_name) == 1 else newest_session
            if session is None or session.user_id != owner.user_id:
                raise InvalidInput(f"There is no session {ref[:64]!r} to depend on.", data={"dependencies": "unknown"})
            dependency_ids.append(session.id)
        return tuple(dict.fromkeys(dependency_ids))

    def _new_kernels(
        self, session_id: SessionId, planned_kernels: Sequence[feasibility.PlannedKernel], now: datetime
    ) -> tuple[Kernel, ...]:
        return tuple(
            Kernel(
                id=KernelId(session_id if rank == 0 else self.id_generator.uuid()),
                session_id=session_id,
                cluster_role=kernel.role,
                cluster_idx=kernel.number,
                local_rank=rank,
                cluster_hostname=f"{kernel.role}{kernel.number}",
                image=kernel.image.name,
                architecture=kernel.image.architecture,
                status_changed=now,
                requested_slots=kernel.slots,
                role_options=kernel.options,
                created_at=now,
            )
            for rank, kernel in enumerate(planned_kernels)
        )
