"""The Docker runtime keeps the contract where containers run in gVisor: the suite of the runtime, in another class."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from ai.backend.plugin.accelerator import WorkloadConfig
from ai.backend.plugin.runtime import AbstractRuntime, WorkloadSpec
from tests.contract.runtime import test_docker

RUNTIME_CLASS = "runsc"


@pytest.mark.slow
@pytest.mark.needs("docker", "gvisor")
class TestDockerOnGVisor(test_docker.TestDocker):
    def spec(self, kernel: UUID | None = None, attempt: int = 1, **changes: Any) -> WorkloadSpec:
        return super().spec(kernel, attempt, **{"runtime_class": RUNTIME_CLASS, **changes})

    async def test_its_kernel_is_gvisor(self, runtime: AbstractRuntime) -> None:
        talk = await self.start(runtime)
        await talk.run("print(open('/proc/version').read())")
        assert "gvisor" in talk.text()

    async def test_too_much_memory_ends_the_session(self, runtime: AbstractRuntime) -> None:
        """The limit is of the sandbox as a whole, and ends it: under runc it ends the program that wants too much."""
        config = WorkloadConfig(memory_limit_bytes=192 << 20)
        talk = await self.start(runtime, self.spec(config=config))
        await talk.channel.send({"t": "run", "id": "r1", "mode": "query", "code": "x = bytearray(512 << 20)"})
        exited = await talk.kind("exited")
        assert (exited["oom"], exited["reason"]) == (True, "out-of-memory")
