"""An agent's process in miniature: makes the network of a session, uses it and removes it, to be killed on the way.

Usage: python network_driver.py process|docker STATE SESSION_ID SETTINGS_JSON IMAGE [wide]

The environment variable BACKENDAI_CRASH_POINT names the instruction to die at (``plugin.crash_points``).
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any
from uuid import UUID

from ai.backend.common.ids import KernelId, SessionId
from ai.backend.plugin.runtime import AbstractRuntime, Overlay, WorkloadKey, WorkloadSpec
from ai.backend.runtime.docker.runtime import DockerRuntime
from ai.backend.runtime.docker.settings import DockerRuntimeSettings
from ai.backend.runtime.process.runtime import ProcessRuntime
from ai.backend.runtime.process.settings import ProcessRuntimeSettings

HOSTS = ("main1", "sub1")


def make(kind: str, state: Path, settings: dict[str, Any]) -> AbstractRuntime:
    if kind == "docker":
        return DockerRuntime(DockerRuntimeSettings(**settings), state)
    return ProcessRuntime(ProcessRuntimeSettings(**settings), state)


def over_nodes(session: SessionId) -> Overlay:
    """A network with a peer that nobody is."""
    return Overlay(
        vni=1 + session.int % 0xFFFFFF,
        subnet="10.214.0.0/28",
        addresses={"main1": "10.214.0.3", "sub1": "10.214.0.4"},
        gateway="10.214.0.1",
        mtu=1450,
        local=("127.0.0.1", 4789),
        peers={"sub1": ("192.0.2.1", 4789)},
    )


async def main() -> None:
    kind, state, session_id, settings, image = sys.argv[1:6]
    session = SessionId(UUID(session_id))
    runtime = make(kind, Path(state), json.loads(settings))
    await runtime.setup()
    network = await runtime.create_network(session, HOSTS, over_nodes(session) if "wide" in sys.argv else None)
    key = WorkloadKey(kernel_id=KernelId(session), attempt=1)
    await runtime.create(WorkloadSpec(key=key, session_id=session, image=image, hostname="main1", network=network))
    await runtime.remove_network(session)  # with the workload still in it, as after a kernel that was given up
    await runtime.remove(key)
    await runtime.shutdown()
    print("done")


if __name__ == "__main__":
    asyncio.run(main())
