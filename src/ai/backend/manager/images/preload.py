"""Bringing images to agents before they are needed, and taking them away (``preload_image``, ``unload_image``)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from ai.backend.common.errors import BackendError, InvalidInput, Unavailable
from ai.backend.common.ids import TaskId
from ai.backend.common.states import AgentStatus
from ai.backend.common.wire.agent import ImageJob, ImageJobState
from ai.backend.infra.clock import IdGenerator
from ai.backend.manager.access.caller import Caller
from ai.backend.manager.agents.gateway import AgentGateway
from ai.backend.manager.agents.model import Agent
from ai.backend.manager.agents.store import AgentStore
from ai.backend.manager.images.jobs import await_job
from ai.backend.manager.images.model import Image
from ai.backend.manager.images.pulls import ImagePulls
from ai.backend.manager.images.registries import require_superadmin
from ai.backend.manager.images.service import ImageService
from ai.backend.manager.images.targets import chosen_agents
from ai.backend.manager.tasks.service import TaskProgress, TaskService

_AT_ONCE = 8


class ImagePreloader:
    """Both begin a background task that counts agents; agents that fail are named in its last message."""

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
        """Fetch an image wherever the expression says; see :func:`chosen_agents`.

        Raises:
            Forbidden, ImageNotFound. InvalidInput: no such agents, none that could run it, or no registry has it.
        """
        require_superadmin(caller, "bring images to agents")
        image = await self._catalogue.image(caller, reference, architecture)
        if not image.is_registered:
            raise InvalidInput(f"No registry has {image.name}.", data={"reference": "of no registry"})
        agents = await self._chosen(target_agents)
        fitting = [a for a in agents if a.can_pull and a.architecture == image.architecture]
        if not fitting:
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

        return await self._begin(caller, f"preload {image.name}", fitting, job)

    async def unload(
        self, caller: Caller, reference: str, target_agents: str, architecture: str | None = None
    ) -> TaskId:
        """Remove an image from the agents that have it. Raises as :meth:`preload`; also when none of them has it."""
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
        self, caller: Caller, what: str, agents: Sequence[Agent], job: Callable[[Agent, str], ImageJob]
    ) -> TaskId:
        async def work(progress: TaskProgress) -> str:
            return await self._on_all(what, agents, job, progress)

        return await self._tasks.start(caller, what, work)

    async def _on_all(
        self, what: str, agents: Sequence[Agent], job: Callable[[Agent, str], ImageJob], progress: TaskProgress
    ) -> str:
        free = asyncio.Semaphore(_AT_ONCE)
        failures: dict[str, BackendError] = {}
        done = 0

        async def on_one(agent: Agent) -> None:
            nonlocal done
            asked = job(agent, str(self._id_generator.uuid()))
            async with free:
                try:
                    await await_job(self._gateway, agent.id, asked, _teller(progress, agent, lambda: done, len(agents)))
                except BackendError as e:
                    failures[agent.id] = e
            done += 1
            await progress.update(done, len(agents), f"{agent.id}: {_outcome(failures.get(agent.id))}")

        await progress.update(0, len(agents), what)
        await asyncio.gather(*(on_one(agent) for agent in agents))
        told = "; ".join(f"{agent}: {error.message}" for agent, error in sorted(failures.items()))
        if len(failures) == len(agents):
            raise Unavailable(told) if len(failures) > 1 else next(iter(failures.values()))
        return f"{what}: done on {len(agents) - len(failures)} of {len(agents)} agents" + (f"; {told}" if told else "")


def _outcome(error: BackendError | None) -> str:
    return "done" if error is None else error.message


def _teller(
    progress: TaskProgress, agent: Agent, done: Callable[[], int], total: int
) -> Callable[[ImageJobState], Awaitable[None]]:
    async def tell(state: ImageJobState) -> None:
        if state.total:
            await progress.update(done(), total, f"{agent.id}: {state.current * 100 // state.total} %")

    return tell
