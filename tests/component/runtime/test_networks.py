"""Private networks of sessions on this machine: who reaches whom, and what is left when their agent is killed.

The audit looks at the network devices of the machine and at the engine, never at the runtime's own books.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from ai.backend.common.errors import CreationDenied, WorkloadError
from ai.backend.common.ids import KernelId, SessionId
from ai.backend.common.structs import replace
from ai.backend.node.linux.netlink import RouteSocket
from ai.backend.plugin.crash_points import VARIABLE
from ai.backend.plugin.runtime import AbstractRuntime, NetworkView, WorkloadKey, WorkloadSpec
from ai.backend.plugin.testing.runtime.suite import Talk
from ai.backend.runtime.docker.records import INSTANCE_LABEL
from ai.backend.runtime.process import networks
from ai.backend.runtime.process import runtime as process_runtime
from ai.backend.runtime.process.networks import SessionNetworks
from ai.backend.runtime.process.runtime import ProcessRuntime
from ai.backend.runtime.process.settings import ProcessRuntimeSettings
from tests.component.runtime.network_driver import HOSTS, make
from tests.support import forked
from tests.support.cluster import wait_until
from tests.support.docker_engine import CACHE, PYTHON_IMAGE, DockerEngine, remember_images
from tests.support.runtime_crash_points import DOCKER_NETWORK_POINTS, PROCESS_NETWORK_POINTS

DRIVER = Path(__file__).with_name("network_driver.py")
LISTENER = "import socket\nserver = socket.create_server(('', 4321))\nprint('listening', flush=True)\nserver.accept()\n"
on_processes = pytest.mark.needs("isolation", "root")


def devices(state: Path) -> set[str]:
    """Network devices of this machine that an agent on this directory has made, by the name that it gave them."""
    mark = sha256(str(state).encode()).hexdigest()[:16]
    return {path.parent.name for path in Path("/sys/class/net").glob("bai*/ifalias") if mark in path.read_text()}


@asynccontextmanager
async def running(kind: str, state: Path, **settings: Any) -> AsyncIterator[AbstractRuntime]:
    runtime = make(kind, state, settings)
    await runtime.setup()
    try:
        yield runtime
    finally:
        for view in await runtime.list_workloads():
            await runtime.remove(view.key)
        for session in await runtime.list_networks():
            await runtime.remove_network(session)
        await runtime.shutdown()


async def start(runtime: AbstractRuntime, network: NetworkView, host: str) -> Talk:
    key = WorkloadKey(kernel_id=KernelId(uuid4()), attempt=1)
    spec = WorkloadSpec(key=key, session_id=network.session_id, image="python", hostname=host, network=network)
    await runtime.create(spec)
    talk = Talk(await runtime.open_channel(key, epoch=1), 20.0)
    await talk.kind("ready")
    return talk


async def die(kind: str, state: Path, session: SessionId, settings: str, image: str, point: str, *more: str) -> None:
    command = [sys.executable, str(DRIVER), kind, str(state), str(session), settings, image, *more]
    done = await asyncio.to_thread(forked.run, command, env={**os.environ, VARIABLE: point}, timeout=50)
    assert done.returncode == -signal.SIGKILL, f"{point} was not reached: {done.stdout} {done.stderr}"


@on_processes
async def test_sessions_and_the_host_are_out_of_reach(tmp_path: Path) -> None:
    probe = "import socket\ns = socket.socket()\ns.settimeout(1)\nprint(s.connect_ex(({!r}, {})))\n"
    server = await asyncio.start_server(lambda *_: None, "0.0.0.0", 0)
    port = server.sockets[0].getsockname()[1]
    async with running("process", tmp_path / "state", network="none") as runtime:
        ours, theirs = [await runtime.create_network(SessionId(uuid4()), HOSTS) for _ in range(2)]
        here, there = await start(runtime, ours, "main1"), await start(runtime, theirs, "sub1")
        await there.channel.send({"t": "run", "id": "r1", "mode": "query", "code": LISTENER})
        await there.until(lambda _: "listening" in there.text(), "listening")
        for number, address in enumerate(("sub1", *host_addresses())):
            await here.run(probe.format(address, 4321 if address == "sub1" else port), f"p{number}")
            assert here.text(f"p{number}").strip() not in ("", "0"), address
        await asyncio.gather(here.close(), there.close())
    server.close()
    assert not devices(tmp_path / "state")


def host_addresses() -> list[str]:
    """Of the machine, as its routes tell them; and the one that a gateway would have."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        try:
            one.connect(("192.0.2.1", 9))
        except OSError:
            return ["10.213.0.1"]
        return [one.getsockname()[0], "10.213.0.1"]


