"""The places at which a kill test may end the Docker runtime, see ``plugin.crash_points``."""

from __future__ import annotations

WORKLOAD_POINTS = (
    "create.directory",
    "create.record",
    "create.home",
    "create.made",
    "create.started",
    "create.begun",
    "stop.requested",
    "stop.exited",
    "remove.marked",
    "remove.container",
    "remove.home",
    "remove.emptied",
)
"""The points that every workload passes, in this order."""
NETWORK_POINTS = ("network.looked", "network.made", "network.emptied", "network.removed")
IMAGE_POINTS = ("pull.begun", "pull.done", "commit.made", "commit.saved", "commit.written")
CRASH_POINTS = (*WORKLOAD_POINTS, *NETWORK_POINTS, *IMAGE_POINTS)
