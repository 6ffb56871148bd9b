"""Defines the mock accelerator plugin that runs in a process of its own, where faults may block or end the process.

Allow ``ai.backend.accelerator.mock.isolated`` instead of the package.
"""

from __future__ import annotations

from typing import ClassVar

from ai.backend.accelerator.mock.plugin import MockPlugin
from ai.backend.common.structs import replace
from ai.backend.plugin.accelerator import PluginCapabilities

__all__ = ["IsolatedMockPlugin", "Plugin"]


class IsolatedMockPlugin(MockPlugin):
    """The mock plugin in a process of its own, where faults may block the thread and end the process."""

    capabilities: ClassVar[PluginCapabilities] = replace(MockPlugin.capabilities, blocking=True)


Plugin = IsolatedMockPlugin
