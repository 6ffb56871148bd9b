"""The user's bootstrap script, run once before the session is theirs."""

from __future__ import annotations

import asyncio
import logging

from ai.backend.agent.services.kernel import Kernel
from ai.backend.agent.services.kernel_files import BOOTSTRAP_PATH
from ai.backend.agent.services.kernel_lifecycle.context import Circumstances, Surroundings

log = logging.getLogger(__name__)
RUN_ID = "bootstrap"


class Bootstrap:
    """A script that fails or takes too long is told to the user with the session, which starts all the same."""

    name = "bootstrap"

    def __init__(self, around: Surroundings) -> None:
        self._around = around

    async def acquire(self, kernel: Kernel, why: Circumstances) -> None:
        if not kernel.record.spec.bootstrap_script or kernel.record.bootstrapped:
            return
        assert kernel.runs is not None
        timeout_s = self._around.settings.kernel_lifecycles.bootstrap_timeout
        note: str | None = None
        try:
            async with asyncio.timeout(timeout_s):
                result = await kernel.runs.follow(RUN_ID, f"sh {BOOTSTRAP_PATH}")
            if result.exit_code != 0:
                note = f"the bootstrap script ended with exit code {result.exit_code}"
        except TimeoutError:
            await kernel.runs.cancel(RUN_ID, "bootstrap-timeout")
            note = f"the bootstrap script took longer than {timeout_s:g} s and was ended"
        if note is not None:
            log.warning("kernel %s: %s", kernel.id, note)
        notes = [text for text in (kernel.record.note, note) if text]
        kernel.save(bootstrapped=True, note="; ".join(notes) or None)
        kernel.runs.forget(RUN_ID)

    async def release(self, kernel: Kernel, why: Circumstances) -> None:
        """Nothing is held."""
