"""The places at which a kill test may end a runtime, see ``ai.backend.plugin.crash_points``."""

from __future__ import annotations

# The points that every workload passes, in this order.
DOCKER_WORKLOAD_POINTS = (
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
DOCKER_NETWORK_POINTS = ("network.looked", "network.made", "network.emptied", "network.removed")
DOCKER_IMAGE_POINTS = ("pull.begun", "pull.done", "commit.made", "commit.saved", "commit.written")
DOCKER = (*DOCKER_WORKLOAD_POINTS, *DOCKER_NETWORK_POINTS, *DOCKER_IMAGE_POINTS)

# The points of the agent's process, in the order in which a workload's life passes them.
PROCESS_AGENT_POINTS = (
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
PROCESS_SHIM_POINTS = (
    "shim.forked",
    "shim.locked",
    "shim.cgroups",
    "shim.spawned",
    "shim.recorded",
    "shim.stopping",
    "shim.killed",
    "shim.exit-recorded",
)
PROCESS_NETWORK_POINTS = ("network.recorded", "network.made", "network.removed")
PROCESS = (*PROCESS_AGENT_POINTS, *PROCESS_SHIM_POINTS, *PROCESS_NETWORK_POINTS)
