"""The ports of agents: their store, their commands, and the data of sessions that they need."""

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
        """Changes fields of an agent, if it exists."""

    async def agent(self, agent_id: AgentId) -> Agent | None: ...
    async def agents(self, *, scaling_group: str | None = None) -> list[Agent]: ...
    async def states(self) -> Mapping[AgentId, AgentState]:
        """Returns what may have changed of each agent, without what an agent reports."""
        ...

    async def count_by_status(self) -> Mapping[AgentStatus, int]:
        """Returns how many agents there are in each status that an agent has."""
        ...

    async def underlays(self) -> dict[AgentId, OverlayReport]:
        """Returns the overlay reports of living agents that have made one."""
        ...

    async def page(self, query: ListQuery, *, status: str | None, scaling_group: str | None) -> Page[Agent]: ...
    async def add_slot_types(self, slots: Iterable[SlotTypeInfo]) -> None:
        """Inserts slot types, or replaces slot types of the same name."""

    async def slot_types(self) -> list[SlotTypeInfo]: ...


class Occupancy(Protocol):
    """Lists the kernels that occupy agents."""

    async def held(self, agent_ids: Collection[AgentId]) -> list[KernelOccupancy]: ...


class SlotUse(Protocol):
    """Finds the live sessions that depend on the type of a slot."""

    async def slot_user(self, slot: str) -> str | None:
        """Returns the name of a live session that requests the slot, for a message; None if there is none."""
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
        """Forgets which kernels were missing in earlier heartbeats."""


class Drainage(Protocol):
    """Ends the sessions that hold a device which an administrator drains."""

    async def end(self, session_ids: Sequence[SessionId], *, start_over: bool, stimulus_id: str) -> None:
        """Asks sessions to end, but those that are ending; with ``start_over`` batch sessions wait again."""
        ...


class AgentGateway(Protocol):
    """Sends commands to agents (``infra.rpc.endpoints.ManagerEndpoint`` implements it)."""

    def agent(self, agent_id: str) -> AgentCommands:
        """Returns the commands of an agent, which raise Unavailable while the agent is not connected."""
        ...


class WatcherGateway(Protocol):
    """Calls the watchers of agents."""

    async def call(self, method: str, host: str, port: str, path: str, *, token: str) -> Mapping[str, Any]:
        """Returns the object that a watcher replies with. Raises InvalidInput (no address), Unavailable."""
        ...
