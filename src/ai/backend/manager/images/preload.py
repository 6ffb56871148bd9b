"""Preloads images on agents and removes them (``preload_image``, ``unload_image``)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from ai.backend.common.errors import BackendError, InvalidInput, Unavailable
from ai.backend.common.ids import AgentId, TaskId
from ai.backend.common.states import AgentStatus
from ai.backend.common.wire.agent import ImageJob, ImageJobState
from ai.backend.infra.bounded import bounded
from ai.backend.infra.clock import IdGenerator
from ai.backend.manager.access.caller import Caller
from ai.backend.manager.access.checks import require
from ai.backend.manager.access.permissions import Operation
from ai.backend.manager.agents.gateway import AgentGateway
from ai.backend.manager.agents.model import Agent
from ai.backend.manager.agents.store import AgentStore
from ai.backend.manager.images.jobs import await_job
from ai.backend.manager.images.pulls import ImagePulls
from ai.backend.manager.images.service import ImageService
from ai.backend.manager.images.targets import chosen_agents
from ai.backend.manager.tasks.service import TaskProgress, TaskService

_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class ImagePreloader:
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
        """Starts fetching an image on the agents of an expression; see :func:`chosen_agents`. Raises Forbidden,
        ImageNotFound; InvalidInput: no agent matches or could run it, or no registry has it."""
        require(caller, Operation.PLACE_IMAGES)
        image = await self.images.image(caller, reference, architecture)
        if not image.is_registered:
            raise InvalidInput(f"No registry has {image.name}.", data={"reference": "of no registry"})
        agents = await self._chosen(target_agents)
        capable = [a for a in agents if a.can_pull and a.architecture == image.architecture]
        if not capable:
            raise InvalidInput(
                f"None of these agents fetches images for {image.architecture}.", data={"target_agents": "unfit"}
            )
        access = await self.pulls.access([image.name])
        job = partial(
            ImageJob, action="pull", image=image.name, digest=image.digest, access=access[0] if access else None
        )
        return await self._begin(caller, f"preload {image.name}", capable, job)

    async def unload(
        self, caller: Caller, reference: str, target_agents: str, architecture: str | None = None
    ) -> TaskId:
        """Starts removing an image from agents. Raises as :meth:`preload`, and InvalidInput if none has it."""
        require(caller, Operation.PLACE_IMAGES)
        image = await self.images.image(caller, reference, architecture)
        holders = [a for a in await self._chosen(target_agents) if a.id in image.agents]
        if not holders:
            raise InvalidInput(f"None of these agents has {image.name}.", data={"target_agents": "without it"})
        job = partial(ImageJob, action="remove", image=image.name)
        return await self._begin(caller, f"unload {image.name}", holders, job)

    async def _chosen(self, expression: str) -> list[Agent]:
        return chosen_agents((a for a in await self.agents.agents() if a.status is AgentStatus.ALIVE), expression)

    async def _begin(self, caller: Caller, title: str, agents: Sequence[Agent], job: Callable[..., ImageJob]) -> TaskId:
        async def work(progress: TaskProgress) -> str:
            return await self._run_on_all(title, agents, job, progress)

        return await self.tasks.start(caller, title, work)

    async def _run_on_all(
        self, title: str, agents: Sequence[Agent], job: Callable[..., ImageJob], progress: TaskProgress
    ) -> str:
        failures: dict[str, BackendError] = {}
        done, total = 0, len(agents)

        async def run(agent: Agent) -> AgentId:
            async def report(state: ImageJobState) -> None:
                if state.total:
                    await progress.update(done, total, f"{agent.id}: {state.current * 100 // state.total} %")

            try:
                await await_job(self.gateway, agent.id, job(job_id=str(self.id_generator.uuid())), report)
            except BackendError as e:
                failures[agent.id] = e
            return agent.id

        await progress.update(0, total, title)
        async for agent_id in bounded(agents, run, _AT_ONCE):
            done += 1
            outcome = failures[agent_id].message if agent_id in failures else "done"
            await progress.update(done, total, f"{agent_id}: {outcome}")
        problems = "; ".join(f"{agent_id}: {error.message}" for agent_id, error in sorted(failures.items()))
        if len(failures) == total:
            raise Unavailable(problems) if total > 1 else next(iter(failures.values()))
        return f"{title}: done on {total - len(failures)} of {total} agents" + (f"; {problems}" if problems else "")
