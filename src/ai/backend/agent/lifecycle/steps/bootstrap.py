"""The step that writes the user's dotfiles and runs the bootstrap script once, before the session is usable."""

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
    """Writes the dotfiles and runs the bootstrap script.

    The session starts even if the script fails, takes too long, or a file cannot be written; a note to the user says
    so. The runner writes the files as the session's user, so no path reaches what the user may not write.
    """

    name = "bootstrap"

    def __init__(self, context: AgentContext) -> None:
        self._context = context

    async def acquire(self, kernel: Kernel, step: StepContext) -> None:
        spec = kernel.record.spec
        if kernel.record.bootstrapped or not (spec.bootstrap_script or spec.dotfiles):
            return
        problems = [await self._write_dotfiles(kernel), await self._run(kernel) if spec.bootstrap_script else None]
        for note in filter(None, problems):
            log.warning("kernel %s: %s", kernel.id, note)
        notes = [text for text in (kernel.record.note, *problems) if text]
        kernel.save(bootstrapped=True, note="; ".join(notes) or None)
        if kernel.runs is not None:
            kernel.runs.forget(RUN_ID)

    async def _write_dotfiles(self, kernel: Kernel) -> str | None:
        assert kernel.channel is not None
        timeout_s = self._context.settings.kernel_lifecycles.bootstrap_timeout
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
        timeout_s = self._context.settings.kernel_lifecycles.bootstrap_timeout
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

    async def release(self, kernel: Kernel, step: StepContext) -> None:
        """Does nothing: the step holds no resource."""
