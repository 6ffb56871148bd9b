"""From a request to a session that may be stored: every check that needs no lock."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

from ai.backend.common.devices import DeviceHealth, VariantProperty
from ai.backend.common.errors import (
    Forbidden,
    ImageNotFound,
    InsufficientResource,
    InvalidInput,
    InvalidQuantity,
    LimitExceeded,
    NotFound,
    ResourceError,
    UnsupportedResource,
)
from ai.backend.common.ids import AgentId, DomainName, KernelId, ResourceGroupName, SessionId, SlotName
from ai.backend.common.names import check_env_name, check_session_name, check_slot_name
from ai.backend.common.slots import BinarySize, ResourceSlot, parse_quantity
from ai.backend.common.states import AgentStatus, ClusterMode, SessionStatus, SessionType, SlotType
from ai.backend.core.allocation.node import NodeAllocator
from ai.backend.core.scheduling.options import USUAL_PRIORITY, read
from ai.backend.manager.config.settings import SessionSettings
from ai.backend.manager.model.cluster import Agent, Image
from ai.backend.manager.model.folder import FolderMount
from ai.backend.manager.model.identity import Caller, Group, ResourceGroup
from ai.backend.manager.model.session import CreateSession, Kernel, OwnerLimits, Session
from ai.backend.manager.ports.identity_store import IdentityStore
from ai.backend.manager.ports.stores import AgentStore, SessionStore
from ai.backend.manager.ports.world import Clock, Minter
from ai.backend.manager.services.agent_features import NETWORKS, needs_of, with_networks
from ai.backend.manager.services.images.catalogue import Catalogue
from ai.backend.manager.services.images.resolving import merge_images, resolve_image
from ai.backend.manager.services.mounts import SessionMounts
from ai.backend.manager.services.runtime_classes import with_class
from ai.backend.manager.services.session_defaults import SessionDefaults
from ai.backend.manager.services.slot_catalogue import SlotCatalogue
from ai.backend.manager.services.snapshots import plugin_devices
from ai.backend.manager.services.state import ManagerState

_DURATION = re.compile(r"\+?(?P<number>\d{1,9}(?:\.\d{1,6})?)\s*(?P<unit>[smhdw])")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_OPTIONS = frozenset({"shmem", "allow_fractional_resource_fragmentation"})
_DEFAULTS = {SlotName("cpu"): Decimal(1), SlotName("mem"): Decimal(268_435_456)}
_MAX_PORTS = 20
_MAX_REQUIREMENTS = 32


def parse_start(text: str, now: datetime) -> datetime:
    """ISO 8601 (UTC where no zone is named) or a duration from now, as ``90s`` or ``1.5h``.

    Raises:
        InvalidInput: neither.
    """
    match = _DURATION.fullmatch(text.strip())
    try:
        if match is not None:
            return now + timedelta(seconds=float(match["number"]) * _UNITS[match["unit"]])
        parsed = datetime.fromisoformat(text.strip())
        return parsed.replace(tzinfo=UTC) if parsed.tzinfo is None else parsed.astimezone(UTC)
    except (ValueError, OverflowError):
        raise InvalidInput("starts_at is neither a time nor a duration", data={"starts_at": "malformed"}) from None


def check_environ(environ: Mapping[str, str], *, max_bytes: int) -> dict[str, str]:
    """Names that a shell accepts, values without NUL, everything together not too large."""
    for name, value in environ.items():
        check_env_name(name)
        if "\0" in value:
            raise InvalidInput(f"{name} contains a NUL", data={"config.environ": "malformed"})
    if sum(len(k.encode()) + len(v.encode()) for k, v in environ.items()) > max_bytes:
        raise InvalidInput(f"environ exceeds {max_bytes} bytes", data={"config.environ": "too large"})
    return dict(environ)


def _check_devices(agents: Sequence[Agent], slots: ResourceSlot) -> None:
    """Refuse what fits the sums of an agent but never its devices (a part of a share, a share larger than a device).

    Raises:
        ResourceError: what the last of the agents says; none of them could take one kernel even if it were empty.
    """
    if all(name in _DEFAULTS for name in slots.nonzero()):
        return
    refusal: ResourceError | None = None
    for agent in agents:
        # What has failed may come back.
        well = [
            replace(p, devices=tuple(replace(d, health=DeviceHealth.HEALTHY) for d in p.devices))
            for p in plugin_devices(agent)
        ]
        try:
            NodeAllocator.from_devices(well).allocate(slots)
        except ResourceError as e:
            refusal = e
        else:
            return
    if refusal is not None:
        raise refusal


def _slot_names(agent: Agent) -> frozenset[str]:
    """Every slot of an agent, whether or not one of its devices is healthy now."""
    return frozenset(s.slot_name for p in plugin_devices(agent) for d in p.devices for s in d.slots)


def _check_text(text: str | None, field: str, limit: int) -> str | None:
    if text is not None and (len(text.encode()) > limit or "\0" in text):
        raise InvalidInput(f"{field} exceeds {limit} bytes or contains a NUL", data={field: "too large or malformed"})
    return text


def _check_callback(url: str | None) -> str | None:
    if url is None:
        return None
    try:
        parts = urlsplit(url)
    except ValueError:
        parts = urlsplit("")
    # urlsplit drops line breaks silently, whoever sends the URL on would not
    is_text = url.isprintable() and " " not in url
    if len(url) > 2048 or not is_text or parts.scheme not in ("http", "https") or not parts.hostname:
        raise InvalidInput("callback_url is not an http(s) URL", data={"callback_url": "malformed"})
    return url


def check_requirements(texts: Sequence[str]) -> tuple[str, ...]:
    """Requirements in their canonical form, each once. Whether any device meets them is the scheduler's word.

    Raises:
        InvalidInput: too many of them, or one that is not ``namespace::feature::value`` of printable text.
    """
    field = "config.variant_requirements"
    if len(texts) > _MAX_REQUIREMENTS:
        raise InvalidInput(
            f"a session may have {_MAX_REQUIREMENTS} variant requirements at most", data={field: "too many"}
        )
    for text in texts:
        if not text.isprintable():
            raise InvalidInput(f"{text[:64]!r} has characters that do not print", data={field: "malformed"})
    try:
        return tuple(dict.fromkeys(str(VariantProperty.parse(text)) for text in texts))
    except InvalidInput as e:
        raise InvalidInput(e.message, data={field: "malformed"}) from None


def _check_ports(ports: Sequence[int]) -> tuple[int, ...]:
    if len(ports) > _MAX_PORTS or len(set(ports)) != len(ports) or any(not 1024 <= p <= 65535 for p in ports):
        raise InvalidInput(
            f"preopen_ports takes up to {_MAX_PORTS} different ports of 1024 to 65535",
            data={"config.preopen_ports": "out of range"},
        )
    return tuple(ports)


@dataclass(frozen=True, slots=True)
class _Place:
    domain: DomainName
    group: Group
    resource_group: ResourceGroupName
    open_groups: frozenset[ResourceGroupName]
    agents: Sequence[Agent]
    designated: tuple[AgentId, ...]
    priority: int = USUAL_PRIORITY


@dataclass(frozen=True, slots=True)
class _Member:
    """One kernel to be. ``number`` counts from 1 in each role."""

    role: str
    number: int
    image: Image
    slots: ResourceSlot
    options: Mapping[str, Any] = field(default_factory=dict)


def _check_options(caller: Caller, request: CreateSession, group: ResourceGroup) -> int:
    """What the resource group allows of a session; its priority.

    Raises:
        InvalidInput: sessions of this type are not for this group, or the priority is larger than users may have.
    """
    options = read(group.scheduler_opts)
    if request.type not in options.allowed_session_types:
        allowed = sorted(options.allowed_session_types)
        raise InvalidInput(
            f"Resource group {group.name} runs sessions of type {', '.join(allowed)} only.",
            data={"type": "not allowed", "available": allowed},
        )
    if request.priority is None:
        return min(USUAL_PRIORITY, options.max_priority)
    if request.priority > options.max_priority and not caller.is_any_admin:
        raise InvalidInput(
            f"The priority may be at most {options.max_priority} in resource group {group.name}.",
            data={"priority": "too large", "max": options.max_priority},
        )
    return request.priority


def _of_class(name: str, place: _Place, members: Sequence[_Member]) -> tuple[_Place, tuple[_Member, ...]]:
    """The agents that have the runtime class, and the kernels with what it costs. Raises as ``with_class``."""
    agents, cost = with_class(place.agents, name, [m.slots for m in members], place.resource_group)
    return replace(place, agents=agents), tuple(replace(m, slots=m.slots + cost) for m in members)


class SessionFactory:
    """Builds a PENDING session of a request, or says which field of it is wrong."""

    def __init__(
        self,
        sessions: SessionStore,
        agents: AgentStore,
        identities: IdentityStore,
        slots: SlotCatalogue,
        settings: SessionSettings,
        clock: Clock,
        minter: Minter,
        mounts: SessionMounts | None = None,
        defaults: SessionDefaults | None = None,
        state: ManagerState | None = None,
        images: Catalogue | None = None,
    ) -> None:
        self._images = images
        self._mounts = mounts
        self._defaults = defaults
        self._state = state
        self._sessions = sessions
        self._agents = agents
        self._identities = identities
        self._known_slots = slots
        self._settings = settings
        self._clock = clock
        self._minter = minter

    async def build(self, caller: Caller, owner: Caller, request: CreateSession) -> tuple[Session, OwnerLimits]:
        """The session, and what its owner may have with it.

        See ``SessionService.create`` for the errors.
        """
        if self._state is not None:
            await self._state.check_running()
        self._check_shape(request)
        now = self._clock.now()
        place = await self._place(caller, owner, request)
        if NETWORKS in needs_of(request.cluster_size, request.cluster_mode, request.runtime_class):
            place = replace(place, agents=with_networks(place.agents, place.resource_group))
        image = await self._image(owner, place, request.image, request.architecture)
        limits = await self._check_policy(owner, request)
        slots = self._slots(request.resources, image)
        members = await self._members(owner, request, image, slots, place)
        if request.runtime_class:
            place, members = _of_class(request.runtime_class, place, members)
        await self._check_fits(request, members, place)
        mounts = await self._resolve_mounts(owner, request)
        bootstrap_script = request.bootstrap_script
        if self._defaults is not None:
            bootstrap_script = await self._defaults.apply(owner, place.domain, place.group.id, request, mounts)
        session_id = SessionId(self._minter.uuid())
        session = Session(
            id=session_id,
            name=request.name or f"session-{session_id.hex[:10]}",
            type=request.type,
            status=SessionStatus.PENDING,
            status_history={SessionStatus.PENDING.value: now.isoformat()},
            status_changed=now,
            domain_name=place.domain,
            group_id=place.group.id,
            group_name=place.group.name,
            user_id=owner.user_id,
            user_email=owner.email,
            access_key=owner.access_key,
            created_by=caller.access_key,
            image=image.name,
            architecture=image.architecture,
            tag=request.tag,
            cluster_mode=request.cluster_mode,
            cluster_size=request.cluster_size,
            runtime_class=request.runtime_class,
            requested_slots=slots,
            variant_requirements=check_requirements(request.variant_requirements),
            resource_opts=self._options(request, slots),
            environ=check_environ(request.environ, max_bytes=self._settings.max_environ_bytes),
            mounts=tuple(mount.name for mount in mounts),
            vfolder_mounts=mounts,
            startup_command=request.startup_command,
            bootstrap_script=bootstrap_script,
            callback_url=_check_callback(request.callback_url),
            starts_at=parse_start(request.starts_at, now) if request.starts_at else None,
            dependencies=await self._dependencies(owner, request.dependencies),
            priority=place.priority,
            scaling_group=place.resource_group,
            designated_agents=place.designated,
            preopen_ports=_check_ports(request.preopen_ports),
            batch_timeout_s=request.batch_timeout_s,
            exec_timeout_s=request.exec_timeout_s,
            created_at=now,
            kernels=self._kernels(session_id, members, now),
        )
        return session, limits

    async def is_image_of(self, session: Session, wanted: str) -> bool:
        """Whether ``wanted`` names the image of this session, directly or by an alias that holds now."""
        if session.image == wanted:
            return True
        agents = await self._agents.agents(scaling_group=session.scaling_group)
        try:
            registered, aliases = await self._images.known_as(wanted) if self._images is not None else ((), ())
            known = merge_images(agents, registered, aliases)
            return resolve_image(known, wanted, session.architecture).name == session.image
        except ImageNotFound:
            return False

    def _check_shape(self, request: CreateSession) -> None:
        if request.name is not None:
            check_session_name(request.name)
        if not 1 <= request.cluster_size <= self._settings.max_cluster_size:
            limit = self._settings.max_cluster_size
            raise InvalidInput(f"clusterSize must be 1 to {limit}", data={"clusterSize": "out of range"})
        if request.max_wait_s < 0:
            raise InvalidInput("maxWaitSeconds must not be negative", data={"maxWaitSeconds": "out of range"})
        if request.type is SessionType.INFERENCE:
            raise InvalidInput("inference sessions are made by model services", data={"type": "not supported"})
        if request.type is SessionType.BATCH and not (request.startup_command or "").strip():
            raise InvalidInput("a batch session needs a startupCommand", data={"startupCommand": "missing"})
        for name, value in (("batch_timeout", request.batch_timeout_s), ("exec_timeout", request.exec_timeout_s)):
            if value is not None and not 0 < value <= 366 * 86_400:
                raise InvalidInput(f"{name} must be positive seconds", data={name: "out of range"})
        _check_text(request.tag, "tag", 256)
        if request.tag is not None and not request.tag.isprintable():
            raise InvalidInput("a tag has no control characters", data={"tag": "malformed"})
        _check_text(request.startup_command, "startupCommand", self._settings.max_script_bytes)
        _check_text(request.bootstrap_script, "bootstrap_script", self._settings.max_script_bytes)

    async def _resolve_mounts(self, owner: Caller, request: CreateSession) -> tuple[FolderMount, ...]:
        if self._mounts is not None:
            return await self._mounts.resolve(owner, request.mounts, request.mount_map, request.mount_options)
        for folder in (*request.mounts, *request.mount_map, *request.mount_options):
            raise InvalidInput(
                f"The folder {folder[:64]!r} cannot be mounted: this cluster keeps no folders.",
                data={"config.mounts": f"no such folder: {folder[:64]}"},
            )
        return ()

    async def _place(self, caller: Caller, owner: Caller, request: CreateSession) -> _Place:
        domain = DomainName(request.domain or owner.domain_name)
        if domain != owner.domain_name and not caller.is_superadmin:
            raise NotFound(f"There is no domain {domain[:64]!r} for you.", data={"domain": "unknown"})
        name = request.group or "default"
        groups = await self._identities.groups(domain_name=domain, user_id=owner.user_id)
        if caller.is_any_admin:
            groups += await self._identities.groups(domain_name=domain)
        group = next((g for g in groups if name in (g.name, str(g.id))), None)
        if group is None or not group.is_active:
            raise NotFound(f"There is no group {name[:64]!r} for you.", data={"group": "unknown"})
        allowed = await self._identities.resource_groups(
            domain_name=domain, group_ids=[group.id], access_key=owner.access_key, is_active=True
        )
        wanted = request.scaling_group
        chosen = next((r for r in allowed if r.name == wanted), None) if wanted else next(iter(allowed), None)
        if chosen is None:
            raise NotFound(
                f"There is no resource group {wanted[:64]!r} for you."
                if wanted
                else "No resource group is open to you.",
                data={"config.scalingGroup": "unknown", "available": [r.name for r in allowed]},
            )
        agents = await self._agents.agents(scaling_group=chosen.name)
        agents = [a for a in agents if a.status is not AgentStatus.TERMINATED]
        if request.agent_list and not caller.is_any_admin:
            raise Forbidden("Only administrators choose agents.", data={"config.agentList": "not allowed"})
        known = {a.id for a in agents}
        for agent in request.agent_list:
            if agent not in known:
                raise NotFound(f"There is no agent {agent[:64]!r}.", data={"config.agentList": "unknown"})
        open_groups = frozenset(r.name for r in allowed)
        designated = tuple(AgentId(a) for a in request.agent_list)
        priority = _check_options(caller, request, chosen)
        return _Place(domain, group, chosen.name, open_groups, agents, designated, priority)

    async def _image(self, owner: Caller, place: _Place, wanted: str, architecture: str | None) -> Image:
        """Raises as :meth:`Catalogue.choose`."""
        if self._images is None:
            return resolve_image(merge_images(place.agents), wanted, architecture)
        return await self._images.choose(owner, place.domain, place.agents, wanted, architecture)

    async def _members(
        self, owner: Caller, request: CreateSession, image: Image, slots: ResourceSlot, place: _Place
    ) -> tuple[_Member, ...]:
        """The kernels to be, those of one role in a row."""
        if not request.roles:
            roles = [("main", 1), ("sub", request.cluster_size - 1)]
            return tuple(_Member(role, i + 1, image, slots) for role, size in roles for i in range(size))
        found: list[_Member] = []
        for role in request.roles:
            its = await self._image(owner, place, role.image, role.architecture)
            if role.name == "main" and its.name != image.name:
                its = image  # the request has named another one
            wanted = {**(role.resources or {}), **((request.resources or {}) if role.name == "main" else {})}
            needed = self._slots(wanted, its)
            environ = check_environ(role.environ, max_bytes=self._settings.max_environ_bytes)
            script = _check_text(role.bootstrap_script, "bootstrap_script", self._settings.max_script_bytes)
            options = {"environ": environ, **({"bootstrap_script": script} if script else {})}
            found += [_Member(role.name, i + 1, its, needed, options) for i in range(role.replicas)]
        return tuple(found)

    async def _check_policy(self, owner: Caller, request: CreateSession) -> OwnerLimits:
        """What the owner may have at a time; whoever inserts the session counts it."""
        found = await self._identities.policies(name=owner.resource_policy)
        if not found:
            return OwnerLimits()
        policy = found[0]
        if request.cluster_size > policy.max_containers_per_session:
            limit = policy.max_containers_per_session
            raise LimitExceeded(f"Your policy allows {limit} kernels in a session.", data={"clusterSize": limit})
        return OwnerLimits(
            max_live=policy.max_concurrent_sessions or None,
            max_pending=policy.max_pending_session_count or None,
            max_pending_slots=policy.max_pending_session_resource_slots,
        )

    def _slots(self, resources: Mapping[str, str | int | float] | None, image: Image) -> ResourceSlot:
        known = self._known_slots.known
        asked: dict[str, Decimal] = {}
        for name, value in (resources or {}).items():
            check_slot_name(name)
            try:
                quantity = parse_quantity(value, is_bytes=name in known and known[name].slot_type is SlotType.BYTES)
            except InvalidQuantity as e:
                raise InvalidQuantity(f"{name}: {e}", data={"config.resources": f"{name}: malformed"}) from None
            if name not in known:
                if not quantity:
                    continue
                there_are = ", ".join(sorted(known)) or "none"
                raise UnsupportedResource(
                    f"No agent has ever offered the resource slot {name!r}; known slots are {there_are}.",
                    data={"config.resources": f"unknown slot: {name}", "available": sorted(known)},
                )
            if quantity.is_infinite():
                raise InvalidQuantity(f"{name} must be finite", data={"config.resources": f"{name}: malformed"})
            asked[name] = quantity
        minimum = image.min_slots
        for slot in ("cpu", "mem"):
            if slot in known and slot not in asked:
                asked[slot] = minimum[slot] or _DEFAULTS[SlotName(slot)]
        for slot, least in minimum.items():
            if asked.setdefault(slot, least) < least:
                raise InvalidInput(
                    f"The image {image.name} needs at least {least} of {slot}.",
                    data={"config.resources": f"{slot}: below the minimum of the image"},
                )
        return ResourceSlot(asked).nonzero()

    def _options(self, request: CreateSession, slots: ResourceSlot) -> dict[str, str]:
        options = dict(request.resource_opts)
        for name in options:
            if name not in _OPTIONS:
                raise InvalidInput(f"unknown resource option {name[:64]!r}", data={"config.resource_opts": "unknown"})
        try:
            shmem = BinarySize.parse(str(options.get("shmem", self._settings.default_shmem)))
        except InvalidQuantity as e:
            raise InvalidQuantity(f"shmem: {e}", data={"config.resource_opts": "shmem: malformed"}) from None
        if "shmem" in options and slots["mem"] and shmem > slots["mem"]:
            raise InvalidInput(
                "shmem exceeds the memory of the session", data={"config.resource_opts": "shmem: too large"}
            )
        return {**options, "shmem": str(int(min(Decimal(shmem), slots["mem"] or Decimal(shmem))))}

    async def _check_fits(self, request: CreateSession, members: Sequence[_Member], place: _Place) -> None:
        """Refuse what no agent could hold even if it were empty: it would wait for ever."""
        whole = sum((member.slots for member in members), ResourceSlot())
        is_together = request.cluster_mode is ClusterMode.SINGLE_NODE
        for member in {member.role: member for member in members}.values():
            await self._check_holds(member.image, member.slots, whole if is_together else member.slots, place)

    async def _check_holds(self, image: Image, slots: ResourceSlot, whole: ResourceSlot, place: _Place) -> None:
        candidates = [
            a
            for a in place.agents
            if a.architecture == image.architecture and (not place.designated or a.id in place.designated)
        ]
        roomy = [a for a in candidates if whole <= a.capacity]
        if roomy:
            _check_devices(roomy, slots)
            return
        if not candidates:
            raise ImageNotFound(f"No agent of {place.resource_group} can run {image.name} ({image.architecture}).")
        await self._check_offered(slots, candidates, place)
        shortages = {a.id: whole.shortage(a.capacity) for a in candidates}
        closest, lack = min(shortages.items(), key=lambda item: (len(item[1]), sum(item[1].values()), item[0]))
        lacking = ", ".join(f"{name} ({amount} short)" for name, amount in lack.to_json().items())
        raise InsufficientResource(
            f"No agent of {place.resource_group} could hold this even if it were empty; {closest} comes closest and "
            f"lacks {lacking}.",
            data={"config.resources": "larger than every agent", "shortage": lack.to_json()},
        )

    async def _check_offered(self, slots: ResourceSlot, candidates: Sequence[Agent], place: _Place) -> None:
        """Refuse a slot that these agents do not have at all; other resource groups are named if they are open."""
        had = {name for a in candidates for name in _slot_names(a)}
        missing = next((name for name in sorted(slots.nonzero()) if name not in had), None)
        if missing is None:
            return
        elsewhere = sorted(
            {a.scaling_group for a in await self._agents.agents() if missing in a.capacity} & place.open_groups
        )
        where = f"agent {', '.join(place.designated)}" if place.designated else f"resource group {place.resource_group}"
        hint = f"it is in {', '.join(elsewhere)}" if elsewhere else "nor has any other that is open to you"
        raise UnsupportedResource(
            f"The {where} has no resource slot {missing}; {hint}.",
            data={"config.resources": f"not there: {missing}", "slot": missing, "resource_groups": elsewhere},
        )

    async def _dependencies(self, owner: Caller, refs: Sequence[str]) -> tuple[SessionId, ...]:
        found: list[SessionId] = []
        for ref in refs:
            try:
                session = await self._sessions.get(SessionId(UUID(ref)))
            except ValueError:
                live = await self._sessions.find_live(owner.access_key, ref)
                exact = [s for s in live if s.name == ref] or live
                newest = await self._sessions.newest_named(owner.access_key, ref)
                session = exact[0] if len(exact) == 1 else newest
            if session is None or session.user_id != owner.user_id:
                raise InvalidInput(f"There is no session {ref[:64]!r} to depend on.", data={"dependencies": "unknown"})
            found.append(session.id)
        return tuple(dict.fromkeys(found))

    def _kernels(self, session_id: SessionId, members: Sequence[_Member], now: datetime) -> tuple[Kernel, ...]:
        return tuple(
            Kernel(
                id=KernelId(session_id if rank == 0 else self._minter.uuid()),
                session_id=session_id,
                cluster_role=member.role,
                cluster_idx=member.number,
                local_rank=rank,
                cluster_hostname=f"{member.role}{member.number}",
                image=member.image.name,
                architecture=member.image.architecture,
                status_changed=now,
                requested_slots=member.slots,
                role_options=member.options,
                created_at=now,
            )
            for rank, member in enumerate(members)
        )
