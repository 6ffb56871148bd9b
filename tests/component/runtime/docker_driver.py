"""An agent's process in miniature: runs the Docker runtime through one life of a workload, to be killed on the way.

Usage: python docker_driver.py STATE KERNEL_ID SETTINGS_JSON IMAGE

The environment variable BACKENDAI_CRASH_POINT names the instruction to die at (``plugin.crash_points``).
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from uuid import UUID, uuid4

from ai.backend.common.ids import KernelId, SessionId
from ai.backend.plugin.runtime import WorkloadKey, WorkloadSpec
from ai.backend.runtime.docker.runtime import DockerRuntime
from ai.backend.runtime.docker.settings import DockerRuntimeSettings


async def main() -> None:
    state, kernel_id, settings, image = sys.argv[1:5]
    runtime = DockerRuntime(DockerRuntimeSettings(**json.loads(settings)), Path(state))
    await runtime.setup()
    key = WorkloadKey(kernel_id=KernelId(UUID(kernel_id)), attempt=1)
    await runtime.create(WorkloadSpec(key=key, session_id=SessionId(uuid4()), image=image))
    await runtime.stop(key, grace_s=1.0)
    await runtime.remove(key)
    await runtime.shutdown()
    print("done")


if __name__ == "__main__":
    asyncio.run(main())
