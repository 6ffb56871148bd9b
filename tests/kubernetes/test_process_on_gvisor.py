"""The process runtime keeps the contract where its sessions run in gVisor: the suite of the runtime, in a class."""

from __future__ import annotations

from typing import Any, ClassVar
from uuid import UUID

import pytest
from tools.kube.families import families

from ai.backend.plugin.accelerator import WorkloadConfig
from ai.backend.plugin.runtime import AbstractRuntime, WorkloadSpec
from tests.contract.runtime import test_process

RUNTIME_CLASS = "gvisor"


@pytest.mark.slow
@pytest.mark.needs("gvisor", "cgroups", "root", "isolation")
class TestProcessOnGVisor(test_process.AloneInItsNetwork):
    settings: ClassVar[dict[str, Any]] = {"runsc": families()["gvisor"].place() / "runsc"}
    tier = "sealed"

    def spec(self, kernel: UUID | None = None, attempt: int = 1, **changes: Any) -> WorkloadSpec:
        return super().spec(kernel, attempt, **{"runtime_class": RUNTIME_CLASS, **changes})

    async def test_its_kernel_is_gvisor(self, runtime: AbstractRuntime) -> None:
        talk = await self.start(runtime)
        await talk.run("print(open('/proc/version').read())")
        assert "gvisor" in talk.text()

    async def test_too_much_memory_ends_the_session(self, runtime: AbstractRuntime) -> None:
        """The limit is of the sandbox as a whole, and ends it."""
        config = WorkloadConfig(memory_limit_bytes=192 << 20)
        talk = await self.start(runtime, self.spec(config=config))
        await talk.channel.send({"t": "run", "id": "r1", "mode": "query", "code": "x = bytearray(512 << 20)"})
        exited = await talk.kind("exited")
        assert (exited["oom"], exited["reason"]) == (True, "out-of-memory")
