"""Registers agents and records their heartbeats."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Address
from typing import Any

import msgspec

from ai.backend.common.devices import SlotDisplay
from ai.backend.common.errors import InvalidInput, InvalidQuantity, NotFound
from ai.backend.common.ids import AgentId, ResourceGroupName, SlotName
from ai.backend.common.images import architecture_name
from ai.backend.common.names import check_slot_name, check_slug
from ai.backend.common.slots import ResourceSlot
from ai.backend.common.states import AgentStatus, SlotType
from ai.backend.common.structs import replace
from ai.backend.common.wire.reports import (
    AgentReport,
    BeatReply,
    BeatReport,
    HeartbeatReply,
    KernelPresence,
    OverlayReport,
    RuntimeClassReport,
    SlotReport,
)
from ai.backend.infra.bus import Bus
from ai.backend.infra.clock import Clock
from ai.backend.infra.config_store import ConfigStore
from ai.backend.manager.agents.model import Agent, SlotTypeInfo
from ai.backend.manager.agents.settings import AgentSettings
from ai.backend.manager.agents.slots import SlotCatalogue
from ai.backend.manager.agents.store import AgentStore, PresenceComparison
from ai.backend.manager.resource_groups.store import ResourceGroupStore
from ai.backend.manager.topics import AGENTS, LAUNCH, SCHEDULE

OLDEST_RELEASE = (26, 11)
"""Year and month of the oldest release whose agents this manager accepts: the release before its own, if there is one.
"""
_CALENDAR_VERSION = re.compile(r"(\d{2})\.(\d{1,2})(?:\.|$)")
_MAX_SHOWN_CHARACTERS = 32
_MAX_LOSS_CHARACTERS = 500
_ASSIGNMENTS_KEY = "manager/assigned-agents"
MAX_PORT = 65_535
_BROADCAST_ADDRESS = IPv4Address("255.255.255.255")
log = logging.getLogger(__name__)
_REPORTED_FIELDS = ("epoch", "region", "addr", "version", "runtime", "tier", "generation", "overlay", "kernel_limit")
_REPORTED_LIST_FIELDS = ("devices", "plugins", "images", "runtime_classes", "location")
_HEARTBEAT_WRITE_S = 5.0
"""Seconds between two writes of the time of an agent's last heartbeat."""


class _Assignment(msgspec.Struct, frozen=True):
    group: str
    instead_of: str


class Assignments:
    """Replaces the resource group that an agent names by the group that a superadmin has assigned to the agent.

    An assignment holds as long as the agent names the same group as when it was made.
    """

    def __init__(self, config: ConfigStore) -> None:
        self._config = config

    async def put(self, agent_id: AgentId, assigned_group: str, *, replaced_group: str) -> None:
        encoded_assignment = msgspec.json.encode(_Assignment(group=assigned_group, instead_of=replaced_group)).decode()
        await self._config.put_many({f"{_ASSIGNMENTS_KEY}/{agent_id}": encoded_assignment})

    async def _stored_assignment(self, agent_id: AgentId) -> _Assignment | None:
        encoded_assignment = await self._config.get(f"{_ASSIGNMENTS_KEY}/{agent_id}")
        try:
            return msgspec.json.decode(encoded_assignment, type=_Assignment) if encoded_assignment else None
        except msgspec.DecodeError:  # not written by the manager: the group that the agent names holds
            return None

    async def group_of(self, agent_id: AgentId, named_group: str) -> ResourceGroupName:
        """Returns the resource group of an agent, which is the assigned one or else ``named_group``."""
        assignment = await self._stored_assignment(agent_id)
        return ResourceGroupName(
            assignment.group if assignment is not None and assignment.instead_of == named_group else named_group
        )

    async def reported_group(self, agent: Agent) -> str:
        """Returns the resource group that the agent itself names, even if another group is assigned."""
        assignment = await self._stored_assignment(agent.id)
        is_assigned = assignment is not None and assignment.group == agent.scaling_group
        return assignment.instead_of if assignment is not None and is_assigned else agent.scaling_group


def _invalid_reason(address: str, ports: Collection[int]) -> str:
    try:
        ipv4_address = IPv4Address(address)
    except ValueError:
        return f"{address[:64]!r} is no IPv4 address"
    if ipv4_address.is_unspecified or ipv4_address.is_multicast or ipv4_address == _BROADCAST_ADDRESS:
        return f"{address} is no address of one node"
    if len(ports) == 1 or not all(0 < port <= MAX_PORT for port in ports):
        return "its two ports must differ, and be from 1 to 65535"
    return ""


