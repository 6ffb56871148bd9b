import asyncio
import contextlib
import os
import pty
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support import forked
from tests.support.fake_api import ACCESS_KEY, SECRET_KEY, FakeApi, serving


@dataclass(frozen=True)
class Done:
    """How a command ended and what it printed."""

    code: int
    out: str
    err: str


@dataclass
class Shell:
    """Runs `backend.ai` in a process of its own."""

    env: dict[str, str]
    folder: Path

    async def start(self, *arguments: str, **env: str) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "ai.backend.cli.main",
            *arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            cwd=self.folder,
            env={**self.env, **env},
        )

    async def on_terminal(self, *arguments: str, **env: str) -> str:
        """Return what a command prints to a terminal of 80 columns."""
        ours, theirs = pty.openpty()
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "ai.backend.cli.main",
            *arguments,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=theirs,
            stderr=asyncio.subprocess.DEVNULL,
            cwd=self.folder,
            env={**self.env, "TERM": "xterm", "COLUMNS": "80", **env},
        )
        os.close(theirs)
        printed = b""
        # Linux ends the reading of a terminal that nobody has open any more by an error.
        with os.fdopen(ours, "rb", buffering=0) as terminal, contextlib.suppress(OSError):
            while chunk := await asyncio.to_thread(terminal.read, 65_536):
                printed += chunk
        assert await process.wait() == 0, printed
        return printed.decode()

    async def __call__(self, *arguments: str, stdin: str = "", **env: str) -> Done:
        command = [sys.executable, "-m", "ai.backend.cli.main", *arguments]
        run = partial(forked.run, command, cwd=self.folder, env={**self.env, **env}, input_=stdin, timeout=40)
        done = await asyncio.to_thread(run)
        return Done(done.returncode, done.stdout, done.stderr)


@pytest.fixture
def api() -> FakeApi:
    return FakeApi()


@pytest.fixture
async def shell(api: FakeApi, tmp_path: Path) -> AsyncIterator[Shell]:
    base = {name: value for name, value in os.environ.items() if not name.startswith("BACKEND")}
    async with serving(api) as endpoint:
        keys = {"BACKEND_ENDPOINT": endpoint, "BACKEND_ACCESS_KEY": ACCESS_KEY, "BACKEND_SECRET_KEY": SECRET_KEY}
        yield Shell({**base, **keys, "COLUMNS": "200"}, tmp_path)


Running = Callable[..., Coroutine[Any, Any, Done]]
