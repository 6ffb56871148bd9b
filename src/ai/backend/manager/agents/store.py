"""Declares the stores and gateways of agents, and the data of sessions that agents need."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol

from ai.backend.common.ids import AgentId, SessionId
from ai.backend.common.states import AgentStatus
from ai.backend.common.wire.link import AgentCommands
from ai.backend.common.wire.reports import KernelPresence, OverlayReport
from ai.backend.manager.agents.model import Agent, AgentState, KernelOccupancy, PresenceDifferences, SlotTypeInfo
from ai.backend.manager.query.model import ListQuery, Page


class AgentStore(Protocol):
    """Stores agents and slot types. Only the store of sessions writes ``occupied_slots``."""

    async def put_agent(self, agent: Agent) -> None: ...
    async def set_status(self, agent_id: AgentId, status: AgentStatus, *, at: datetime) -> None: ...
    async def change(self, agent_id: AgentId, **values: Any) -> None:
        """Changes fields of an agent, or does nothing if the agent does not exist."""

    async def agent(self, agent_id: AgentId) -> Agent | None: ...
    async def agents(self, *, scaling_group: str | None = None) -> list[Agent]: ...
    async def states(self) -> Mapping[AgentId, AgentState]:
        """Returns, by agent, the fields that change while an agent runs, without the rest of its report."""
        ...

    async def count_by_status(self) -> Mapping[AgentStatus, int]:
        """Returns the number of agents in each status; statuses without agents are left out."""
        ...

    async def underlays(self) -> dict[AgentId, OverlayReport]:
        """Returns the overlay reports of living agents; agents without a report are left out."""
        ...

    async def page(self, query: ListQuery, *, status: str | None, scaling_group: str | None) -> Page[Agent]: ...
    async def add_slot_types(self, slots: Iterable[SlotTypeInfo]) -> None:
        """Inserts slot types, or replaces slot types of the same name."""

    async def slot_types(self) -> list[SlotTypeInfo]: ...


class Occupancy(Protocol):
    """Lists the kernels that occupy agents."""

    async def held(self, agent_ids: Collection[AgentId]) -> list[KernelOccupancy]: ...


class SlotUse(Protocol):
    """Finds a live session that requests a slot, because the type of a slot in use must not change."""

    async def slot_user(self, slot: str) -> str | None:
        """Returns the name of a live session that requests the slot, or None if no session does."""
        ...


class PresenceComparison(Protocol):
    """Compares the kernels that an agent holds with the kernels that it should hold."""

    async def compare(
        self, agent_id: AgentId, reported: Sequence[KernelPresence], epoch: int, observed: int | None
    ) -> PresenceDifferences:
        """Ends the sessions of missing kernels and returns the kernels that the agent should remove or report.

        ``observed`` is the newest observation of ``epoch`` when the agent made the report; None if it does not say.
        """
        ...

    def forget(self) -> None:
        """Forgets the kernels that were missing in earlier heartbeats."""


class Drainage(Protocol):
    """Ends the sessions that hold a device which an administrator drains."""

    async def end(self, session_ids: Sequence[SessionId], *, start_over: bool, stimulus_id: str) -> None:
        """Requests the end of the given sessions that are not ending yet.

        With ``start_over``, batch sessions wait to run again.
        """
        ...


class AgentGateway(Protocol):
    """Gives access to the commands of agents (``infra.rpc.endpoints.ManagerEndpoint`` implements it)."""

    def agent(self, agent_id: str) -> AgentCommands:
        """Returns the commands of an agent; each command raises Unavailable while the agent is not connected."""
        ...


class WatcherGateway(Protocol):
    """Calls the watchers of agents."""

    async def call(self, method: str, host: str, port: str, path: str, *, token: str) -> Mapping[str, Any]:
        """Sends a request to a watcher and returns the object of its reply. Raises InvalidInput (no address),
        Unavailable.
        """
        ...