def admit_overlay(report: OverlayReport, other_reports: Mapping[AgentId, OverlayReport]) -> OverlayReport:
    """Returns an agent's overlay report, or a report that refuses it because its address is invalid or in use.

    Only one agent at an address takes part in encrypted networks: the packets of two to a peer's port cannot be told
    apart. ``other_reports`` are the admitted reports of all other living agents.
    """
    if report.why_not:
        return report
    ports = {report.port, report.encrypted_port}
    if refusal_reason := _invalid_reason(report.address, ports):
        return OverlayReport(why_not=refusal_reason)
    agents_at_address = {
        agent_id: other_report
        for agent_id, other_report in other_reports.items()
        if not other_report.why_not and other_report.address == report.address
    }
    for agent_id, other_report in agents_at_address.items():
        if ports & {other_report.port, other_report.encrypted_port}:
            refusal_reason = (
                f"agent {agent_id} is at {report.address} with the same port: set `underlay` of one of them"
            )
            return OverlayReport(why_not=refusal_reason)
    encrypting_agent = next(
        (agent_id for agent_id, other_report in agents_at_address.items() if not other_report.why_plain), None
    )
    if report.why_plain or encrypting_agent is None:
        return report
    return replace(report, why_plain=f"agent {encrypting_agent} encrypts at {report.address}, and one at a time can")


