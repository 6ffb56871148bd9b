"""Refuses agents that are too old for this manager (spec 03-06; docs/howto/upgrade.md)."""

from __future__ import annotations

import re

from ai.backend.common.errors import InvalidInput

OLDEST_RELEASE = (26, 11)
"""Year and month of the oldest release whose agents this manager takes: the one before its own, once there are two."""
_CALENDAR_VERSION = re.compile(r"(\d{2})\.(\d{1,2})(?:\.|$)")
_MAX_SHOWN = 32


def check_version(agent_id: str, version: str) -> None:
    """Raises InvalidInput for an agent of an earlier release. Versions that do not count by the calendar, as those of a
    source tree, are taken."""
    match = _CALENDAR_VERSION.match(version)
    if match is not None and (int(match[1]), int(match[2])) < OLDEST_RELEASE:
        oldest = ".".join(map(str, OLDEST_RELEASE))
        raise InvalidInput(
            f"The agent {agent_id} is of version {version[:_MAX_SHOWN]}, this manager takes {oldest} and newer: install"
            " a newer version on its node, and restart it. Its sessions run on.",
            data={"version": "too old"},
        )
