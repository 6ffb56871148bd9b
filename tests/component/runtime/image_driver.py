"""An agent's process in miniature that fetches an image and commits a workload of it; to be killed on the way.

Usage: python image_driver.py STATE SETTINGS_JSON IMAGE_JSON

The environment variable BACKENDAI_CRASH_POINT names the instruction to die at (``plugin.crash_points``).
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from uuid import uuid4

from ai.backend.common.ids import KernelId, SessionId
from ai.backend.plugin.runtime import CommitRequest, ImageRequest, WorkloadKey, WorkloadSpec
from ai.backend.runtime.docker.runtime import DockerRuntime
from ai.backend.runtime.docker.settings import DockerRuntimeSettings


async def main() -> None:
    state, settings, image = sys.argv[1:4]
    runtime = DockerRuntime(DockerRuntimeSettings(**json.loads(settings)), Path(state))
    await runtime.setup()
    wanted = ImageRequest(**json.loads(image))
    await runtime.pull_image(wanted, lambda current, total: None)
    key = WorkloadKey(kernel_id=KernelId(uuid4()), attempt=1)
    await runtime.create(WorkloadSpec(key=key, session_id=SessionId(uuid4()), image=wanted.name))
    await runtime.commit(key, CommitRequest(folder="u", filename="a.tar.gz"), lambda current, total: None)
    await runtime.shutdown()


if __name__ == "__main__":
    asyncio.run(main())
