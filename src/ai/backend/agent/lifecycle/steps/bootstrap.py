"""The user's dotfiles and bootstrap script: placed and run once, before the session is theirs."""

from __future__ import annotations

import asyncio
import logging

from ai.backend.agent.channel import files
from ai.backend.agent.kernels.kernel import Kernel
from ai.backend.agent.lifecycle.context import AgentContext, StepContext
from ai.backend.agent.lifecycle.kernel_files import BOOTSTRAP_PATH
from ai.backend.common.errors import DeadlineExceeded, Forbidden, InvalidInput, LimitExceeded, NotFound, RunError

log = logging.getLogger(__name__)
RUN_ID = "bootstrap"


class Bootstrap:
    """A script that fails or takes too long, or a file that cannot be written, is told to the user with the session,
    which starts all the same.

    The runner writes the files, as the session's user and from inside: whatever the path is made of, it leads nowhere
    that the user could not go.
    """

    name = "bootstrap"

    def __init__(self, around: AgentContext) -> None:
        self._around = around

    async def acquire(self, kernel: Kernel, why: StepContext) -> None:
        spec = kernel.record.spec
        if kernel.record.bootstrapped or not (spec.bootstrap_script or spec.dotfiles):
            return
        told = [await self._place(kernel), await self._run(kernel) if spec.bootstrap_script else None]
        for note in filter(None, told):
            log.warning("kernel %s: %s", kernel.id, note)
        notes = [text for text in (kernel.record.note, *told) if text]
        kernel.save(bootstrapped=True, note="; ".join(notes) or None)
        if kernel.runs is not None:
            kernel.runs.forget(RUN_ID)

    async def _place(self, kernel: Kernel) -> str | None:
        assert kernel.channel is not None
        timeout_s = self._around.settings.kernel_lifecycles.bootstrap_timeout
        refused = []
        for dotfile in kernel.record.spec.dotfiles:
            try:
                await files.upload(kernel.channel, [dotfile], timeout_s)
            except DeadlineExceeded:
                return f"the dotfiles were not written within {timeout_s:g} s"
            except (Forbidden, NotFound, InvalidInput, LimitExceeded, RunError) as e:
                refused.append(f"{dotfile.path} ({e.message})")
        return f"dotfiles that could not be written: {', '.join(refused)}" if refused else None

    async def _run(self, kernel: Kernel) -> str | None:
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
        return note

    async def release(self, kernel: Kernel, why: StepContext) -> None:
        """Nothing is held."""
