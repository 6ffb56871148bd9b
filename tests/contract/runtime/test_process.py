"""The process runtime keeps the contract in every tier that this machine can offer."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from ai.backend.plugin.runtime import AbstractRuntime, PortExposure
from ai.backend.plugin.testing.runtime.contract import RuntimeContract
from ai.backend.runtime.process.runtime import ProcessRuntime
from ai.backend.runtime.process.settings import ProcessRuntimeSettings


class ProcessRuntimeSuite(RuntimeContract):
    image = "python"
    settings: ClassVar[dict[str, Any]] = {}
    tier: ClassVar[str]

    @pytest.fixture
    async def runtime(self, tmp_path: Path) -> AsyncIterator[AbstractRuntime]:
        self.state = tmp_path / "state"
        runtime = await self.reopen(None)
        yield runtime
        await runtime.shutdown()

    async def reopen(self, runtime: AbstractRuntime | None) -> ProcessRuntime:
        again = ProcessRuntime(ProcessRuntimeSettings(**self.settings), self.state)
        await again.setup()
        return again

    async def test_the_tier_is_the_one_meant(self, runtime: AbstractRuntime) -> None:
        assert runtime.info().tier == self.tier


class AloneInItsNetwork(ProcessRuntimeSuite):
    """What listens inside is reached by nobody else."""

    async def test_its_ports_are_its_own(self, runtime: AbstractRuntime) -> None:
        spec = self.spec()
        talk = await self.start(runtime, spec)
        assert await runtime.port_exposure(spec.key) is PortExposure.PRIVATE
        await talk.run(self.echo)
        with pytest.raises(OSError, match="refused"):
            socket.create_connection(("127.0.0.1", int(talk.text())), 5)
        await talk.close()


@pytest.mark.needs("isolation", "cgroups", "root")
class TestSealed(ProcessRuntimeSuite):
    tier = "sealed"


@pytest.mark.needs("isolation", "cgroups", "root")
class TestSealedByRoot(AloneInItsNetwork):
    """Where the host forbids user namespaces, the sandbox changes its user inside."""

    settings: ClassVar[dict[str, Any]] = {"user_namespaces": "off", "network": "none"}
    tier = "sealed"


@pytest.mark.needs("isolation")
class TestCaged(AloneInItsNetwork):
    settings: ClassVar[dict[str, Any]] = {"cgroups": "off", "network": "none"}
    tier = "caged"


@pytest.mark.needs("cgroups", "root")
class TestFenced(ProcessRuntimeSuite):
    settings: ClassVar[dict[str, Any]] = {"sandbox": "off"}
    tier = "fenced"


@pytest.mark.needs("root")
class TestBareAsRoot(ProcessRuntimeSuite):
    """An ordinary user's home has another path there, see tests/component/runtime."""

    settings: ClassVar[dict[str, Any]] = {"sandbox": "off", "cgroups": "off"}
    tier = "bare"
