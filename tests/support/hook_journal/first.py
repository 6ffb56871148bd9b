"""The journaling plugin that runs in the agent's process."""

from __future__ import annotations

from typing import ClassVar

from ai.backend.common.ids import DeviceName
from tests.support.hook_journal import JournalingPlugin


class Plugin(JournalingPlugin):
    key: ClassVar[DeviceName] = DeviceName("first")