@dataclass(slots=True, eq=False, kw_only=True)
class AgentRegistry:
    """Registers agents by their heartbeats, and records the time of each agent's last contact."""

    agents: AgentStore
    resource_groups: ResourceGroupStore
    slots: SlotCatalogue
    presence: PresenceComparison
    bus: Bus
    clock: Clock
    settings: AgentSettings
    assignments: Assignments
    last_seen: dict[AgentId, float] = field(default_factory=dict, init=False)
    """Maps an agent to the monotonic time of its last report to this process."""
    leads: Callable[[], bool] = lambda: True
    """Returns True if this manager runs the loops; only the leader decides which kernels an agent should not have."""
    _fingerprints: dict[AgentId, bytes] = field(default_factory=dict, init=False)
    """Maps an agent to the digest of its registered report. The digest is empty if a part of the report was refused,
    and the next heartbeat tries the report again.
    """
    _last_written_at: dict[AgentId, float] = field(default_factory=dict, init=False)
    _held_kernels: dict[AgentId, tuple[int, int, list[KernelPresence], int | None]] = field(
        default_factory=dict, init=False
    )
    """Maps an agent to the epoch, number, kernels and newest observation of its last complete heartbeat."""
    _speaker_of: dict[AgentId, str] = field(default_factory=dict, init=False)
    _speakers: dict[str, tuple[float, float]] = field(default_factory=dict, init=False)
    """Maps a process that speaks for agents to two monotonic times: its first report after a long silence, and its
    last.
    """
    _losses: dict[AgentId, str] = field(default_factory=dict, init=False)
    """Maps an agent whose node is lost, as the process that speaks for the agent reports, to the reason."""
    _newest_heartbeat: dict[AgentId, tuple[int, int]] = field(default_factory=dict, init=False)
    """Maps an agent to the epoch and the number of its newest heartbeat."""
    _registration_lock: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)

    async def heartbeat(self, report: AgentReport) -> HeartbeatReply:
        """Registers or refreshes an agent, and compares its kernels with the kernels that it should hold.

        An agent whose report names a loss counts as lost until the next report without one; nothing else of the report
        is used. Raises NotFound if its resource group does not exist, and InvalidName or InvalidInput for a malformed
        report or an agent that is too old. An agent of a missing group counts as lost, so that it takes no sessions in
        its old one (spec 03-01:258).
        """
        agent_id = AgentId(check_slug(report.agent_id, what="agent_id", allow_dots=True))
        check_version(agent_id, report.version)
        reply = HeartbeatReply(interval_s=self._interval_s(report.speaker))
        if self._is_outdated(agent_id, report):
            return reply
        if report.loss:
            self.record_contact(agent_id, report.speaker)
            self._losses[agent_id] = report.loss[:_MAX_LOSS_CHARACTERS]
            return reply
        self._losses.pop(agent_id, None)
        monotonic_now = self.clock.monotonic()
        self.record_contact(agent_id, report.speaker)  # first: it lives even if its report cannot be written now
        fingerprint = msgspec.msgpack.encode(replace(report, kernels=[], number=0, observed=None))
        if self._fingerprints.get(agent_id) != fingerprint:
            is_fully_admitted = await self._register(agent_id, report)
            self._fingerprints[agent_id] = fingerprint if is_fully_admitted else b""
            self._last_written_at[agent_id] = monotonic_now
            for topic in (SCHEDULE, LAUNCH, AGENTS):
                self.bus.publish(topic)
        else:
            await self._write_contact(agent_id)
        self._held_kernels[agent_id] = (report.epoch, report.number, report.kernels, report.observed)
        if not self.leads():
            return reply
        differences = await self.presence.compare(agent_id, report.kernels, report.epoch, report.observed)
        return replace(reply, unknown_kernels=differences.unknown, unobserved_kernels=differences.unobserved)

    async def beat(self, report: BeatReport) -> BeatReply:
        """Records the contact of agents that report no change since their last heartbeat.

        An agent whose last heartbeat this process does not have, or did not fully admit, is returned as ``stale``.
        """
        stale_agents: list[str] = []
        unknown_kernels: dict[str, list[KernelPresence]] = {}
        for beat in report.beats:
            agent_id = AgentId(beat.agent_id)
            epoch, number, kernels, observed_number = self._held_kernels.get(agent_id, (0, -1, [], None))
            if not self._fingerprints.get(agent_id) or (epoch, number) != (beat.epoch, beat.unchanged_since):
                stale_agents.append(beat.agent_id)
                continue
            if (beat.epoch, beat.number) <= self._newest_heartbeat.get(agent_id, (0, 0)):
                continue
            self._newest_heartbeat[agent_id] = beat.epoch, beat.number
            self.record_contact(agent_id, self._speaker_of.get(agent_id, ""))
            await self._write_contact(agent_id)
            if self.leads():
                differences = await self.presence.compare(agent_id, kernels, epoch, observed_number)
                if differences.unknown:
                    unknown_kernels[beat.agent_id] = differences.unknown
                if differences.unobserved:  # the reply to a whole heartbeat names them
                    stale_agents.append(beat.agent_id)
        # Beats that come together are of one agent, or of agents with one speaker.
        speaker = next((self._speaker_of.get(AgentId(beat.agent_id), "") for beat in report.beats), "")
        interval_s = self._interval_s(speaker)
        return BeatReply(interval_s=interval_s, stale=stale_agents, unknown_kernels=unknown_kernels)

    def _interval_s(self, speaker: str) -> float:
        """Returns the seconds between the heartbeats of an agent, for which ``speaker`` reports if it is not empty."""
        return self.settings.speaker_interval_s if speaker else self.settings.heartbeat_interval_s

    async def _write_contact(self, agent_id: AgentId) -> None:
        """Stores the time of an agent's last heartbeat, at most once in ``_HEARTBEAT_WRITE_S`` seconds."""
        monotonic_now = self.clock.monotonic()
        if monotonic_now - self._last_written_at.get(agent_id, 0.0) >= _HEARTBEAT_WRITE_S:
            await self.agents.change(agent_id, last_heartbeat=self.clock.now())
            self._last_written_at[agent_id] = monotonic_now

    def _is_outdated(self, agent_id: AgentId, report: AgentReport) -> bool:
        """Returns True if a report of an agent is not newer than the newest report that was received from the agent.

        Records a newer report as the newest. A report without a number is never outdated.
        """
        epoch_and_number = report.epoch, report.number
        if report.number and epoch_and_number <= self._newest_heartbeat.get(agent_id, (0, 0)):
            log.info("an old heartbeat of agent %s is ignored", agent_id)
            return True
        self._newest_heartbeat[agent_id] = epoch_and_number
        return False

    @property
    def registered(self) -> Collection[AgentId]:
        """The ids of the agents that have registered with this process and have not been lost since."""
        return self._fingerprints.keys()

    def record_contact(self, agent_id: AgentId, speaker: str | None = None) -> None:
        """Records that an agent is alive now, and for a heartbeat also the process that speaks for the agent."""
        now = self.clock.monotonic()
        self.last_seen[agent_id] = now
        if speaker is None:
            return
        if not speaker:
            self._speaker_of.pop(agent_id, None)
            return
        self._speaker_of[agent_id] = speaker
        resumed_at, last_contact_at = self._speakers.get(speaker, (now, now))
        was_away = now - last_contact_at > self._speaker_silence_s
        self._speakers[speaker] = (now if was_away else resumed_at, now)

    def is_silent(self, agent_id: AgentId, since: float) -> bool:
        """Returns True if an agent counts as lost, since nothing was received from it during the timeout.

        If another process speaks for it, then only while that process is heard, and after three of the intervals in
        which that process reports: the silence of that process is not the node's, and counts after
        ``speaker_timeout_s``. Times before ``since`` do not count. An agent whose last report names a loss is silent.
        """
        if agent_id in self._losses:
            return True
        now = self.clock.monotonic()
        seen_at = max(self.last_seen.get(agent_id, 0.0), since)
        speaker = self._speakers.get(self._speaker_of.get(agent_id, ""))
        if speaker is None:
            return now - seen_at > self.settings.heartbeat_timeout_s
        resumed_at, last_contact_at = speaker
        if now - last_contact_at > self._speaker_silence_s:
            return now - max(last_contact_at, since) > self.settings.speaker_timeout_s
        return now - max(seen_at, resumed_at) > self._speaker_silence_s

    @property
    def _speaker_silence_s(self) -> float:
        """The seconds after which a process that speaks for agents is silent, or silent about one of them."""
        return max(self.settings.heartbeat_timeout_s, 3 * self.settings.speaker_interval_s)

    def loss_of(self, agent_id: AgentId) -> str:
        """Returns the reason for which the speaker of an agent calls its node lost; empty if it does not."""
        return self._losses.get(agent_id, "")

    def mark_lost(self, agent_id: AgentId) -> None:
        """Forgets the registration of a lost agent, so that its next heartbeat registers the agent again.

        Its epochs may begin anew, as after its data folder was removed.
        """
        self._fingerprints.pop(agent_id, None)
        self._newest_heartbeat.pop(agent_id, None)

    def become_leader(self) -> None:
        """Forgets all registrations and missing kernels, so that every agent registers again."""
        self._fingerprints.clear()
        self.presence.forget()

    async def _register(self, agent_id: AgentId, report: AgentReport) -> bool:
        """Stores a reported agent, and returns True if its overlay report was admitted without change."""
        if await self.resource_groups.resource_group(report.resource_group) is None:
            stored_agent = await self.agents.agent(agent_id)
            if stored_agent is not None and stored_agent.status is AgentStatus.ALIVE:
                await self.agents.set_status(agent_id, AgentStatus.LOST, at=self.clock.now())
                self.bus.publish(AGENTS)
            self.last_seen.pop(agent_id, None)
            self.mark_lost(agent_id)
            raise NotFound(
                f"There is no resource group {report.resource_group[:64]!r}; create it or change the agent's settings.",
                data={"resource_group": report.resource_group[:64]},
            )
        slot_types = _slot_types(report)
        async with self._registration_lock:
            overlay = await self._admitted_overlay(agent_id, report.overlay)
            await self._store(agent_id, replace(report, overlay=overlay), slot_types)
        return overlay == report.overlay

    async def _admitted_overlay(self, agent_id: AgentId, overlay: OverlayReport | None) -> OverlayReport | None:
        if overlay is None or overlay.why_not:
            return overlay
        other_reports = await self.agents.underlays()
        other_reports.pop(agent_id, None)
        admitted_report = admit_overlay(overlay, other_reports)
        if admitted_report.why_not and self._fingerprints.get(agent_id) != b"":
            log.warning("agent %s takes no part in networks over several agents: %s", agent_id, admitted_report.why_not)
        return admitted_report

    async def _store(self, agent_id: AgentId, report: AgentReport, slot_types: Sequence[SlotTypeInfo]) -> None:
        now = self.clock.now()
        offered_slots = ResourceSlot.parse({slot.slot_name: slot.amount for slot in report.slots}).nonzero()
        reason_of_refused_slot = await self.slots.add_reported_slots(agent_id, slot_types)
        report = _without_slots(report, reason_of_refused_slot)
        stored_agent = await self.agents.agent(agent_id)
        accepted_slots = ResourceSlot(
            {name: quantity for name, quantity in offered_slots.items() if name not in reason_of_refused_slot}
        )
        is_alive = stored_agent is not None and stored_agent.status is AgentStatus.ALIVE
        reported_values: dict[str, Any] = {name: getattr(report, name) for name in _REPORTED_FIELDS}
        reported_values |= {name: tuple(getattr(report, name)) for name in _REPORTED_LIST_FIELDS}
        reported_values["runtime_classes"] = _countable_classes(agent_id, report.runtime_classes)
        await self.agents.put_agent(
            Agent(
                id=agent_id,
                status=AgentStatus.ALIVE,
                status_changed=stored_agent.status_changed if stored_agent is not None and is_alive else now,
                architecture=architecture_name(report.architecture),
                scaling_group=await self.assignments.group_of(agent_id, report.resource_group),
                schedulable=stored_agent.schedulable if stored_agent is not None else True,
                available_slots=accepted_slots,
                first_contact=stored_agent.first_contact if stored_agent is not None else now,
                last_heartbeat=now,
                enforcement={name: enforcement.value for name, enforcement in report.enforcement.items()},
                **reported_values,
            )
        )
        if stored_agent is None:
            log.info("agent %s joined %s with %s", agent_id, report.resource_group, accepted_slots.to_json())


