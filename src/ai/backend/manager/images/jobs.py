"""Polls jobs of agents on images, so that they survive restarts of both ends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from ai.backend.common.errors import Unavailable, from_wire
from ai.backend.common.ids import AgentId
from ai.backend.common.wire.agent import ImageJob, ImageJobState
from ai.backend.manager.agents.gateway import AgentGateway

_PAUSE_S = 1.0
_PATIENCE = 60
"""Failures in a row until an agent counts as lost."""


async def await_job(
    gateway: AgentGateway,
    agent: AgentId,
    job: ImageJob,
    report: Callable[[ImageJobState], Awaitable[None]] | None = None,
) -> ImageJobState:
    """Starts or joins a job and returns its state when it is done. Raises BackendError: the agent refused the job or
    failed; Unavailable: the agent is lost."""
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
            raise from_wire(state.code, state.message)
        if report is not None:
            await report(state)
