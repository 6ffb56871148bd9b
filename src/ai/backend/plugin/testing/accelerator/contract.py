"""Tests what every accelerator plugin promises.

A test file of a plugin is::

    class TestMine(ComputePluginContract):
        @pytest.fixture
        async def plugin(self):
            return MyPlugin(MySettings())

Each test runs one of :mod:`ai.backend.plugin.testing.accelerator.checks`, which calls ``init`` and ``cleanup`` itself.
What a plugin does not claim is skipped with a reason that begins with ``capability:``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine
from inspect import isawaitable
from typing import Any, ClassVar

import pytest

from ai.backend.plugin.accelerator import AbstractComputePlugin
from ai.backend.plugin.testing.accelerator.checks import CHECKS, Check, NotApplicable, Subject, run_check


class ComputePluginContract:
    """Tests an accelerator plugin. Covers version 30 of the accelerator SPI."""

    deadline_s: ClassVar[float] = 10.0
    """For each call."""
    max_block_s: ClassVar[float] = 0.1
    """How long a plugin that is not ``blocking`` may hold the event loop in one piece."""
    may_alter: ClassVar[bool] = True
    """Whether devices may be cut, reset and switched off: say no where they are real and somebody's."""
    has_device_files: ClassVar[bool] = True
    """True if the device files and mounted paths of hooks are on this machine; False for a recording of another."""
    image: ClassVar[str | None] = None
    """Host path of an image that a ``programmable`` plugin can load."""

    @pytest.fixture
    async def plugin(self) -> AbstractComputePlugin:
        pytest.fail("override the fixture `plugin`")

    def remake(self, plugin: AbstractComputePlugin) -> Any:
        """Returns the plugin that the next agent process would create, or an awaitable of that plugin."""
        return type(plugin)(plugin.settings)

    @pytest.fixture
    async def ready(self, plugin: AbstractComputePlugin) -> AsyncIterator[AbstractComputePlugin]:
        """Yields the initialised plugin to an author's own tests."""
        await plugin.init()
        yield plugin
        await plugin.cleanup()

    async def run_check(self, check: Check, plugin: AbstractComputePlugin) -> None:
        async def remake(previous_plugin: AbstractComputePlugin) -> AbstractComputePlugin:
            next_plugin = self.remake(previous_plugin)
            awaited_plugin: AbstractComputePlugin = await next_plugin if isawaitable(next_plugin) else next_plugin
            return awaited_plugin

        subject = Subject(
            plugin=plugin,
            remake=remake,
            deadline_s=self.deadline_s,
            max_block_s=self.max_block_s,
            may_alter=self.may_alter,
            has_device_files=self.has_device_files,
            image=self.image,
        )
        try:
            await run_check(check, subject)
        except NotApplicable as e:
            pytest.skip(str(e))


def _as_test(check: Check) -> Callable[..., Coroutine[Any, Any, None]]:
    async def test(self: ComputePluginContract, plugin: AbstractComputePlugin) -> None:
        await self.run_check(check, plugin)

    test.__name__ = test.__qualname__ = f"test_{check.name}"
    test.__doc__ = check.proves
    return test


for _check in CHECKS:
    setattr(ComputePluginContract, f"test_{_check.name}", _as_test(_check))
