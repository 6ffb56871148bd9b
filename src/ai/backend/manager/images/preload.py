"""Preloads images on selected agents and removes them (``preload_image``, ``unload_image``)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from fnmatch import fnmatchcase
from functools import partial

import msgspec

from ai.backend.common.errors import BackendError, InvalidInput, Unavailable, from_wire
from ai.backend.common.ids import AgentId, TaskId
from ai.backend.common.states import AgentStatus
from ai.backend.common.wire.agent import ImageJob, ImageJobState
from ai.backend.infra.bounded import bounded
from ai.backend.infra.clock import IdGenerator
from ai.backend.manager.access.caller import Caller
from ai.backend.manager.access.checks import require
from ai.backend.manager.access.permissions import Operation
from ai.backend.manager.agents.model import Agent
from ai.backend.manager.agents.store import AgentGateway, AgentStore
from ai.backend.manager.images.registries import ImagePulls
from ai.backend.manager.images.service import ImageService
from ai.backend.manager.tasks.service import TaskProgress, TaskService

_RETRY_PAUSE_S = 1.0
_MAX_CONSECUTIVE_FAILURES = 60
"""The number of failures in a row after which an agent counts as lost."""


async def await_job(
    gateway: AgentGateway,
    agent: AgentId,
    job: ImageJob,
    report: Callable[[ImageJobState], Awaitable[None]] | None = None,
) -> ImageJobState:
    """Starts or joins a job on images of an agent, and returns the state of the job when it has ended. Raises
    BackendError: the agent refused the job or failed; Unavailable: the agent is lost.
    """
    failures = 0
    while True:
        try:
            state = await gateway.agent(agent).image_job(job)
            failures = 0
        except Unavailable:
            failures += 1
            if failures >= _MAX_CONSECUTIVE_FAILURES:
                raise
            await asyncio.sleep(_RETRY_PAUSE_S)
            continue
        if state.state == "done":
            return state
        if state.state == "failed":
            raise from_wire(state.code, state.message)
        if report is not None:
            await report(state)


_GROUP_PREFIXES = ("group:", "scaling-group:", "sgroup:")


def select_agents(agents: Iterable[Agent], expression: str) -> list[Agent]:
    """Returns the agents that a comma-separated expression selects, in their order.

    A term is an agent's id, a pattern of ids with ``*`` and ``?``, or ``group:NAME`` for a resource group, which may be
    a pattern, too. ``!TERM`` removes agents from the selection so far; as the first term, from all agents.

    >>> select_agents([], "*,!i-gpu-*")
    []

    Raises:
        InvalidInput: the expression is empty, or a term matches no agent.
    """
    terms = [term.strip() for term in expression.split(",") if term.strip()]
    if not terms or len(expression) > 4096:
        raise InvalidInput("No agents are named: '*', an id, or group:NAME.", data={"target_agents": "malformed"})
    candidates = list(agents)
    chosen_ids: set[str] = {agent.id for agent in candidates} if terms[0].startswith("!") else set()
    for term in terms:
        matching_ids = {agent.id for agent in candidates if _matches_term(agent, term.removeprefix("!"))}
        if not matching_ids and candidates:
            raise InvalidInput(f"{term[:64]!r} names no agent that is alive.", data={"target_agents": "unknown"})
        chosen_ids = chosen_ids - matching_ids if term.startswith("!") else chosen_ids | matching_ids
    return [agent for agent in candidates if agent.id in chosen_ids]


def _matches_term(agent: Agent, term: str) -> bool:
    for prefix in _GROUP_PREFIXES:
        if term.startswith(prefix):
            return fnmatchcase(agent.scaling_group, term.removeprefix(prefix))
    return fnmatchcase(agent.id, term)


_MAX_CONCURRENT_AGENTS = 8


class ImagePreloader(msgspec.Struct, frozen=True):
    """Starts background tasks that preload or remove images and report the agents that failed."""

    images: ImageService
    agents: AgentStore
    pulls: ImagePulls
    gateway: AgentGateway
    tasks: TaskService
    id_generator: IdGenerator

    async def preload(
        self, caller: Caller, reference: str, target_agents: str, architecture: str | None = None
    ) -> TaskId:
        """Starts a background task that fetches an image on the agents of an expression; see :func:`select_agents`.
        Raises Forbidden, ImageNotFound; InvalidInput: no agent matches or could run it, or no registry has it.
        """
        require(caller, Operation.PLACE_IMAGES)
        image = await self.images.image(caller, reference, architecture)
        if not image.is_registered:
            raise InvalidInput(f"No registry has {image.name}.", data={"reference": "of no registry"})
        agents = await self.alive_agents(target_agents)
        capable_agents = [agent for agent in agents if agent.can_pull and agent.architecture == image.architecture]
        if not capable_agents:
            raise InvalidInput(
                f"None of these agents fetches images for {image.architecture}.", data={"target_agents": "unfit"}
            )
        access = await self.pulls.registry_access([image.name])
        job = partial(
            ImageJob, action="pull", image=image.name, digest=image.digest, access=access[0] if access else None
        )
        return await self.start_task(caller, f"preload {image.name}", capable_agents, job)

    async def unload(
        self, caller: Caller, reference: str, target_agents: str, architecture: str | None = None
    ) -> TaskId:
        """Starts a background task that removes an image from agents. Raises as :meth:`preload`, and InvalidInput if
        none has it.
        """
        require(caller, Operation.PLACE_IMAGES)
        image = await self.images.image(caller, reference, architecture)
        agents_with_image = [agent for agent in await self.alive_agents(target_agents) if agent.id in image.agents]
        if not agents_with_image:
            raise InvalidInput(f"None of these agents has {image.name}.", data={"target_agents": "without it"})
        job = partial(ImageJob, action="remove", image=image.name)
        return await self.start_task(caller, f"unload {image.name}", agents_with_image, job)

    async def alive_agents(self, expression: str) -> list[Agent]:
        """Returns the live agents that an expression selects. Raises InvalidInput: there is none."""
        return select_agents(
            (agent for agent in await self.agents.agents() if agent.status is AgentStatus.ALIVE), expression
        )

    async def start_task(
        self, caller: Caller, title: str, agents: Sequence[Agent], job: Callable[..., ImageJob]
    ) -> TaskId:
        """Starts a background task that runs a job on each of the agents."""

        async def work(progress: TaskProgress) -> str:
            return await self._run_on_all(title, agents, job, progress)

        return await self.tasks.start(caller, title, work)

    async def _run_on_all(
        self, title: str, agents: Sequence[Agent], job: Callable[..., ImageJob], progress: TaskProgress
    ) -> str:
        error_by_agent: dict[str, BackendError] = {}
        finished_count, agent_count = 0, len(agents)

        async def run_on(agent: Agent) -> AgentId:
            async def report(state: ImageJobState) -> None:
                if state.total:
                    await progress.update(
                        finished_count, agent_count, f"{agent.id}: {state.current * 100 // state.total} %"
                    )

            try:
                await await_job(self.gateway, agent.id, job(job_id=str(self.id_generator.uuid())), report)
            except BackendError as e:
                error_by_agent[agent.id] = e
            return agent.id

        await progress.update(0, agent_count, title)
        async for agent_id in bounded(agents, run_on, _MAX_CONCURRENT_AGENTS):
            finished_count += 1
            agent_result = error_by_agent[agent_id].message if agent_id in error_by_agent else "done"
            await progress.update(finished_count, agent_count, f"{agent_id}: {agent_result}")
        problems = "; ".join(f"{agent_id}: {error.message}" for agent_id, error in sorted(error_by_agent.items()))
        if len(error_by_agent) == agent_count:
            raise Unavailable(problems) if agent_count > 1 else next(iter(error_by_agent.values()))
        return f"{title}: done on {agent_count - len(error_by_agent)} of {agent_count} agents" + (
            f"; {problems}" if problems else ""
        )