def _countable_classes(agent_id: AgentId, classes: Sequence[RuntimeClassReport]) -> tuple[RuntimeClassReport, ...]:
    """Returns the runtime classes whose overhead can be counted with. Sessions of a class read that of all agents."""
    countable_classes: list[RuntimeClassReport] = []
    for runtime_class in classes:
        try:
            overhead = ResourceSlot.parse(runtime_class.overhead)
        except InvalidQuantity as e:
            log.warning("the runtime class %s of agent %s cannot be used: %s", runtime_class.name, agent_id, e)
            continue
        if all(amount.is_finite() for amount in overhead.values()):
            countable_classes.append(runtime_class)
    return tuple(countable_classes)


def _slot_types(report: AgentReport) -> list[SlotTypeInfo]:
    try:
        return [
            SlotTypeInfo(
                slot_name=SlotName(check_slot_name(slot.slot_name)),
                slot_type=SlotType(slot.slot_type),
                display=_display_data(slot),
            )
            for slot in report.slots
        ]
    except ValueError as e:
        raise InvalidInput(f"the report has a slot of no known type: {e}", data={"slots": "malformed"}) from None


def _display_data(slot: SlotReport) -> Mapping[str, Any]:
    """Returns the display data that an agent reports for a slot, or an empty map if the data are malformed.

    An agent with malformed display data is thus still registered.
    """
    if not slot.display:
        return {}
    try:
        display: dict[str, Any] = msgspec.to_builtins(msgspec.convert(slot.display, SlotDisplay))
    except msgspec.ValidationError as e:
        log.warning("the display data of the slot %s cannot be read: %s", slot.slot_name, e)
        return {}
    return display


