"""Long work on an agent: asked for again and again until it is done, so that neither end has to stay alive."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from ai.backend.common.errors import BackendError, Unavailable, from_wire
from ai.backend.common.ids import AgentId
from ai.backend.common.wire.agent import ImageJob, ImageJobState
from ai.backend.manager.agents.gateway import AgentGateway

_PAUSE_S = 1.0
_PATIENCE = 60
"""How often in a row an agent may fail to answer before it counts as gone."""


async def await_job(
    gateway: AgentGateway,
    agent: AgentId,
    job: ImageJob,
    tell: Callable[[ImageJobState], Awaitable[None]] | None = None,
) -> ImageJobState:
    """The state of the job when it is done.

    Raises:
        BackendError: as the agent refused it or failed. Unavailable: the agent is not there any more.
    """
    lost = 0
    while True:
        try:
            state = await gateway.agent(agent).image_job(job)
            lost = 0
        except Unavailable:
            lost += 1
            if lost >= _PATIENCE:
                raise
            await asyncio.sleep(_PAUSE_S)
            continue
        if state.state == "done":
            return state
        if state.state == "failed":
            raise _error(state)
        if tell is not None:
            await tell(state)


def _error(state: ImageJobState) -> BackendError:
    return from_wire(state.code, state.message)
