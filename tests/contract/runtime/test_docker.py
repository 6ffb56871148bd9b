"""The Docker runtime keeps the contract on a real engine."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from ai.backend.plugin.runtime import AbstractRuntime
from ai.backend.plugin.testing.runtime.contract import RuntimeContract
from ai.backend.runtime.docker.runtime import DockerRuntime
from ai.backend.runtime.docker.settings import DockerRuntimeSettings
from tests.support.docker_engine import PYTHON_IMAGE, DockerEngine, remember_images


@pytest.mark.needs("docker")
class TestDocker(RuntimeContract):
    image = PYTHON_IMAGE
    settings: ClassVar[dict[str, Any]] = {}

    @pytest.fixture
    async def runtime(
        self, tmp_path: Path, docker_engine: DockerEngine, known_images: Path
    ) -> AsyncIterator[AbstractRuntime]:
        self.state, self.host = tmp_path / "state", docker_engine.host
        remember_images(self.state, known_images)
        runtime = await self.reopen(None)
        yield runtime
        await runtime.shutdown()
        mine = f"ai.backend.instance={runtime._state.instance}"
        left = [c for c in docker_engine.containers() if mine in {f"{k}={v}" for k, v in c["Labels"].items()}]
        assert not left, "a container is left"

    async def reopen(self, runtime: AbstractRuntime | None) -> DockerRuntime:
        again = DockerRuntime(DockerRuntimeSettings(docker_host=self.host, **self.settings), self.state)
        await again.setup()
        return again

    async def test_the_tier_is_the_one_meant(self, runtime: AbstractRuntime) -> None:
        assert runtime.info().tier == "contained"
