"""Forwards the exits of workloads from the runtime to the supervisor."""

from __future__ import annotations

import asyncio
import logging

from ai.backend.agent.lifecycle.supervisor import Supervisor
from ai.backend.plugin.runtime import AbstractRuntime

log = logging.getLogger(__name__)
_RETRY_S = 1.0


async def watch_exits(runtime: AbstractRuntime, supervisor: Supervisor) -> None:
    """Forward exit events until cancelled. The sync loop finds exits whose events were lost."""
    while True:
        try:
            async for event in runtime.events():
                supervisor.workload_exited(event.key, event.exit)
        except Exception:
            log.exception("the runtime's events broke off")
        await asyncio.sleep(_RETRY_S)
