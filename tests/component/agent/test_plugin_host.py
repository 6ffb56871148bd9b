"""The host process of a plugin: calls at once, deadlines, states that are saved, and its end."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from ai.backend.accelerator.mock.plugin import MockPlugin, MockSettings
from ai.backend.common.devices import ComputeDevice, DeviceAllocation
from ai.backend.common.errors import CreationDeferred, CreationDenied, NotFound, PluginError
from ai.backend.common.ids import DeviceId, KernelId, SessionId
from ai.backend.plugin.accelerator import (
    POWERS,
    AbstractLifecycleHook,
    CdiProvider,
    HealthWatching,
    HookContext,
    LifecycleCause,
    ManagedState,
    Partitionable,
    TerminationDeferred,
    Workload,
)
from ai.backend.plugin.accelerator.shapes import InvalidResponse
from ai.backend.pluginhost import HostedPlugin, launch
from ai.backend.pluginhost.process import HostedCallFailed
from tests.support.neighbours import REFERENCE

Launch = Callable[..., Coroutine[Any, Any, HostedPlugin]]
DEADLINE_S = 1.0


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.fixture
async def host(tmp_path: Path) -> AsyncIterator[Launch]:
    made: list[HostedPlugin] = []

    async def start(**faults: str) -> HostedPlugin:
        settings = {"faults": faults, "while_file": str(tmp_path / "faulty")}
        plugin = await launch(REFERENCE, lambda key: settings, deadline_s=DEADLINE_S, on_ended=lambda _: None)
        made.append(plugin)
        await plugin.init()
        (tmp_path / "faulty").touch()
        return plugin

    yield start
    for plugin in made:
        await plugin.close()
        assert not is_alive(plugin.host.pid)


def hook(plugin: HostedPlugin, state: ManagedState | None = None, number: int = 1) -> AbstractLifecycleHook:
    workload = Workload(
        id="", type="process_tree", kernel_id=KernelId(UUID(int=number)), session_id=SessionId(UUID(int=number))
    )
    context = HookContext(cause=LifecycleCause.CREATE, attempt=1, state=state or ManagedState())
    return plugin.create_lifecycle_hook(workload, DeviceAllocation(), context)


async def test_it_promises_what_the_plugin_promises(host: Launch) -> None:
    plugin = await host()
    assert (plugin.key, plugin.version, plugin.verified_on) == ("bad", "1", None)
    assert plugin.capabilities.health_watching
    assert isinstance(plugin, HealthWatching)
    assert not isinstance(plugin, Partitionable)


async def test_calls_do_not_wait_for_each_other(host: Launch) -> None:
    plugin = await host(pre_create="hang")
    slow = [asyncio.create_task(hook(plugin, number=n).pre_create()) for n in range(3)]
    began = time.monotonic()
    for _ in range(20):
        await plugin.list_devices()
    assert time.monotonic() - began < DEADLINE_S
    results = await asyncio.gather(*slow, return_exceptions=True)
    assert [type(result) for result in results] == [TimeoutError] * 3


async def test_a_deadline_ends_the_call_and_not_the_host(host: Launch) -> None:
    plugin = await host(list_devices="hang")
    with pytest.raises(TimeoutError):
        await plugin.list_devices()
    assert await plugin.available_slots()
    assert plugin.host.reason is None


@pytest.mark.parametrize("fault", ["block", "stubborn"])
async def test_a_deadline_ends_a_host_that_is_blocked(host: Launch, fault: str) -> None:
    plugin = await host(list_devices=fault)
    with pytest.raises(TimeoutError):
        await plugin.list_devices()
    await asyncio.sleep(0.3)
    assert plugin.host.reason == "list_devices blocked it for longer than its deadline"
    with pytest.raises(PluginError, match="is gone"):
        await plugin.available_slots()


async def test_a_caller_that_goes_does_not_hide_a_blocked_host(host: Launch) -> None:
    plugin = await host(pre_create="block")
    task = asyncio.create_task(hook(plugin).pre_create())
    await asyncio.sleep(0.2)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    async with asyncio.timeout(30):
        while plugin.host.reason is None:  # noqa: ASYNC110  # nothing tells
            await asyncio.sleep(0.05)
    assert "pre_create blocked it" in plugin.host.reason


async def test_a_caller_that_goes_cancels_its_call(host: Launch) -> None:
    plugin = await host(pre_create="hang")
    task = asyncio.create_task(hook(plugin).pre_create())
    await asyncio.sleep(0.2)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.sleep(DEADLINE_S + 1.2)
    assert await plugin.list_devices()
    assert plugin.host.reason is None


async def test_errors_come_through_by_name(host: Launch) -> None:
    with pytest.raises(CreationDenied, match="no, never"):
        await hook(await host(pre_create="deny")).pre_create()
    with pytest.raises(CreationDeferred, match="not now") as deferred:
        await hook(await host(pre_create="defer")).pre_create()
    assert deferred.value.retry_after == 7.0
    with pytest.raises(TerminationDeferred, match="wait") as later:
        await hook(await host(pre_terminate="defer-end")).pre_terminate()
    assert later.value.retry_after == 0.05
    with pytest.raises(HostedCallFailed, match="OSError: the driver is gone"):
        await hook(await host(post_create="raise")).post_create()
    with pytest.raises(InvalidResponse, match=r"\[0\].memory_size"):
        await (await host(list_devices="wrong-type")).list_devices()


@pytest.mark.parametrize(
    ("fault", "raised", "says"),
    [
        ("unspeakable", HostedCallFailed, "UnspeakableError: it cannot say what"),
        ("undecodable", HostedCallFailed, r"OSError: no such file: \?"),
    ],
)
async def test_an_error_is_told_whatever_it_says(host: Launch, fault: str, raised: type[Exception], says: str) -> None:
    plugin = await host(pre_create=fault)
    with pytest.raises(raised, match=says):
        await hook(plugin).pre_create()
    assert plugin.host.reason is None


async def test_what_is_no_time_to_wait_is_a_second(host: Launch) -> None:
    plugin = await host(pre_create="defer-never", pre_terminate="defer-end-never")
    with pytest.raises(CreationDeferred) as creation:
        await hook(plugin).pre_create()
    with pytest.raises(TerminationDeferred) as termination:
        await hook(plugin).pre_terminate()
    assert creation.value.retry_after == termination.value.retry_after == 1.0


async def test_a_state_comes_back_also_with_an_error(host: Launch) -> None:
    plugin = await host(pre_terminate="raise")
    state = ManagedState({"mine": [1, 2]}, version=3)
    await hook(plugin, state).pre_create()
    with pytest.raises(HostedCallFailed):
        await hook(plugin, state).pre_terminate()
    assert (state.data, state.version) == ({"mine": [1, 2], "pre_create": 1, "pre_terminate": 1}, 3)


async def test_a_state_that_was_saved_survives_the_death_of_the_host(host: Launch) -> None:
    plugin = await host(save="pre_create", pre_create="die")
    saved: list[dict[str, Any]] = []

    async def save(state: ManagedState) -> None:
        saved.append(dict(state.data))

    with pytest.raises(PluginError, match="exited with status 7"):
        await hook(plugin, ManagedState(saver=save)).pre_create()
    assert saved == [{"pre_create": 1}]


async def test_a_state_that_cannot_be_saved_is_told_to_the_hook(host: Launch) -> None:
    plugin = await host(save="pre_create")

    async def save(state: ManagedState) -> None:
        raise PluginError("the state has 70000 bytes; 65536 are allowed")

    with pytest.raises(PluginError, match="70000 bytes"):
        await hook(plugin, ManagedState(saver=save)).pre_create()
    with pytest.raises(PluginError, match="not JSON"):
        await hook(await host(state="pre_create")).pre_create()
    plugin = await host(listed="pre_create")
    with pytest.raises(PluginError, match="not JSON"):
        await hook(plugin).pre_create()
    assert plugin.host.reason is None


async def test_no_call_waits_for_a_host_that_is_dead(host: Launch) -> None:
    plugin = await host(pre_create="hang")
    hooks = [hook(plugin, number=n).pre_create() for n in range(100)]
    calls: list[asyncio.Task[Any]] = [asyncio.create_task(work) for work in (*hooks, _watched(plugin))]
    await asyncio.sleep(0.1)
    os.kill(plugin.host.pid, signal.SIGKILL)
    async with asyncio.timeout(0.8):
        results = await asyncio.gather(*calls, return_exceptions=True)
    assert {type(result) for result in results} == {PluginError}
    assert {str(result) for result in results} == {"its host process ended: it was killed by SIGKILL"}


async def _watched(plugin: HostedPlugin) -> None:
    assert isinstance(plugin, HealthWatching)
    async for _ in plugin.watch_health():
        pass


async def test_what_a_plugin_has_started_ends_with_its_host(host: Launch) -> None:
    plugin = await host(list_devices="spawn")
    child = int((await plugin.list_devices())[0].device_id)
    assert is_alive(child)
    os.kill(plugin.host.pid, signal.SIGKILL)
    async with asyncio.timeout(30):
        while is_alive(child):  # noqa: ASYNC110  # nothing tells
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("end", ["itself", "agent", "kill"])
async def test_a_daemon_that_a_plugin_has_detached_ends_with_its_host(host: Launch, end: str) -> None:
    """It has a session of its own and holds the host's output, and what it has started is detached from it too."""
    plugin = await host(list_devices="detach", configurable_slots="die")
    neighbour = await host(list_devices="detach")
    mine, others = [daemons_of(one.host.pid, await one.list_devices()) for one in (plugin, neighbour)]
    if end == "itself":
        with pytest.raises(PluginError, match="exited with status 7"):
            await asyncio.wait_for(plugin.configurable_slots(), 30)
    elif end == "kill":
        os.kill(plugin.host.pid, signal.SIGKILL)
    await asyncio.wait_for(plugin.close(), 30)
    async with asyncio.timeout(30):
        while any(map(is_alive, mine)):  # noqa: ASYNC110  # nothing tells
            await asyncio.sleep(0.02)
    assert all(map(is_alive, others)), "a neighbour's daemons are its own business"


