"""An agent's process in miniature: runs the process runtime through one life of a workload, to be killed on the way.

Usage: python driver.py STATE KERNEL_ID SETTINGS_JSON UNTIL [MOUNT_SOURCE CODE]   with UNTIL one of ready, stopped,
removed. A source is mounted at /mnt/data, and the code is run; if it prints a number, that port is connected to.

Prints a line of JSON per step. The environment variable BACKENDAI_CRASH_POINT names the instruction to die at
(``tests.support.runtime_crash_points``).
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from uuid import UUID, uuid4

from ai.backend.common.errors import BackendError
from ai.backend.common.ids import KernelId, SessionId
from ai.backend.plugin.accelerator import Mount, WorkloadConfig
from ai.backend.plugin.runtime import WorkloadKey, WorkloadSpec
from ai.backend.plugin.testing.runtime.suite import Talk
from ai.backend.runtime.process.runtime import ProcessRuntime
from ai.backend.runtime.process.settings import ProcessRuntimeSettings


def say(**what: object) -> None:
    print(json.dumps(what), flush=True)


async def main() -> None:
    state, kernel_id, settings, until, *mounted = sys.argv[1:]
    runtime = ProcessRuntime(ProcessRuntimeSettings(**json.loads(settings)), Path(state))
    await runtime.setup()
    say(step="setup", tier=runtime.info().tier)
    key = WorkloadKey(kernel_id=KernelId(UUID(kernel_id)), attempt=1)
    mounts = [Mount(source=source, target="/mnt/data", read_only=False) for source in mounted[:1]]
    config = WorkloadConfig(cpu_limit=1.0, memory_limit_bytes=256 << 20, mounts=tuple(mounts))
    try:
        await runtime.create(WorkloadSpec(key=key, session_id=SessionId(uuid4()), image="python", config=config))
        channel = await runtime.open_channel(key, epoch=1)
        async for frame in channel.recv():
            if frame["t"] == "ready":
                break
        say(step="ready", pids=await runtime.pids(key))
        if mounted:
            talk = Talk(channel, 20.0)
            await talk.run(mounted[1])
            say(step="ran", said=talk.text())
            if talk.text().strip().isdigit():
                stream = await runtime.open_port(key, int(talk.text()))
                exposure = await runtime.port_exposure(key)
                say(step="connected", said=(await stream.read()).decode(), exposure=exposure.value)
                await stream.close()
        if until in {"stopped", "removed"}:
            ended = await runtime.stop(key, grace_s=1.0)
            say(step="stopped", reason=ended.reason if ended else None)
        if until == "removed":
            await runtime.remove(key)
            say(step="removed")
    except BackendError as error:
        say(step="failed", error=str(error))
    await runtime.shutdown()
    say(step="shutdown")


if __name__ == "__main__":
    asyncio.run(main())
