"""Connects an agent to several managers. Every manager may command the agent and receives its reports."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

from ai.backend.common.errors import DeadlineExceeded, NotSupported, Unavailable
from ai.backend.common.wire.link import ManagerReports
from ai.backend.common.wire.reports import (
    AgentReport,
    BeatReply,
    BeatReport,
    HeartbeatReply,
    KeptDevices,
    KeptDevicesOf,
    ObservationReport,
    StatReport,
)
from ai.backend.infra.rpc.beats import GATHER_S, ChangedReports
from ai.backend.infra.rpc.endpoints import AgentEndpoint, ServedAgents

log = logging.getLogger(__name__)
_ReplyT = TypeVar("_ReplyT")
_AWAY_ERRORS = (Unavailable, DeadlineExceeded)


class _ManagerLink:
    """Holds the link to one manager, and the last reports that were sent to the manager."""

    def __init__(self, public_key: str, endpoint: AgentEndpoint, gather_s: float) -> None:
        self.public_key = public_key
        self.endpoint = endpoint
        self.reports: ManagerReports = ChangedReports(endpoint.reports, gather_s=gather_s)


class ManagerFanout:
    """Combines one :class:`~ai.backend.infra.rpc.endpoints.AgentEndpoint` per manager, by address and public key.

    Heartbeats and statistics go to all managers; one that accepts a heartbeat is enough. Observations go to one, the
    same as long as it answers: any manager can apply them, and they are numbered. Heartbeats without news of several
    agents within ``beats_gather_s`` are one call.
    """

    def __init__(
        self,
        make_endpoint: Callable[[str, str], AgentEndpoint],
        managers: Mapping[str, str],
        *,
        beats_gather_s: float = GATHER_S,
    ) -> None:
        self._beats_gather_s = beats_gather_s
        self._make = make_endpoint
        self._ends = {
            address: _ManagerLink(public_key, make_endpoint(address, public_key), beats_gather_s)
            for address, public_key in managers.items()
        }
        self._unlisted: set[str] = set()
        self._commands: ServedAgents | None = None
        self._reports = _Reports(self)

    @property
    def reports(self) -> ManagerReports:
        return self._reports

    @property
    def endpoints(self) -> dict[str, ManagerReports]:
        """The endpoints by address."""
        return {address: link.reports for address, link in self._ends.items()}

    async def start(self, commands: ServedAgents) -> None:
        self._commands = commands
        for link in self._ends.values():
            await link.endpoint.start(commands)

    async def stop(self) -> None:
        await asyncio.gather(*(link.endpoint.stop() for link in self._ends.values()))
        self._commands = None

    async def change(self, managers: Mapping[str, str]) -> None:
        """Connects to the given managers from now on. Existing links to them stay. An empty mapping changes nothing.

        A manager that is not listed any more is kept while it accepts heartbeats.
        """
        if not managers:
            return
        self._unlisted = {address for address in self._ends if address not in managers}
        for address, link in list(self._ends.items()):
            if managers.get(address, link.public_key) != link.public_key:
                await self._disconnect(address)
        for address, public_key in managers.items():
            if address not in self._ends:
                endpoint = self._make(address, public_key)
                self._ends[address] = _ManagerLink(public_key, endpoint, self._beats_gather_s)
                if self._commands is not None:
                    await endpoint.start(self._commands)

    async def drop_unlisted(self, silent_addresses: set[str]) -> None:
        """Disconnects the managers at ``silent_addresses`` that are no longer listed."""
        for address in self._unlisted & silent_addresses:
            await self._disconnect(address)

    async def _disconnect(self, address: str) -> None:
        self._unlisted.discard(address)
        if address in self._ends:
            log.info("the manager at %s is not listed any more", address)
            await self._ends.pop(address).endpoint.stop()


class _Reports:
    """Sends reports to several managers."""

    def __init__(self, fanout: ManagerFanout) -> None:
        self._ends = fanout
        self._last = ""

    async def heartbeat(self, report: AgentReport) -> HeartbeatReply:
        endpoints = self._ends.endpoints
        replies = await asyncio.gather(
            *(endpoint.heartbeat(report) for endpoint in endpoints.values()), return_exceptions=True
        )
        silent_addresses = {
            address for address, reply in zip(endpoints, replies, strict=True) if isinstance(reply, _AWAY_ERRORS)
        }
        await self._ends.drop_unlisted(silent_addresses)
        accepted_replies = [reply for reply in replies if isinstance(reply, HeartbeatReply)]
        if not accepted_replies:
            errors = [reply for reply in replies if isinstance(reply, BaseException)]
            raise next(
                (error for error in errors if not isinstance(error, _AWAY_ERRORS)),
                errors[0] if errors else Unavailable("no manager"),
            )
        # A heartbeat lasts as long as the wait for an unavailable manager, so the others determine the interval.
        return HeartbeatReply(
            interval_s=min(reply.interval_s for reply in accepted_replies),
            unknown_kernels=[kernel for reply in accepted_replies for kernel in reply.unknown_kernels],
            unobserved_kernels=[kernel for reply in accepted_replies for kernel in reply.unobserved_kernels],
        )

    async def beat(self, report: BeatReport) -> BeatReply:
        """Raises NotSupported, because each link decides for its own manager which heartbeats have no news."""
        raise NotSupported("heartbeats go to several managers as a whole")

    async def observe(self, report: ObservationReport) -> int:
        return await self._ask_one(lambda manager: manager.observe(report))

    async def kept_devices(self, req: KeptDevicesOf) -> KeptDevices:
        return await self._ask_one(lambda manager: manager.kept_devices(req))

    async def _ask_one(self, call: Callable[[ManagerReports], Awaitable[_ReplyT]]) -> _ReplyT:
        """Calls the managers one after the other until one replies. The manager that replied last is called first."""
        endpoints = self._ends.endpoints
        last_error: Exception = Unavailable("no manager is listed")
        for address in sorted(endpoints, key=lambda listed: listed != self._last):
            try:
                reply = await call(endpoints[address])
            except _AWAY_ERRORS as e:
                last_error = e
                continue
            self._last = address
            return reply
        raise last_error

    async def report_stats(self, report: StatReport) -> None:
        endpoints = self._ends.endpoints.values()
        replies = await asyncio.gather(
            *(endpoint.report_stats(report) for endpoint in endpoints), return_exceptions=True
        )
        failures = [reply for reply in replies if isinstance(reply, Exception)]
        if failures and len(failures) == len(replies):
            raise failures[0]