@on_processes
@pytest.mark.parametrize("point", [*PROCESS_NETWORK_POINTS, "network.made wide"])
async def test_an_agent_of_processes_dies(tmp_path: Path, point: str) -> None:
    state, session = tmp_path / "state", SessionId(uuid4())
    await die("process", state, session, "{}", "python", *point.split())
    async with running("process", state) as runtime:
        assert list(await runtime.list_networks()) == [session]
        for view in await runtime.list_workloads():
            await runtime.remove(view.key)
        await runtime.remove_network(session)
        assert list(await runtime.list_networks()) == []
        assert not devices(state)


@on_processes
async def test_a_device_without_a_record_is_found(tmp_path: Path) -> None:
    async with running("process", tmp_path / "state") as runtime:
        assert isinstance(runtime, ProcessRuntime)
        view = await runtime.create_network(SessionId(uuid4()), HOSTS)
        (tmp_path / "state/networks" / f"{view.session_id}.json").unlink()
        assert list(await runtime.list_networks()) == [view.session_id]
        assert devices(tmp_path / "state") == {runtime._networks.device(view.session_id)}
    assert not devices(tmp_path / "state")


@on_processes
async def test_a_successor_waits_for_its_place(tmp_path: Path) -> None:
    """The kernel removes the device of whoever has ended a little later; here it has to keep it for a while."""
    async with running("process", tmp_path / "state") as runtime:
        view = await runtime.create_network(SessionId(uuid4()), HOSTS)
        await (await start(runtime, view, "main1")).close()
        (first,) = await runtime.list_workloads()
        namespace = os.open(f"/proc/{(await runtime.pids(first.key))[0]}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        await runtime.remove(first.key)
        asyncio.get_running_loop().call_later(0.5, os.close, namespace)
        await (await start(runtime, view, "main1")).close()


@on_processes
async def test_a_network_that_is_gone_is_told_as_the_reason(tmp_path: Path) -> None:
    async with running("process", tmp_path / "state") as runtime:
        view = await runtime.create_network(SessionId(uuid4()), HOSTS)
        (device,) = devices(tmp_path / "state")
        await asyncio.to_thread(remove_device, device)
        with pytest.raises(WorkloadError, match=r"network: .*No such device"):
            await start(runtime, view, "main1")


def remove_device(name: str) -> None:
    with RouteSocket() as route:
        route.remove(name)


def namespaces_of_this_process() -> set[str]:
    """Network namespaces that this process holds by a descriptor."""
    targets = set()
    for link in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            targets.add(str(link.readlink()))
    return {target for target in targets if target.startswith("net:")}


@on_processes
async def test_a_cancelled_creation_leaves_no_namespace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    began, goes_on = threading.Event(), threading.Event()

    def make_late(network: NetworkView, hostname: str) -> int:
        namespace = networks.make_namespace(network, hostname)
        began.set()
        goes_on.wait(20)
        return namespace

    monkeypatch.setattr(process_runtime, "make_namespace", make_late)
    async with running("process", tmp_path / "state") as runtime:
        view = await runtime.create_network(SessionId(uuid4()), HOSTS)
        starting = asyncio.create_task(start(runtime, view, "main1"))
        await asyncio.to_thread(began.wait, 20)
        assert namespaces_of_this_process()
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        goes_on.set()
        await asyncio.to_thread(wait_until, lambda: not namespaces_of_this_process(), what="the descriptor")
        monkeypatch.undo()
        await (await start(runtime, view, "main1")).close()
        assert not namespaces_of_this_process()


@on_processes
async def test_more_kernels_than_addresses_are_refused(tmp_path: Path) -> None:
    async with running("process", tmp_path / "state", session_networks="10.9.8.0/28") as runtime:
        with pytest.raises(CreationDenied, match="no room for a network of 14 kernels"):
            await runtime.create_network(SessionId(uuid4()), [f"sub{n}" for n in range(14)])


async def test_where_there_can_be_none_the_reason_is_told(tmp_path: Path) -> None:
    runtime = ProcessRuntime(ProcessRuntimeSettings(sandbox="off", cgroups="off"), tmp_path / "state")
    await runtime.setup()
    try:
        with pytest.raises(CreationDenied, match=r"networks of sessions need (root|bubblewrap)"):
            await runtime.create_network(SessionId(uuid4()), HOSTS)
        assert runtime.info().enforcement["session-networks"] == "none"
        spec = WorkloadSpec(
            key=WorkloadKey(kernel_id=KernelId(uuid4()), attempt=1), session_id=SessionId(uuid4()), image="python"
        )
        with pytest.raises(CreationDenied, match="no runtime class 'crun'"):
            await runtime.create(replace(spec, runtime_class="crun"))
    finally:
        await runtime.shutdown()


def test_names_differ_by_agent_and_session(tmp_path: Path) -> None:
    pool = ProcessRuntimeSettings().session_networks
    names = {
        SessionNetworks(tmp_path / agent, pool).device(SessionId(uuid4())) for agent in ("a", "b") for _ in range(50)
    }
    assert len(names) == 100
    assert all(len(name) <= 15 for name in names)


# ---- on an engine


def engine_settings(engine: DockerEngine) -> dict[str, Any]:
    return {"docker_host": engine.host, "interpreter_directory": str(CACHE / "interpreter")}


def networks_of(engine: DockerEngine, runtime: Any) -> list[str]:
    """Those on the engine that this agent must answer for."""
    mine = runtime._state.instance
    return [n["Name"] for n in engine.call("GET", "/networks")[1] if (n["Labels"] or {}).get(INSTANCE_LABEL) == mine]


@pytest.mark.needs("docker")
@pytest.mark.parametrize("point", DOCKER_NETWORK_POINTS)
async def test_an_agent_of_containers_dies(
    tmp_path: Path, docker_engine: DockerEngine, known_images: Path, point: str
) -> None:
    state, session = tmp_path / "state", SessionId(uuid4())
    remember_images(state, known_images)
    settings = engine_settings(docker_engine)
    await die("docker", state, session, json.dumps(settings), PYTHON_IMAGE, point)
    async with running("docker", state, **settings) as runtime:
        left = networks_of(docker_engine, runtime)
        assert len(await runtime.list_networks()) == len(left) == (point in ("network.made", "network.emptied"))
        view = await runtime.create_network(session, HOSTS)
        assert await runtime.create_network(session, HOSTS) == view
        for workload in await runtime.list_workloads():
            await runtime.remove(workload.key)
        await runtime.remove_network(session)
        assert networks_of(docker_engine, runtime) == []


@pytest.mark.needs("docker")
async def test_a_network_that_is_taken_from_containers_is_broken(
    tmp_path: Path, docker_engine: DockerEngine, known_images: Path
) -> None:
    remember_images(tmp_path / "state", known_images)
    async with running("docker", tmp_path / "state", **engine_settings(docker_engine)) as runtime:
        networks = [await runtime.create_network(SessionId(uuid4()), HOSTS) for _ in range(2)]
        containers: dict[SessionId, str] = {}
        for network in networks:
            key = WorkloadKey(kernel_id=KernelId(uuid4()), attempt=1)
            session = network.session_id
            spec = WorkloadSpec(key=key, session_id=session, image=PYTHON_IMAGE, hostname="main1", network=network)
            containers[session] = (await runtime.create(spec)).workload_id
        assert await runtime.broken_networks() == ()
        whole, lost = networks
        place = f"/networks/{lost.network_id}"
        body = json.dumps({"Container": containers[lost.session_id], "Force": True}).encode()
        assert docker_engine.call("POST", f"{place}/disconnect", body)[0] == 200
        assert await runtime.broken_networks() == (lost.session_id,)
        assert docker_engine.call("DELETE", place)[0] == 204
        assert await runtime.broken_networks() == (lost.session_id,)
        assert await runtime.list_networks() == (whole.session_id,)
        await runtime.remove_network(lost.session_id)
        for view in await runtime.list_workloads():
            await runtime.stop(view.key, grace_s=0.0)
        assert await runtime.broken_networks() == ()


@pytest.mark.needs("docker")
async def test_networks_of_an_engine_do_not_overlap(tmp_path: Path, docker_engine: DockerEngine) -> None:
    settings = {**engine_settings(docker_engine), "session_networks": "10.9.8.0/27"}
    async with running("docker", tmp_path / "state", **settings) as runtime:
        one, two = await asyncio.gather(*(runtime.create_network(SessionId(uuid4()), HOSTS) for _ in range(2)))
        assert not set(one.addresses.values()) & set(two.addresses.values())
        with pytest.raises(CreationDenied, match="no addresses are left"):
            await runtime.create_network(SessionId(uuid4()), HOSTS)
        with pytest.raises(CreationDenied, match="no room"):
            await runtime.create_network(SessionId(uuid4()), [f"sub{n}" for n in range(40)])
