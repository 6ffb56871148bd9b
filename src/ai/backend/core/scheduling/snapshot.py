"""Defines the complete input of a scheduling decision as frozen data, with the JSON form for `mgr scheduler replay`.

One snapshot is one resource group. The version of the form is in ``Snapshot.format``; a reader refuses another one.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from operator import attrgetter
from typing import Any

import msgspec

from ai.backend.common.devices import DeviceAllocation, VariantProperty
from ai.backend.common.errors import InvalidInput
from ai.backend.common.ids import AgentId, KernelId, SessionId
from ai.backend.common.slots import ResourceSlot
from ai.backend.common.states import ClusterMode, SessionResult, SessionStatus, SessionType
from ai.backend.core.allocation.node import DEFAULT_ORDER, PluginDevices

DUMP_FORMAT = 1


class HeldKernel(msgspec.Struct, frozen=True, kw_only=True):
    """Describes a kernel that occupies an agent.

    ``devices`` are its bound or else its planned devices, and may be empty. ``device_requests`` are those of its
    session. With ``is_claim`` it is a device claim, which is no kernel.
    """

    kernel_id: KernelId
    slots: ResourceSlot
    devices: DeviceAllocation = msgspec.field(default_factory=DeviceAllocation)
    device_requests: tuple[str, ...] = ()
    is_claim: bool = False


class AgentView(msgspec.Struct, frozen=True, kw_only=True):
    """Describes an agent by its last report and its database rows.

    Attributes:
        generation: of the inventory in ``plugins``; every placement carries it.
        is_schedulable: alive and not drained.
        images: canonical names of images that it can start; None if it can fetch any.
        location: the places that it is in, the widest first: ``("zone-a", "rack-7")``; see topology.py.
        reserved: what of its healthy devices it keeps for itself. No kernel holds it.
    """

    agent_id: AgentId
    architecture: str
    plugins: tuple[PluginDevices, ...]
    generation: int = 0
    held: tuple[HeldKernel, ...] = ()
    is_schedulable: bool = True
    images: frozenset[str] | None = None
    kernel_limit: int | None = None
    features: frozenset[str] = frozenset()
    location: tuple[str, ...] = ()
    reserved: ResourceSlot = msgspec.field(default_factory=ResourceSlot)


_UNCHANGING_FIELDS = attrgetter(*(f for f in AgentView.__struct_fields__ if f not in ("held", "plugins")))


def is_same_agent(first_view: AgentView, second_view: AgentView) -> bool:
    """Returns True if two views of an agent differ only in the kernels that the agent holds."""
    if first_view is second_view:
        return True
    return _UNCHANGING_FIELDS(first_view) == _UNCHANGING_FIELDS(second_view) and (
        first_view.plugins is second_view.plugins or first_view.plugins == second_view.plugins
    )


class PendingKernel(msgspec.Struct, frozen=True, kw_only=True):
    """Describes a kernel of a pending session.

    ``architecture`` None: any. ``needs``: features that its agent must have.
    """

    kernel_id: KernelId
    slots: ResourceSlot
    image: str
    architecture: str | None = None
    requirements: tuple[VariantProperty, ...] = ()
    needs: frozenset[str] = frozenset()


class Dependency(msgspec.Struct, frozen=True, kw_only=True):
    """Describes a session that must have succeeded before another session starts."""

    session_id: SessionId
    name: str
    status: SessionStatus
    result: SessionResult = SessionResult.UNDEFINED


class PendingClaim(msgspec.Struct, frozen=True, kw_only=True):
    """Describes the device claim of a pending session.

    Devices that the claim has yet to allocate are part of the slots of the first kernel. Devices that it holds already
    are not, and then ``designated_agents`` of the session is the claim's agent.

    Attributes:
        holders: names of sessions that hold it and exclude others.
        is_shared: several sessions may hold it at once.
        problem: why its devices cannot be used now.
    """

    claim_id: str
    name: str
    holders: tuple[str, ...] = ()
    is_shared: bool = False
    problem: str = ""


class PendingSession(msgspec.Struct, frozen=True, kw_only=True):
    """Describes a session that waits to be placed.

    Attributes:
        designated_agents: only these, if there are any.
        avoided_agents: they just failed it; taken only if nothing else fits.
        quotas: keys of ``Snapshot.quotas`` that count it.
        scope: its domain, project and user.
        device_requests: what the devices of its accelerators must be: alternatives, the preferred first; none for any
            devices. See :mod:`ai.backend.core.allocation.requests`.
        claim: the device claim that it names.
    """

    session_id: SessionId
    name: str
    kernels: tuple[PendingKernel, ...]
    enqueued_at: datetime
    priority: int = 10
    session_type: SessionType = SessionType.INTERACTIVE
    cluster_mode: ClusterMode = ClusterMode.SINGLE_NODE
    starts_at: datetime | None = None
    dependencies: tuple[Dependency, ...] = ()
    designated_agents: tuple[AgentId, ...] = ()
    avoided_agents: tuple[AgentId, ...] = ()
    quotas: tuple[str, ...] = ()
    scope: tuple[str, ...] = ()
    device_requests: tuple[str, ...] = ()
    claim: PendingClaim | None = None

    @property
    def total(self) -> ResourceSlot:
        if len(self.kernels) == 1:
            return self.kernels[0].slots
        return sum((kernel.slots for kernel in self.kernels), ResourceSlot())


class RunningSession(msgspec.Struct, frozen=True, kw_only=True):
    """Describes a session that may be preempted, with the (agent, kernel) pairs that the session holds.

    ``starts_over``: it waits again then.
    """

    session_id: SessionId
    priority: int
    started_at: datetime
    kernels: tuple[tuple[AgentId, KernelId], ...]
    is_preemptible: bool = True
    is_ending: bool = False
    starts_over: bool = False


class Quota(msgspec.Struct, frozen=True, kw_only=True):
    """Limits the named slots that a keypair, user, group or domain may occupy. ``label``: such as "group default"."""

    label: str
    limit: ResourceSlot = msgspec.field(default_factory=ResourceSlot)
    used: ResourceSlot = msgspec.field(default_factory=ResourceSlot)
    max_sessions: int | None = None
    sessions: int = 0


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the state of one resource group.

    Scopes are written as ``domain/project/user``, ``domain/project``, ``domain``.

    Attributes:
        running: sessions that may be preempted; empty where the policy does not.
        allocation_order: plugins whose devices choose their NUMA node first.
        occupied: what the sessions of a scope hold now.
        used_lately: the same as an average over time in which the past counts less; see
            :func:`ai.backend.core.scheduling.ordering.fair_share.decay_averages`.
        weights: how much a scope should have, relative to its siblings; 1 where it is not named.
        workload: what is usually requested, and how often; what is held and what waits, if it is empty.
        device_workload: what of the workload names devices: device requests, slots, and how often.
        last_agent: the one that the placement before chose; round-robin goes on after it.
        policy: how the group schedules, in a dump: see :meth:`ai.backend.core.scheduling.policy.Policy.dump`.
    """

    resource_group: str
    agents: tuple[AgentView, ...] = ()
    pending: tuple[PendingSession, ...] = ()
    running: tuple[RunningSession, ...] = ()
    quotas: Mapping[str, Quota] = msgspec.field(default_factory=dict)
    allocation_order: tuple[str, ...] = DEFAULT_ORDER
    occupied: Mapping[str, ResourceSlot] = msgspec.field(default_factory=dict)
    used_lately: Mapping[str, ResourceSlot] = msgspec.field(default_factory=dict)
    weights: Mapping[str, float] = msgspec.field(default_factory=dict)
    workload: tuple[tuple[ResourceSlot, int], ...] = ()
    device_workload: tuple[tuple[tuple[str, ...], ResourceSlot, int], ...] = ()
    last_agent: AgentId | None = None
    policy: Mapping[str, str | bool] = msgspec.field(default_factory=dict)
    format: int = DUMP_FORMAT


def _encode(value: Any) -> Any:
    if isinstance(value, ResourceSlot):
        return value.to_json()
    raise TypeError(f"no JSON form for {type(value).__name__}")


def _decode(kind: type, value: Any) -> Any:
    if kind is ResourceSlot:
        return ResourceSlot.parse(value)
    raise TypeError(f"no JSON form for {kind.__name__}")


def dump_json(snapshot: Snapshot) -> bytes:
    """Returns the snapshot as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(snapshot, enc_hook=_encode), indent=1)


def load_json(data: bytes) -> Snapshot:
    """Reads the output of :func:`dump_json`. Raises InvalidInput if it is not a snapshot of this format."""
    try:
        snapshot = msgspec.json.decode(data, type=Snapshot, dec_hook=_decode)
    except (msgspec.MsgspecError, ValueError) as e:
        raise InvalidInput(f"not a snapshot: {e}") from None
    if snapshot.format != DUMP_FORMAT:
        raise InvalidInput(f"the snapshot has format {snapshot.format}, this program reads {DUMP_FORMAT}")
    return snapshot
