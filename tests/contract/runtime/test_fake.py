"""The in-memory runtime that stands in for a real one in tests of the agent keeps the same promises."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from ai.backend.plugin.runtime import AbstractRuntime
from ai.backend.plugin.testing.runtime.contract import RuntimeContract
from ai.backend.plugin.testing.runtime.fake_runtime import FAKE_IMAGE, FakeRuntime


class TestFakeRuntime(RuntimeContract):
    image = FAKE_IMAGE
    patience_s = 3.0

    @pytest.fixture
    async def runtime(self) -> AsyncIterator[AbstractRuntime]:
        runtime = FakeRuntime()
        await runtime.setup()
        yield runtime
        await runtime.shutdown()

    async def reopen(self, runtime: AbstractRuntime) -> AbstractRuntime:
        assert isinstance(runtime, FakeRuntime)
        again = FakeRuntime(runtime.node)
        await again.setup()
        return again