def daemons_of(host: int, told: Sequence[ComputeDevice]) -> list[int]:
    daemons = [int(device.device_id) for device in told]
    assert len(daemons) == 2
    assert all(map(is_alive, daemons))
    assert len({os.getsid(pid) for pid in (host, *daemons)}) == 3
    return daemons


async def test_when_the_agent_is_killed_nothing_of_its_hosts_is_left() -> None:
    agent = await asyncio.create_subprocess_exec(sys.executable, "-c", AGENT, stdout=subprocess.PIPE)
    assert agent.stdout is not None
    pids = [int(pid) for pid in (await asyncio.wait_for(agent.stdout.readline(), 20)).split()]
    assert len(pids) == 4
    assert all(map(is_alive, pids))
    agent.kill()
    await agent.wait()
    async with asyncio.timeout(30):
        while any(map(is_alive, pids)):  # noqa: ASYNC110  # nothing tells
            await asyncio.sleep(0.02)


AGENT = """
import asyncio, os, pathlib
from ai.backend.pluginhost import launch

async def main():
    settings = {"faults": {"list_devices": "detach"}}
    plugin = await launch("tests.support.neighbours:Neighbour", lambda key: settings, deadline_s=10.0, on_ended=print)
    await plugin.init()
    daemons = [device.device_id for device in await plugin.list_devices()]
    status = pathlib.Path(f"/proc/{plugin.host.pid}/status").read_text()
    print(plugin.host.pid, status.split("PPid:")[1].split()[0], *daemons, flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


async def test_every_power_is_served(tmp_path: Path) -> None:
    settings = {"default-devices": 2}
    plugin = await launch("ai.backend.accelerator.mock", lambda key: settings, deadline_s=10.0, on_ended=lambda _: None)
    here = MockPlugin(MockSettings(default_devices=2))
    try:
        await plugin.init()
        await here.init()
        assert plugin.capabilities == here.capabilities
        for name, protocol in POWERS.items():
            assert isinstance(plugin, protocol) == isinstance(here, protocol) == getattr(here.capabilities, name), name
        if isinstance(plugin, CdiProvider) and isinstance(here, CdiProvider):
            assert await plugin.cdi_spec() == await here.cdi_spec()
        if isinstance(plugin, Partitionable):
            ids = [device.device_id for device in await plugin.list_devices()]
            assert isinstance(await plugin.partition_profiles(ids[0]), tuple)
            with pytest.raises(NotFound):
                await plugin.partition_profiles(DeviceId("no such device"))
    finally:
        await plugin.cleanup()
        await here.cleanup()


async def test_a_host_dies_with_whoever_started_it(tmp_path: Path) -> None:
    """SIGKILL: of a host that is idle, and of one that a library blocks."""
    for fault in ("", "block"):
        code = (
            "import asyncio, os, sys\n"
            "from ai.backend.pluginhost import launch\n"
            "async def main():\n"
            f"    settings = {{'faults': {{'list_devices': {fault!r}}}}}\n"
            f"    p = await launch({REFERENCE!r}, lambda key: settings, deadline_s=30.0, on_ended=print)\n"
            "    await p.init()\n"
            "    task = asyncio.create_task(p.list_devices())\n"
            "    await asyncio.sleep(0.2)\n"
            "    print(p.host.pid, flush=True)\n"
            "    await asyncio.sleep(60)\n"
            "asyncio.run(main())\n"
        )
        parent = await asyncio.create_subprocess_exec(
            sys.executable, "-c", code, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": os.getcwd()}
        )
        assert parent.stdout is not None
        pid = int(await parent.stdout.readline())
        assert is_alive(pid)
        parent.send_signal(signal.SIGKILL)
        await parent.wait()
        async with asyncio.timeout(30):
            while is_alive(pid):  # noqa: ASYNC110  # nothing tells
                await asyncio.sleep(0.02)


async def test_hosts_leave_nothing_open(host: Launch) -> None:
    plugin = await host()
    await plugin.close()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        await (await host()).close()
    await asyncio.sleep(0.1)
    assert len(os.listdir("/proc/self/fd")) <= before


async def test_a_cancelled_stop_leaves_no_host(host: Launch) -> None:
    plugin = await host()
    stopping = asyncio.create_task(plugin.close())
    await asyncio.sleep(0)
    stopping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stopping
    with pytest.raises(ProcessLookupError):
        os.kill(plugin.host.pid, 0)


async def test_a_failed_start_that_is_cancelled_leaves_no_host() -> None:
    """The agent stops while the host of a plugin that could not be imported is being ended."""
    tasks = asyncio.all_tasks()
    starting = asyncio.create_task(launch("no.such.module", lambda _: {}, deadline_s=30.0, on_ended=lambda _: None))
    async with asyncio.timeout(30):
        while not any(task.get_name().startswith("end of host of") for task in asyncio.all_tasks()):  # noqa: ASYNC110  # a task has no event
            await asyncio.sleep(0)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert asyncio.all_tasks() == tasks