def _without_slots(report: AgentReport, reason_of_refused_slot: Mapping[str, str]) -> AgentReport:
    """Returns a report without the refused slots, with the reasons added to the plugins that offer these slots."""
    if not reason_of_refused_slot:
        return report
    devices: list[dict[str, Any]] = []
    reasons_of_plugin: dict[str, list[str]] = {}
    for device in report.devices:
        slots = device.get("slots", ())
        devices.append(
            {**device, "slots": [slot for slot in slots if slot.get("slot_name") not in reason_of_refused_slot]}
        )
        for slot_name in {slot.get("slot_name") for slot in slots} & reason_of_refused_slot.keys():
            reasons_of_plugin.setdefault(str(device.get("device_name")), []).append(reason_of_refused_slot[slot_name])
    plugins = [
        replace(
            plugin, reason="; ".join([*filter(None, [plugin.reason]), *dict.fromkeys(reasons_of_plugin[plugin.name])])
        )
        if plugin.name in reasons_of_plugin
        else plugin
        for plugin in report.plugins
    ]
    return replace(report, devices=devices, plugins=plugins)


def check_version(agent_id: str, version: str) -> None:
    """Raises InvalidInput for an agent whose release is older than :data:`OLDEST_RELEASE`. Versions that do not count
    by the calendar, as those of a source tree, are taken.
    """
    match = _CALENDAR_VERSION.match(version)
    if match is not None and (int(match[1]), int(match[2])) < OLDEST_RELEASE:
        oldest_release = ".".join(map(str, OLDEST_RELEASE))
        raise InvalidInput(
            f"The agent {agent_id} is of version {version[:_MAX_SHOWN_CHARACTERS]}, this manager takes"
            f" {oldest_release} and newer: install a newer version on its node, and restart it. Its sessions run on.",
            data={"version": "too old"},
        )
