"""Helpers that the test suites of a runtime share: :mod:`ai.backend.plugin.testing.runtime.contract`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, ClassVar
from uuid import UUID, uuid4

import pytest

from ai.backend.common.ids import KernelId, SessionId
from ai.backend.plugin.runtime import (
    AbstractRuntime,
    WorkloadKey,
    WorkloadSpec,
)
from ai.backend.plugin.testing.runtime.runner_dialogue import Talk


class RuntimeSuite:
    """A runtime, and how the tests use it."""

    image: ClassVar[str]
    """An image with Python."""
    patience_s: ClassVar[float] = 20.0
    grace_s: ClassVar[float] = 2.0

    @pytest.fixture
    async def runtime(self) -> AbstractRuntime:
        pytest.fail("override the fixture `runtime`")

    async def reopen(self, runtime: AbstractRuntime) -> AbstractRuntime:
        """Returns a second runtime on the same state, as after the agent was killed and started again."""
        pytest.fail("override `reopen`")

    # ---- helpers of the suite

    @pytest.fixture(autouse=True)
    async def clean(self, runtime: AbstractRuntime) -> AsyncIterator[None]:
        yield
        await self.remove_all(runtime)

    async def remove_all(self, runtime: AbstractRuntime) -> None:
        for view in await runtime.list_workloads():
            await runtime.stop(view.key, grace_s=0.0)
            await runtime.remove(view.key)
        assert list(await runtime.list_workloads()) == []
        for session in await runtime.list_networks():
            await runtime.remove_network(session)
        assert list(await runtime.list_networks()) == []

    def need(self, runtime: AbstractRuntime, capability: str) -> None:
        if capability not in runtime.info().capabilities:
            pytest.skip(f"capability: this runtime does not declare {capability!r}")

    def spec(self, kernel: UUID | None = None, attempt: int = 1, **changes: Any) -> WorkloadSpec:
        key = WorkloadKey(kernel_id=KernelId(kernel or uuid4()), attempt=attempt)
        return WorkloadSpec(key=key, session_id=SessionId(uuid4()), image=self.image, **changes)

    async def talk(self, runtime: AbstractRuntime, key: WorkloadKey, *, epoch: int = 1, last_seq: int = 0) -> Talk:
        return Talk(await runtime.open_channel(key, epoch=epoch, last_seq=last_seq), self.patience_s)

    async def start(self, runtime: AbstractRuntime, spec: WorkloadSpec) -> Talk:
        """Create and wait until the runner is ready."""
        await runtime.create(spec)
        talk = await self.talk(runtime, spec.key)
        await talk.kind("ready")
        return talk
