"""Hears from the runtime which workloads have ended."""

from __future__ import annotations

import asyncio
import logging

from ai.backend.agent.lifecycle.supervisor import Supervisor
from ai.backend.plugin.runtime import AbstractRuntime

log = logging.getLogger(__name__)
_AGAIN_S = 1.0


async def watch_exits(runtime: AbstractRuntime, supervisor: Supervisor) -> None:
    """Run for ever. Lost events are made good by the sync loop."""
    while True:
        try:
            async for event in runtime.events():
                supervisor.workload_exited(event.key, event.exit)
        except Exception:
            log.exception("the runtime's events broke off")
        await asyncio.sleep(_AGAIN_S)
