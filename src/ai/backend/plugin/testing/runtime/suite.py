"""Provides helpers for the test suites of a runtime, :mod:`ai.backend.plugin.testing.runtime.contract`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import cached_property
from typing import Any, ClassVar
from uuid import UUID, uuid4

import pytest

from ai.backend.common.ids import KernelId, SessionId
from ai.backend.plugin.runtime import AbstractRuntime, RunnerChannel, WorkloadKey, WorkloadSpec

Frame = dict[str, Any]


class Talk:
    """Represents a dialogue with a workload over its channel. One reader keeps every frame."""

    key: WorkloadKey

    def __init__(self, channel: RunnerChannel, patience_s: float) -> None:
        self.channel = channel
        self.frames: list[Frame] = []
        self.is_over = False
        self._patience_s = patience_s
        self._news = asyncio.Condition()
        self._reader = asyncio.create_task(self._read())

    async def _read(self) -> None:
        try:
            async for frame in self.channel.recv():
                async with self._news:
                    self.frames.append(frame)
                    self._news.notify_all()
        finally:
            async with self._news:
                self.is_over = True
                self._news.notify_all()

    async def until(self, is_wanted: Callable[[Frame], bool], description: str = "frame") -> Frame:
        """Waits for a frame that satisfies a condition, and returns the first such frame.

        Frames that were already read count too.
        """
        try:
            async with asyncio.timeout(self._patience_s), self._news:
                await self._news.wait_for(lambda: self.is_over or any(map(is_wanted, self.frames)))
        except TimeoutError:
            pytest.fail(f"no {description} within {self._patience_s} s; there were {self.frames}")
        match = next(filter(is_wanted, self.frames), None)
        assert match is not None, f"the channel ended without {description}; there were {self.frames}"
        return match

    async def kind(self, kind: str) -> Frame:
        return await self.until(lambda frame: frame["t"] == kind, kind)

    async def over(self) -> None:
        """Waits until the channel has ended."""
        try:
            async with asyncio.timeout(self._patience_s), self._news:
                await self._news.wait_for(lambda: self.is_over)
        except TimeoutError:
            pytest.fail(f"the channel did not end within {self._patience_s} s")

    async def run(self, code: str, run_id: str = "r1") -> Frame:
        """Runs code in query mode and returns the ``finished`` frame."""
        await self.channel.send({"t": "run", "id": run_id, "mode": "query", "code": code})
        return await self.until(
            lambda frame: frame["t"] == "finished" and frame["id"] == run_id, f"finished of {run_id}"
        )

    def text(self, run_id: str = "r1", stream: str = "stdout") -> str:
        items = [
            item
            for frame in self.frames
            if frame["t"] == "console" and frame["id"] == run_id
            for item in frame["items"]
        ]
        return "".join(item_text for kind, item_text in items if kind == stream)

    async def close(self) -> None:
        await self.channel.close()
        self._reader.cancel()
        await asyncio.gather(self._reader, return_exceptions=True)


class RuntimeSuite:
    """Serves as the base of runtime test suites: makes the runtime, opens dialogues and cleans up."""

    image: ClassVar[str]
    """An image with Python."""
    patience_s: ClassVar[float] = 20.0
    grace_s: ClassVar[float] = 2.0

    @pytest.fixture
    async def runtime(self) -> AbstractRuntime:
        pytest.fail("override the fixture `runtime`")

    async def reopen(self, runtime: AbstractRuntime) -> AbstractRuntime:
        """Returns a second runtime on the same state, as if the agent was killed and started again."""
        pytest.fail("override `reopen`")

    @cached_property
    def talks(self) -> list[Talk]:
        """Returns the list of dialogues that a test has begun, to close them later."""
        return []

    @pytest.fixture(autouse=True)
    async def clean(self, runtime: AbstractRuntime) -> AsyncIterator[None]:
        yield
        for dialogue in self.talks:
            await dialogue.close()
        await self.remove_all(runtime)

    async def eventually(self, condition: Callable[[], bool | Awaitable[bool]]) -> bool:
        """Returns True as soon as the condition holds. Returns False if it does not hold in time."""
        for _ in range(int(self.patience_s * 20)):
            holds = condition()
            if holds is True or (not isinstance(holds, bool) and await holds):
                return True
            await asyncio.sleep(0.05)
        return False

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
        """Opens the channel to a workload as a dialogue (:class:`Talk`), which is closed after the test."""
        dialogue = Talk(await runtime.open_channel(key, epoch=epoch, last_seq=last_seq), self.patience_s)
        dialogue.key = key
        self.talks.append(dialogue)
        return dialogue

    async def start(self, runtime: AbstractRuntime, spec: WorkloadSpec | None = None) -> Talk:
        """Creates a workload, and waits until its runner is ready."""
        view = await runtime.create(spec or self.spec())
        dialogue = await self.talk(runtime, view.key)
        await dialogue.kind("ready")
        return dialogue
