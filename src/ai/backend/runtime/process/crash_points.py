"""The places at which a kill test may end the agent or a shim of the process runtime, see ``plugin.crash_points``."""

from __future__ import annotations

AGENT_POINTS = (
    "create.directory",
    "create.record",
    "create.home",
    "create.plan",
    "create.requested",
    "create.started",
    "stop.requested",
    "stop.exited",
    "remove.marked",
    "remove.killed",
    "remove.home",
    "remove.emptied",
)
"""Points of the agent's process, in the order in which a workload's life passes them."""
SHIM_POINTS = (
    "shim.forked",
    "shim.locked",
    "shim.cgroups",
    "shim.spawned",
    "shim.recorded",
    "shim.stopping",
    "shim.killed",
    "shim.exit-recorded",
)
"""Points of the shim's process."""
NETWORK_POINTS = ("network.recorded", "network.made", "network.removed")
CRASH_POINTS = (*AGENT_POINTS, *SHIM_POINTS, *NETWORK_POINTS)
