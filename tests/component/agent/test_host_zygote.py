"""Hosts are forked from one process that has imported what they need: whose children they are, and how that ends."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from ai.backend.common.errors import PluginError
from ai.backend.pluginhost import HostedPlugin, launch
from tests.component.agent.test_plugin_host import is_alive
from tests.support.neighbours import REFERENCE

Launch = Callable[..., Coroutine[Any, Any, HostedPlugin]]


def status(pid: int, field: str) -> str:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(line.partition("\t")[2] for line in lines if line.startswith(field + ":"))


def parent(plugin: HostedPlugin) -> int:
    return int(status(plugin.host.pid, "PPid"))


def environment(pid: int) -> list[bytes]:
    return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")


async def gone(pid: int) -> None:
    async with asyncio.timeout(30):
        while is_alive(pid):  # noqa: ASYNC110  # nothing tells
            await asyncio.sleep(0.02)


@pytest.fixture
async def start() -> AsyncIterator[Launch]:
    made: list[HostedPlugin] = []

    async def one(*names: str) -> HostedPlugin:
        settings: dict[str, Any] = {"faults": {}}
        ended: list[str] = []
        plugin = await launch(
            REFERENCE, lambda key: settings, deadline_s=10.0, on_ended=ended.append, environment=list(names)
        )
        made.append(plugin)
        return plugin

    yield one
    for plugin in made:
        await plugin.close()
        async with asyncio.timeout(30):  # the system's first process reaps those whose zygote was killed
            while Path(f"/proc/{plugin.host.pid}").exists():  # noqa: ASYNC110, ASYNC240  # procfs does not block
                await asyncio.sleep(0.02)


async def test_hosts_are_siblings_with_sessions_of_their_own(start: Launch) -> None:
    first, second = await start(), await start()
    zygote = parent(first)
    assert zygote == parent(second)
    assert int(status(zygote, "PPid")) == os.getpid()
    assert len({os.getsid(pid) for pid in (os.getpid(), zygote, first.host.pid, second.host.pid)}) == 4
    await first.close()
    assert is_alive(second.host.pid)
    assert parent(await start()) == zygote


async def test_a_host_holds_nothing_of_the_zygote_or_of_another_host(start: Launch) -> None:
    """Its descriptors: three standard ones, its sockets, and what asyncio needs."""
    counts = {len(os.listdir(f"/proc/{(await start()).host.pid}/fd")) for _ in range(4)}
    assert len(counts) == 1, counts


async def test_the_environment_is_that_of_the_start(start: Launch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OF_A_VENDOR", "1")
    first = await start("OF_A_VENDOR")
    monkeypatch.setenv("OF_A_VENDOR", "2")
    second = await start("OF_A_VENDOR")
    assert b"OF_A_VENDOR=1" in environment(first.host.pid)
    assert b"OF_A_VENDOR=2" in environment(second.host.pid)
    retired = parent(first)
    assert retired != parent(second)
    assert is_alive(retired)
    await first.close()
    await gone(retired)


async def test_when_the_zygote_dies_its_hosts_die_and_another_is_started(start: Launch) -> None:
    first, second = await start(), await start()
    zygote = parent(first)
    os.kill(zygote, signal.SIGKILL)
    for plugin in (first, second):
        await gone(plugin.host.pid)
        with pytest.raises(PluginError, match="killed by SIGKILL"):
            await plugin.init()
    again = await start()
    await again.init()
    assert parent(again) != zygote


async def test_a_start_that_is_given_up_leaves_no_process() -> None:
    before = set(os.listdir("/proc"))
    for pause_s in (0.0, 0.001, 0.002, 0.005):
        task = asyncio.create_task(launch(REFERENCE, lambda key: {}, deadline_s=10.0, on_ended=lambda _: None))
        await asyncio.sleep(pause_s)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    async with asyncio.timeout(30):
        while any(is_host(pid) for pid in set(os.listdir("/proc")) - before):  # noqa: ASYNC110  # nothing tells
            await asyncio.sleep(0.02)


def is_host(pid: str) -> bool:
    """Whether it is a child of a child of this process that runs hosts."""
    try:
        mother = int(status(int(pid), "PPid"))
        return b"ai.backend.pluginhost" in Path(f"/proc/{mother}/cmdline").read_bytes()
    except (OSError, ValueError, StopIteration):
        return False
