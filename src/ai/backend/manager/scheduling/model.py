"""Defines the replies about what the scheduler would do, with texts and numbers that the caller may see.

Source: docs/howto/why-it-waits.md. Slots are maps of names to decimal text, as everywhere on the wire.
"""

from __future__ import annotations

from typing import Literal

import msgspec

Slots = dict[str, str]
Remedy = Literal["time", "others", "change"]
"""The remedy of a wait: time alone, other sessions that free resources, or a change of the request or cluster."""


class Limit(msgspec.Struct, frozen=True, kw_only=True):
    """The limit of a keypair, group or domain on one slot, with the amounts that are used and requested."""

    scope: str
    slot: str
    limit: str
    used: str
    requested: str
    is_exceeded: bool


class SessionRef(msgspec.Struct, frozen=True, kw_only=True):
    """A session that the caller may see, with the slots that it has or requests."""

    id: str
    name: str
    status: str
    slots: Slots


class SessionCount(msgspec.Struct, frozen=True, kw_only=True):
    """A number of sessions, with the first of these sessions that the caller may see."""

    count: int = 0
    visible: list[SessionRef] = []


class ExcludedAgents(msgspec.Struct, frozen=True, kw_only=True):
    """The number of agents that cannot take a session, for one reason.

    ``agents`` names the agents, only for callers who may see agents.
    """

    reason: str
    count: int
    agents: list[str] = []


class AgentsVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """Counts the agents of a resource group that could take a session now, and those that could not, by reason.

    ``names`` are those of ``startable``, for callers who may see agents. A multi-node session is judged by its
    largest kernel. ``largest_free``: the most of each slot that one agent has free and does not keep for another
    session.
    """

    total: int = 0
    startable: int = 0
    names: list[str] = []
    excluded: list[ExcludedAgents] = []
    largest_free: Slots = {}


class NearestRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A changed request that would start now: the slots of each kernel, and the number of kernels.

    ``device_requests`` replace the device requests of the original request, if there are any.
    """

    resources: Slots
    cluster_size: int
    device_requests: list[str] = []


class WithheldDevice(msgspec.Struct, frozen=True, kw_only=True):
    """A device that is given to no session now, or only to sessions that tolerate the device's taint.

    ``reason``: a failure, a cordon with its reason, an operation that is under way, or the taint. ``agent`` is empty
    for a caller who does not see agents.
    """

    agent: str
    device_name: str
    device_id: str
    reason: str


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """Says whether a request or a waiting session starts, and if not, why.

    Attributes:
        verdict: ``now``, ``waits`` or ``never``; ``started`` or ``ended`` of a session that waits no more.
        reason: a slug of the scheduler, ``limit-exceeded``, or the code of the error that a creation would get.
        remedy: what ends the wait; None if there is none.
        message: one sentence for a person.
        is_refused: a creation would fail; otherwise it would make a session that waits.
        count, placed: sessions asked for, and how many of them would start now.
        limits: every limit that counts the request.
        withheld: devices that it could be given if they were not failed, cordoned, worked on or tainted, the first few.
        nearest: requests that would start now, the closest to this one first.
        position, waiting: place in the queue of the resource group, from 1, and the length of that queue.
        ahead: sessions before it in the queue.
        behind: the session for which agents are kept that it needs, if the caller may see it.
        reserved: agents that are kept for it.
        holders: sessions that hold what it lacks.
        evictions: running sessions of smaller priority that end for it.
        at: ISO time of the snapshot.
    """

    verdict: Literal["now", "waits", "never", "started", "ended"]
    reason: str | None = None
    remedy: Remedy | None = None
    message: str = ""
    is_refused: bool = False
    resource_group: str = ""
    count: int = 1
    placed: int = 0
    requested: Slots = {}
    cluster_size: int = 1
    agents: AgentsVerdict = msgspec.field(default_factory=AgentsVerdict)
    limits: list[Limit] = []
    withheld: list[WithheldDevice] = []
    nearest: list[NearestRequest] = []
    position: int | None = None
    waiting: int = 0
    ahead: SessionCount = msgspec.field(default_factory=SessionCount)
    behind: SessionRef | None = None
    reserved: ExcludedAgents | None = None
    holders: SessionCount = msgspec.field(default_factory=SessionCount)
    evictions: int = 0
    at: str = ""


class QueueEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A waiting session. ``position`` counts every session from 1, also those that the caller may not see."""

    position: int
    id: str
    name: str
    user_email: str
    group_name: str
    type: str
    priority: int
    cluster_size: int
    requested_slots: Slots
    enqueued_at: str
    reason: str | None
    remedy: Remedy | None
    message: str
    reserved_agents: int


class QueueView(msgspec.Struct, frozen=True, kw_only=True):
    """The waiting sessions of a resource group that the caller may see, with counts of all waiting sessions.

    ``items`` are sessions that the caller may see, ``total_count`` is their number; ``waiting`` is the number of all
    waiting sessions, and ``reasons`` counts all of them by reason.
    """

    resource_group: str
    order: str
    waiting: int
    total_count: int
    reserved_agents: int
    reasons: dict[str, int]
    items: list[QueueEntry]
    at: str


class ShareItem(msgspec.Struct, frozen=True, kw_only=True):
    """The fair share of a domain, project or user.

    Attributes:
        scope: ``domain``, ``domain/project`` or ``domain/project/user``, by ids, as in ``scheduler_opts.weights``.
        used: the average of what it held, in which the past counts less, as the order ``fair-share`` sees it.
        occupied: what it holds now.
        share: the largest part of any slot of the resource group that ``used`` is; without history, ``occupied``.
        weighted_share: the same divided by the weight; the least is scheduled first.
    """

    scope: str
    level: Literal["domain", "project", "user"]
    name: str
    weight: float
    used: Slots
    occupied: Slots
    share: float
    weighted_share: float
    is_own: bool


class SharesView(msgspec.Struct, frozen=True, kw_only=True):
    """The fair shares of a resource group that the caller may see. ``order``: how the group schedules; shares decide
    only under ``fair-share`` and ``drf``. ``half_life_s``: seconds after which use counts half."""

    resource_group: str
    order: str
    half_life_s: float
    capacity: Slots
    items: list[ShareItem]
    at: str


class ReplayedPass(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a scheduling pass that was only computed: how many sessions it would place, and why others wait."""

    order: str
    placement: str
    placed: int
    reserved: int
    evictions: int
    reasons: dict[str, int]


class ReplayedSession(msgspec.Struct, frozen=True, kw_only=True):
    """A waiting session, with its outcome under the present policy and its outcome under another policy.

    Each outcome is ``placed``, or the reason why the session waits.
    """

    id: str
    name: str
    present: str
    other: str


class ReplayView(msgspec.Struct, frozen=True, kw_only=True):
    """Compares the next scheduling pass under the present policy with the same pass under another policy.

    ``items`` begin with the sessions whose outcomes differ.
    """

    resource_group: str
    at: str
    waiting: int
    agents: int
    orders: list[str]
    placements: list[str]
    present: ReplayedPass
    other: ReplayedPass
    items: list[ReplayedSession]
