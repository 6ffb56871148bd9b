"""Talking to a workload over its channel, for suites and tests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from ai.backend.plugin.runtime import (
    RunnerChannel,
)

Frame = dict[str, Any]


class Talk:
    """A channel with one reader that remembers every frame."""

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

    async def until(self, want: Callable[[Frame], bool], what: str = "frame") -> Frame:
        """Returns the first frame, read already or to come, that fits."""
        try:
            async with asyncio.timeout(self._patience_s), self._news:
                await self._news.wait_for(lambda: self.is_over or any(map(want, self.frames)))
        except TimeoutError:
            pytest.fail(f"no {what} within {self._patience_s} s; there were {self.frames}")
        match = next(filter(want, self.frames), None)
        assert match is not None, f"the channel ended without {what}; there were {self.frames}"
        return match

    async def kind(self, kind: str) -> Frame:
        return await self.until(lambda f: f["t"] == kind, kind)

    async def over(self) -> None:
        """Wait until the channel ends."""
        try:
            async with asyncio.timeout(self._patience_s), self._news:
                await self._news.wait_for(lambda: self.is_over)
        except TimeoutError:
            pytest.fail(f"the channel did not end within {self._patience_s} s")

    async def run(self, code: str, run_id: str = "r1") -> Frame:
        """Run in query mode and return the ``finished`` frame."""
        await self.channel.send({"t": "run", "id": run_id, "mode": "query", "code": code})
        return await self.until(lambda f: f["t"] == "finished" and f["id"] == run_id, f"finished of {run_id}")

    def text(self, run_id: str = "r1", stream: str = "stdout") -> str:
        items = [i for f in self.frames if f["t"] == "console" and f["id"] == run_id for i in f["items"]]
        return "".join(text for kind, text in items if kind == stream)

    async def close(self) -> None:
        await self.channel.close()
        self._reader.cancel()
        await asyncio.gather(self._reader, return_exceptions=True)
