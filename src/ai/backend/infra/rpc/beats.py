"""Reduces heartbeats to one manager: agents with news send whole heartbeats, all others share one short call."""

from __future__ import annotations

import asyncio

import msgspec

from ai.backend.common.errors import InvalidInput
from ai.backend.common.structs import replace
from ai.backend.common.wire.link import ManagerReports
from ai.backend.common.wire.reports import (
    AgentReport,
    Beat,
    BeatReply,
    BeatReport,
    HeartbeatReply,
    KeptDevices,
    KeptDevicesOf,
    ObservationReport,
    StatReport,
)

GATHER_S = 0.02
"""The seconds in which the beats of several agents join one call."""
_MAX_BEATS = 1000


class _Accepted(msgspec.Struct, frozen=True):
    """Holds the last whole heartbeat of an agent that the manager has accepted."""

    number: int
    content: AgentReport


class ChangedReports:
    """Sends the reports of one or many agents to one manager.

    A heartbeat that says the same as the last one that the manager has accepted goes as a :class:`Beat`; those of many
    agents at about the same time are one call. The manager asks for a whole one where it has no such heartbeat, being
    new. A manager of an earlier release, which knows no beats, gets whole heartbeats.
    """

    def __init__(self, manager: ManagerReports, *, gather_s: float = GATHER_S) -> None:
        self._gather_s = gather_s
        self._manager = manager
        self._accepted: dict[str, _Accepted] = {}
        self._gathering: tuple[list[Beat], asyncio.Task[BeatReply]] | None = None
        self._has_beats = True

    async def heartbeat(self, report: AgentReport) -> HeartbeatReply:
        unnumbered_report = replace(report, number=0)
        accepted_heartbeat = self._accepted.get(report.agent_id)
        if (
            self._has_beats
            and accepted_heartbeat is not None
            and accepted_heartbeat.content == unnumbered_report
            and report.number
        ):
            # The newer objects are kept: those of the next report are mostly the same ones, which compare at once.
            self._accepted[report.agent_id] = _Accepted(accepted_heartbeat.number, unnumbered_report)
            beat = Beat(
                agent_id=report.agent_id,
                epoch=report.epoch,
                number=report.number,
                unchanged_since=accepted_heartbeat.number,
            )
            try:
                reply = await self._send_joined(beat)
            except InvalidInput:
                self._has_beats = False
            else:
                if report.agent_id not in reply.stale:
                    unknown_kernels = reply.unknown_kernels.get(report.agent_id, [])
                    return HeartbeatReply(interval_s=reply.interval_s, unknown_kernels=unknown_kernels)
        whole_reply = await self._manager.heartbeat(report)
        self._accepted[report.agent_id] = _Accepted(report.number, unnumbered_report)
        return whole_reply

    async def _send_joined(self, beat: Beat) -> BeatReply:
        if self._gathering is None:
            beats: list[Beat] = []
            self._gathering = beats, asyncio.create_task(self._send(beats), name="link-beats")
        beats, send_task = self._gathering
        beats.append(beat)
        if len(beats) >= _MAX_BEATS:
            self._gathering = None
        return await asyncio.shield(send_task)

    async def _send(self, beats: list[Beat]) -> BeatReply:
        await asyncio.sleep(self._gather_s)
        if self._gathering is not None and self._gathering[0] is beats:
            self._gathering = None
        return await self._manager.beat(BeatReport(beats=beats))

    async def beat(self, report: BeatReport) -> BeatReply:
        """Sends beats that the caller has collected to the manager, unchanged."""
        return await self._manager.beat(report)

    async def observe(self, report: ObservationReport) -> int:
        return await self._manager.observe(report)

    async def report_stats(self, report: StatReport) -> None:
        await self._manager.report_stats(report)

    async def kept_devices(self, req: KeptDevicesOf) -> KeptDevices:
        return await self._manager.kept_devices(req)
