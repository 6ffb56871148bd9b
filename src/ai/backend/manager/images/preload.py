"""Preloads images on agents and removes them (``preload_image``, ``unload_image``)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from ai.backend.common.errors import BackendError, InvalidInput, Unavailable
from ai.backend.common.ids import TaskId
from ai.backend.common.states import AgentStatus
from ai.backend.common.wire.agent import ImageJob, ImageJobState
from ai.backend.infra.clock import IdGenerator
from ai.backend.manager.access.caller import Caller
from ai.backend.manager.agents.model import Agent
from ai.backend.manager.agents.store import AgentGateway, AgentStore
from ai.backend.manager.images.jobs import await_job
from ai.backend.manager.images.model import Image
from ai.backend.manager.images.pulls import ImagePulls
from ai.backend.manager.images.registries import require_superadmin
from ai.backend.manager.images.service import ImageService
from ai.backend.manager.images.targets import chosen_agents
from ai.backend.manager.tasks.service import TaskProgress, TaskService

_AT_ONCE = 8


class ImagePreloader:
    """Starts background tasks that preload or remove images and report the agents that failed."""

    def __init__(
        self,
        catalogue: ImageService,
        agents: AgentStore,
        provision: ImagePulls,
        gateway: AgentGateway,
        tasks: TaskService,
        id_generator: IdGenerator,
    ) -> None:
        self._catalogue = catalogue
        self._agents = agents
        self._provision = provision
        self._gateway = gateway
        self._tasks = tasks
        self._id_generator = id_generator

    async def preload(
        self, caller: Caller, reference: str, target_agents: str, architecture: str | None = None
    ) -> TaskId:
        """Starts fetching an image on the agents of an expression; see :func:`chosen_agents`.

        Raises:
            Forbidden, ImageNotFound
            InvalidInput: no agent matches or could run it, or no registry has it.
        """
        require_superadmin(caller, "bring images to agents")
        image = await self._catalogue.image(caller, reference, architecture)
        if not image.is_registered:
            raise InvalidInput(f"No registry has {image.name}.", data={"reference": "of no registry"})
        agents = await self._chosen(target_agents)
        capable = [a for a in agents if a.can_pull and a.architecture == image.architecture]
        if not capable:
            raise InvalidInput(
                f"None of these agents fetches images for {image.architecture}.", data={"target_agents": "unfit"}
            )
        access = await self._provision.access([image.name])

        def job(agent: Agent, job_id: str) -> ImageJob:
            return ImageJob(
                job_id=job_id,
                action="pull",
                image=image.name,
                digest=image.digest,
                access=access[0] if access else None,
            )

        return await self._begin(caller, f"preload {image.name}", capable, job)

    async def unload(
        self, caller: Caller, reference: str, target_agents: str, architecture: str | None = None
    ) -> TaskId:
        """Starts removing an image from agents. Raises as :meth:`preload`, and InvalidInput if none has it."""
        require_superadmin(caller, "remove images from agents")
        image: Image = await self._catalogue.image(caller, reference, architecture)
        holders = [a for a in await self._chosen(target_agents) if a.id in image.agents]
        if not holders:
            raise InvalidInput(f"None of these agents has {image.name}.", data={"target_agents": "without it"})

        def job(agent: Agent, job_id: str) -> ImageJob:
            return ImageJob(job_id=job_id, action="remove", image=image.name)

        return await self._begin(caller, f"unload {image.name}", holders, job)

    async def _chosen(self, expression: str) -> list[Agent]:
        return chosen_agents((a for a in await self._agents.agents() if a.status is AgentStatus.ALIVE), expression)

    async def _begin(
        self, caller: Caller, title: str, agents: Sequence[Agent], job: Callable[[Agent, str], ImageJob]
    ) -> TaskId:
        async def work(progress: TaskProgress) -> str:
            return await self._on_all(title, agents, job, progress)

        return await self._tasks.start(caller, title, work)

    async def _on_all(
        self, title: str, agents: Sequence[Agent], job: Callable[[Agent, str], ImageJob], progress: TaskProgress
    ) -> str:
        slots = asyncio.Semaphore(_AT_ONCE)
        failures: dict[str, BackendError] = {}
        done = 0

        async def on_one(agent: Agent) -> None:
            nonlocal done
            request = job(agent, str(self._id_generator.uuid()))
            async with slots:
                try:
                    await await_job(
                        self._gateway, agent.id, request, _reporter(progress, agent, lambda: done, len(agents))
                    )
                except BackendError as e:
                    failures[agent.id] = e
            done += 1
            await progress.update(done, len(agents), f"{agent.id}: {_outcome(failures.get(agent.id))}")

        await progress.update(0, len(agents), title)
        await asyncio.gather(*(on_one(agent) for agent in agents))
        problems = "; ".join(f"{agent}: {error.message}" for agent, error in sorted(failures.items()))
        if len(failures) == len(agents):
            raise Unavailable(problems) if len(failures) > 1 else next(iter(failures.values()))
        return f"{title}: done on {len(agents) - len(failures)} of {len(agents)} agents" + (
            f"; {problems}" if problems else ""
        )


def _outcome(error: BackendError | None) -> str:
    return "done" if error is None else error.message


def _reporter(
    progress: TaskProgress, agent: Agent, done: Callable[[], int], total: int
) -> Callable[[ImageJobState], Awaitable[None]]:
    async def report(state: ImageJobState) -> None:
        if state.total:
            await progress.update(done(), total, f"{agent.id}: {state.current * 100 // state.total} %")

    return report
