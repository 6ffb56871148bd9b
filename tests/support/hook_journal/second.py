"""The journaling plugin that runs in a host process."""

from __future__ import annotations

from typing import ClassVar

from ai.backend.common.ids import DeviceName
from tests.support.hook_journal import JournalingPlugin


class Plugin(JournalingPlugin):
    key: ClassVar[DeviceName] = DeviceName("second")
    hosted: ClassVar[bool] = True
