"""Checks which devices a superadmin's session sees without holding them (decision 0621)."""

from __future__ import annotations

from ai.backend.common.errors import Forbidden, InvalidInput, NotFound, UnsupportedResource
from ai.backend.manager.access.caller import Caller
from ai.backend.manager.access.checks import require
from ai.backend.manager.access.permissions import Operation
from ai.backend.manager.agents.capabilities import DeviceReader
from ai.backend.manager.sessions.creation.feasibility import Candidates
from ai.backend.manager.sessions.model import CreateSession

_FIELD = "config.diagnosed_devices"


def check_diagnosed_devices(
    caller: Caller, owner: Caller, request: CreateSession, candidates: Candidates, devices: DeviceReader
) -> dict[str, list[str]]:
    """Checks and returns, by plugin, the devices that a session may see without holding them, each once.

    Raises:
        Forbidden: the caller is no superadmin, or the session belongs to somebody else.
        InvalidInput: not one kernel on one agent.
        NotFound: no such device on the agent.
        UnsupportedResource: the plugin shows devices only to sessions that hold them.
    """
    if not request.diagnosed_devices:
        return {}
    require(caller, Operation.DIAGNOSE_DEVICES)
    if owner.user_id != caller.user_id:
        raise Forbidden("A session that diagnoses devices belongs to its creator.", data={_FIELD: "not allowed"})
    if len(candidates.designated) != 1 or request.cluster_size != 1:
        message = "A session that diagnoses devices has one kernel, on one agent that the request names."
        raise InvalidInput(message, data={"config.agentList": "exactly one", "clusterSize": "1"})
    (agent_id,) = candidates.designated
    agent = next(agent for agent in candidates.agents if agent.id == agent_id)
    ids_by_plugin = {
        str(plugin.name): {id_ for device in plugin.devices for id_ in (device.device_id, *device.partition_ids)}
        for plugin in devices.plugins_of(agent)
    }
    for name, device_ids in request.diagnosed_devices.items():
        for device_id in device_ids:
            if device_id not in ids_by_plugin.get(name, ()):
                message = f"The agent {agent_id} has no device {device_id[:128]!r} of a plugin {name[:64]!r}."
                raise NotFound(message, data={f"{_FIELD}.{name[:64]}": "unknown"})
        if any(report.name == name and report.diagnosable is False for report in agent.plugins):
            message = (
                f"The plugin {name[:64]} of the agent {agent_id} shows its devices only to sessions that hold them, as "
                "plugins of Interface v1 and nodes of a Kubernetes cluster do. Taint the device, and request it in a "
                "session that tolerates the taint."
            )
            raise UnsupportedResource(message, data={f"{_FIELD}.{name[:64]}": "cannot be diagnosed"})
    return {name: list(dict.fromkeys(device_ids)) for name, device_ids in request.diagnosed_devices.items()}
