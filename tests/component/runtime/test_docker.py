"""The Docker runtime on a real engine: what a container really is, and what is left when something breaks."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from ai.backend.common.errors import CreationDenied, ImageMissing, Unavailable, WorkloadError
from ai.backend.common.ids import KernelId, SessionId
from ai.backend.common.structs import replace
from ai.backend.node.workload import runner_files
from ai.backend.node.workload.channel import RelayConnection
from ai.backend.plugin.accelerator import DeviceMapping, Mount, WorkloadConfig
from ai.backend.plugin.crash_points import VARIABLE
from ai.backend.plugin.runtime import WorkloadExit, WorkloadKey, WorkloadSpec, WorkloadState
from ai.backend.plugin.testing.runtime.suite import Talk
from ai.backend.runtime.docker.engine import Engine
from ai.backend.runtime.docker.runtime import DockerRuntime
from ai.backend.runtime.docker.settings import DockerRuntimeSettings
from tests.support.docker_engine import (
    BARE_IMAGE,
    CACHE,
    EMPTY_IMAGE,
    PYTHON_IMAGE,
    SHELL_IMAGE,
    DockerEngine,
    end_engine,
    remember_images,
)
from tests.support.runtime_crash_points import DOCKER_WORKLOAD_POINTS

pytestmark = [pytest.mark.needs("docker")]
PATIENCE_S = 30.0


def settings_for(engine: DockerEngine, **more: Any) -> dict[str, Any]:
    return {"docker_host": engine.host, "interpreter_directory": str(CACHE / "interpreter"), **more}


@asynccontextmanager
async def running(state: Path, engine: DockerEngine, **more: Any) -> AsyncIterator[DockerRuntime]:
    runtime = DockerRuntime(DockerRuntimeSettings(**settings_for(engine, **more)), state)
    await runtime.setup()
    try:
        yield runtime
    finally:
        for view in await runtime.list_workloads():
            await runtime.remove(view.key)
        await runtime.shutdown()


@pytest.fixture
async def runtime(tmp_path: Path, docker_engine: DockerEngine, known_images: Path) -> AsyncIterator[DockerRuntime]:
    remember_images(tmp_path / "state", known_images)
    async with running(tmp_path / "state", docker_engine) as runtime:
        yield runtime


def spec_of(image: str = PYTHON_IMAGE, **more: Any) -> WorkloadSpec:
    key = WorkloadKey(kernel_id=KernelId(uuid4()), attempt=1)
    return WorkloadSpec(key=key, session_id=SessionId(uuid4()), image=image, **more)


async def talk_to(runtime: DockerRuntime, spec: WorkloadSpec, *, epoch: int = 1, last_seq: int = 0) -> Talk:
    return Talk(await runtime.open_channel(spec.key, epoch=epoch, last_seq=last_seq), PATIENCE_S)


async def said(runtime: DockerRuntime, spec: WorkloadSpec, code: str) -> str:
    """What the code prints in a workload of its own."""
    await runtime.create(spec)
    talk = await talk_to(runtime, spec)
    await talk.run(code)
    await talk.close()
    return talk.text() + talk.text(stream="stderr")


async def exit_within(runtime: DockerRuntime, key: WorkloadKey) -> WorkloadExit:
    async with asyncio.timeout(PATIENCE_S):
        async for event in runtime.events():
            if event.key == key:
                return event.exit
    raise AssertionError("the events ended")


def traces(engine: DockerEngine, state: Path, kernel_id: str) -> list[str]:
    """What is left of a kernel, asked of the engine, the mount table and the disk, never of the runtime's books."""
    found = [f"container {c['Names']}" for c in engine.containers() if kernel_id in json.dumps(c)]
    found += [str(path) for path in state.rglob("*") if kernel_id in path.name]
    mounts = Path("/proc/self/mountinfo").read_text()
    return found + [line for line in mounts.splitlines() if kernel_id in line]


INSIDE = r"""
import grp, os, pwd, resource, socket, stat
def attempt(what, call):
    try:
        call(); print(what, "worked")
    except OSError as e:
        print(what, type(e).__name__)
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print("user", os.getuid(), os.getgid(), os.getgroups(), pwd.getpwuid(os.getuid()).pw_name, os.path.expanduser("~"))
print("powers", status["CapBnd"].strip(), status["NoNewPrivs"].strip(), status["Seccomp"].strip())
print("shm", os.statvfs("/dev/shm").f_blocks * os.statvfs("/dev/shm").f_frsize)
print("device", stat.S_ISCHR(os.stat("/dev/mine").st_mode), open("/dev/mine", "rb").read(2))
print("data", open("/data/note").read(), open("/home/work/folder/note").read())
print("variable", os.environ["FLAVOUR"], os.environ["LD_LIBRARY_PATH"], "cpus", sorted(os.sched_getaffinity(0)))
print("files", resource.getrlimit(resource.RLIMIT_FSIZE)[0], open("/home/config/x").read())
attempt("root", lambda: open("/usr/evil", "w"))
attempt("tmp", lambda: open("/tmp/mine", "w"))
attempt("volume", lambda: open("/scratch/mine", "w"))
attempt("read-only", lambda: open("/data/evil", "w"))
attempt("writable", lambda: open("/home/work/folder/mine", "w"))
attempt("config", lambda: open("/home/config/x", "w"))
attempt("runner", lambda: open("/opt/backend.ai/kernel/evil.py", "w"))
attempt("channel", lambda: open("/opt/backend.ai/channel/evil", "w"))
attempt("left", lambda: open("/opt/backend.ai/channel/left", "a"))
attempt("remove", lambda: os.unlink("/opt/backend.ai/channel/shim.sock"))
attempt("connect", lambda: socket.socket(socket.AF_UNIX).connect("/opt/backend.ai/channel/shim.sock"))
attempt("environ", lambda: open("/proc/1/environ").read())
attempt("descriptors", lambda: os.listdir("/proc/1/fd"))
attempt("network", lambda: socket.create_connection(("127.0.0.1", 1)))
"""


async def test_a_container_is_what_was_asked_for(
    tmp_path: Path, runtime: DockerRuntime, docker_engine: DockerEngine
) -> None:
    data, folder = tmp_path / "data", tmp_path / "folder"
    for place in (data, folder):
        place.mkdir()
        place.chmod(0o777)
        (place / "note").write_text(f"in {place.name}")
    config = WorkloadConfig(
        cpu_limit=1.0,
        memory_limit_bytes=256 << 20,
        cpuset=(0,),
        memory_nodes=(0,),
        extra_gids=(4321,),
        devices=(DeviceMapping(source="/dev/zero", target="/dev/mine"),),
        mounts=(
            Mount(source=str(data), target="/data"),
            Mount(source=f"{tmp_path}/./folder", target="/home/work/folder", read_only=False),
        ),
        env_vars={"LD_LIBRARY_PATH": "/nowhere"},
    )
    spec = spec_of(
        config=config,
        shmem_bytes=8 << 20,
        home_bytes=32 << 20,
        environ={"FLAVOUR": "mint"},
        files={"/home/config/x": b"y"},
    )
    found = dict(line.split(" ", 1) for line in (await said(runtime, spec, INSIDE)).splitlines())
    assert found["user"] == "59500 59500 [4321, 59500] work /home/work"
    assert found["powers"] == "0000000000000000 1 2"
    assert found["shm"] == str(8 << 20)
    assert found["device"] == "True b'\\x00\\x00'"
    assert found["data"] == "in data in folder"
    assert found["variable"] == "mint /nowhere cpus [0]"
    assert found["files"] == f"{32 << 20} y"
    kept = {name: found[name] for name in ("tmp", "writable", "volume")}
    assert set(kept.values()) == {"worked"}
    assert not docker_engine.call("GET", "/volumes")[1]["Volumes"], "an image's volume has no limit"
    refused = {
        "root",
        "read-only",
        "config",
        "runner",
        "channel",
        "left",
        "remove",
        "connect",
        "environ",
        "descriptors",
    }
    assert {found[name] for name in refused} <= {"PermissionError", "OSError"}
    assert (folder / "mine").stat().st_uid == 59500
    assert not any("/staged/" in line for line in traces(docker_engine, tmp_path / "state", str(spec.key.kernel_id)))
    measured = {m.key: m for m in (await runtime.measure([spec.key]))[spec.key]}
    assert {"cpu_used", "cpu_util", "mem", "pids", "io_scratch_size"} <= measured.keys()
    assert measured["mem"].capacity == 256 << 20
    processes = await runtime.measure_processes(spec.key)
    assert any(view.shown_pid == 1 for view in processes)


MOVE_PAGES = "import ctypes; libc = ctypes.CDLL(None, use_errno=True); print(libc.syscall(279, 0, 0, 0, 0, 0, 0))"
CARDS = "import os; print(*sorted(os.listdir('/sys/class/net')))"


@contextmanager
def networks_of(engine: DockerEngine, *names: str) -> Iterator[None]:
    """Networks of the engine without a way out, as those that a plugin names."""
    for name in names:
        body = json.dumps({"Name": name, "Driver": "bridge", "Internal": True}).encode()
        status, _ = engine.call("POST", "/networks/create", body)
        assert status == 201
    try:
        yield
    finally:
        for name in names:
            engine.call("DELETE", f"/networks/{name}")


async def test_networks_and_calls_of_plugins_reach_a_container(
    runtime: DockerRuntime, docker_engine: DockerEngine
) -> None:
    names = [f"fabric-{uuid4().hex[:8]}" for _ in range(2)]
    assert (await said(runtime, spec_of(), f"{CARDS}\n{MOVE_PAGES}")).split() == ["lo", "-1"]
    with networks_of(docker_engine, *names):
        spec = spec_of(config=WorkloadConfig(networks=tuple(names), extra_syscalls=("move_pages",)))
        assert (await said(runtime, spec, f"{CARDS}\n{MOVE_PAGES}")).split() == ["eth0", "eth1", "lo", "0"]
        await runtime.remove(spec.key)
    missing = spec_of(config=WorkloadConfig(networks=(names[0],)))
    with pytest.raises(CreationDenied, match=f"no network '{names[0]}'") as denied:
        await runtime.create(missing)
    assert denied.value.data == {"field": "networks", "key": names[0]}


async def test_the_engine_can_be_asked_for_statistics(tmp_path: Path, docker_engine: DockerEngine) -> None:
    async with running(tmp_path / "state", docker_engine, stats_type="docker") as runtime:
        spec = spec_of()
        await runtime.create(spec)
        measured = {m.key: m.value for m in (await runtime.measure([spec.key]))[spec.key]}
        assert {"cpu_used", "cpu_util", "mem", "pids"} <= measured.keys()
        assert measured["mem"] > 0


# ---- images


async def test_an_image_without_python_gets_the_agent_s(runtime: DockerRuntime, docker_engine: DockerEngine) -> None:
    docker_engine.ensure_image(SHELL_IMAGE)
    text = await said(runtime, spec_of(SHELL_IMAGE), "x=5; echo $((x + 1)) $BASH_VERSION")
    assert text.startswith("6 5.")


@pytest.mark.parametrize(
    ("image", "reason"),
    [
        (BARE_IMAGE, "GNU C library 2.17 or newer, does not start in it"),
        (EMPTY_IMAGE, "does not start in it"),
        ("base/foreign:1", "it is made for riscv64, and this node is "),
        ("base/none:1", "this node has no image 'base/none:1'"),
    ],
)
async def test_an_image_that_cannot_run_says_why(
    tmp_path: Path, runtime: DockerRuntime, docker_engine: DockerEngine, image: str, reason: str
) -> None:
    if image in (BARE_IMAGE, EMPTY_IMAGE):
        docker_engine.ensure_image(image)
    elif "foreign" in image:
        docker_engine.load_foreign_image(image)
    spec = spec_of(image)
    with pytest.raises(CreationDenied, match=reason):
        await runtime.create(spec)
    assert not traces(docker_engine, tmp_path / "state", str(spec.key.kernel_id))


# ---- what breaks


async def test_an_image_that_is_deleted_in_between(
    tmp_path: Path, runtime: DockerRuntime, docker_engine: DockerEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, image = "base/deleted:1", docker_engine.derive_image(PYTHON_IMAGE, "base/deleted:1", "LABEL a=b")
    first, second = spec_of(name), spec_of(name)
    await runtime.create(first)
    assert docker_engine.call("DELETE", f"/images/{name}?force=1")[0] == 200
    assert "lives" in await said(runtime, first, "print('lives')"), "it goes on"
    with pytest.raises(ImageMissing):
        await runtime.create(second)
    await runtime.remove(first.key)
    assert docker_engine.call("POST", f"/images/{image}/tag?repo=base/deleted&tag=1")[0] == 201
    create = runtime._engine.create

    async def too_late(container: str, body: Mapping[str, Any]) -> str:
        assert docker_engine.call("DELETE", f"/images/{image}?force=1")[0] == 200
        return await create(container, body)

    monkeypatch.setattr(runtime._engine, "create", too_late)
    with pytest.raises(ImageMissing, match="this node has no image 'base/deleted:1'"):
        await runtime.create(second)
    assert not traces(docker_engine, tmp_path / "state", str(second.key.kernel_id))


async def test_what_others_do_to_a_container_is_noticed(runtime: DockerRuntime, docker_engine: DockerEngine) -> None:
    killed, removed = spec_of(), spec_of()
    view, gone = await asyncio.gather(runtime.create(killed), runtime.create(removed))
    docker_engine.call("POST", f"/containers/{view.workload_id}/kill?signal=KILL")
    ended = await exit_within(runtime, killed.key)
    assert (ended.signal, ended.reason) == (signal.SIGKILL, "container-killed")
    docker_engine.call("DELETE", f"/containers/{gone.workload_id}?force=1")
    ended = await exit_within(runtime, removed.key)
    assert ended.signal == signal.SIGKILL
    assert ended.reason in ("container-killed", "container-removed")
    again = await runtime.inspect(removed.key)
    assert again is not None
    assert again.state is WorkloadState.EXITED


async def test_what_the_runner_said_last_outlives_it(runtime: DockerRuntime) -> None:
    spec = spec_of()
    await runtime.create(spec)
    talk = await talk_to(runtime, spec)
    await talk.kind("ready")
    code = "import os, time\nprint('last words', flush=True)\ntime.sleep(0.3)\nos.kill(os.getppid(), 15)"
    await talk.channel.send({"t": "run", "id": "r1", "mode": "query", "code": code})
    await talk.kind("started")
    await talk.close()
    await exit_within(runtime, spec.key)
    late = await talk_to(runtime, spec, epoch=2)
    await late.over()
    assert late.frames[-1]["t"] == "exited"
    assert late.text() == "last words\n"
    with pytest.raises(Unavailable):
        await late.channel.send({"t": "ping", "req": 1})


async def test_memory_is_a_limit(runtime: DockerRuntime) -> None:
    spec = spec_of(config=WorkloadConfig(memory_limit_bytes=48 << 20))
    await runtime.create(spec)
    talk = await talk_to(runtime, spec)
    finished = await talk.run("x = bytearray(200 << 20)")
    assert finished["exitCode"] != 0
    await talk.close()


async def test_a_home_over_its_limit_ends_the_session(tmp_path: Path, docker_engine: DockerEngine) -> None:
    async with running(tmp_path / "state", docker_engine, watch_interval_s=1.0) as runtime:
        spec = spec_of(home_bytes=4 << 20)
        await runtime.create(spec)
        talk = await talk_to(runtime, spec)
        code = "for i in range(3): open(f'{i}', 'wb').write(bytes(2 << 20))\nimport time\ntime.sleep(30)"
        await talk.channel.send({"t": "run", "id": "r1", "mode": "query", "code": code})
        assert (await exit_within(runtime, spec.key)).reason == "home-limit"
        await talk.close()


@contextmanager
def full_disk(place: Path, mib: int = 3) -> Iterator[Callable[[], None]]:
    """A small disk, and what fills it to the last byte."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={mib}m", "tmpfs", str(place)], check=True)

    def fill() -> None:
        with (place / "filler").open("wb", buffering=0) as file:
            for size in (1 << 20, 65536, 1):
                with suppress(OSError):
                    while file.write(bytes(size)):
                        pass

    try:
        yield fill
    finally:
        if place.is_mount():  # an engine that is swept away takes it along
            subprocess.run(["umount", str(place)], check=True)


async def test_a_full_disk_leaves_nothing(tmp_path: Path, docker_engine: DockerEngine) -> None:
    state = tmp_path / "state"
    state.mkdir()
    with full_disk(state) as fill:
        async with running(state, docker_engine, reserved_bytes=0) as runtime:
            first = spec_of()
            await runtime.create(first)
            fill()
            spec = spec_of(files={"/home/work/large": bytes(1 << 20)})
            with pytest.raises((WorkloadError, CreationDenied)):
                await runtime.create(spec)
            assert not traces(docker_engine, state, str(spec.key.kernel_id))
            ended = await runtime.stop(first.key, grace_s=1.0)
            assert ended is not None


@pytest.mark.parametrize("point", DOCKER_WORKLOAD_POINTS)
async def test_the_agent_dies(tmp_path: Path, docker_engine: DockerEngine, known_images: Path, point: str) -> None:
    kernel_id, state = str(uuid4()), tmp_path / "state"
    remember_images(state, known_images)
    script = str(Path(__file__).with_name("docker_driver.py"))
    command = [sys.executable, script, str(state), kernel_id, json.dumps(settings_for(docker_engine)), PYTHON_IMAGE]
    environ = {**os.environ, VARIABLE: point}
    done = await asyncio.to_thread(subprocess.run, command, env=environ, capture_output=True, timeout=50, check=False)
    assert done.returncode == -signal.SIGKILL, f"{point} was not reached: {done.stdout!r} {done.stderr!r}"
    key = WorkloadKey(kernel_id=KernelId(UUID(kernel_id)), attempt=1)
    async with running(state, docker_engine) as runtime:
        views = list(await runtime.list_workloads())
        assert all(view.state in (WorkloadState.RUNNING, WorkloadState.EXITED) for view in views)
        if not views:
            assert not traces(docker_engine, state, kernel_id)
            await runtime.create(WorkloadSpec(key=key, session_id=SessionId(uuid4()), image=PYTHON_IMAGE))
        await runtime.remove(key)
        assert not traces(docker_engine, state, kernel_id)


async def test_the_runner_of_a_living_container_stays(
    tmp_path: Path, docker_engine: DockerEngine, known_images: Path
) -> None:
    state, newer = tmp_path / "state", tmp_path / "newer"
    remember_images(state, known_images)
    shutil.copytree(runner_files.find_runner(), newer)
    (newer / "added.py").touch()
    spec = spec_of()
    async with running(state, docker_engine) as runtime:
        await runtime.create(spec)
        (used,) = (state / "runner").iterdir()
        (state / "runner" / "0123456789abcdef" / "__pycache__").mkdir(parents=True)
        await runtime.shutdown()
        async with running(state, docker_engine, runner_directory=str(newer)) as later:
            left = {path.name for path in (state / "runner").iterdir()}
            assert used.name in left
            assert len(left) == 2
            talk = await talk_to(later, spec)
            await talk.run("print('lives')")
            assert talk.text() == "lives\n"
            await talk.close()
            await later.remove(spec.key)
        async with running(state, docker_engine, runner_directory=str(newer)):
            assert {path.name for path in (state / "runner").iterdir()} == left - {used.name}
            assert not list((state / "images").glob(f"*-{used.name}"))


@pytest.mark.needs("crun")
async def test_runtimes_of_the_engine_are_chosen_by_name(
    runtime: DockerRuntime, docker_engine: DockerEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert {"runc", "crun"} <= set(runtime.info().runtime_classes)
    for name in ("runc", "crun"):
        spec = spec_of(runtime_class=name)
        assert "ran" in await said(runtime, spec, "print('ran')")
        view = await runtime.inspect(spec.key)
        assert view is not None
        shown = docker_engine.call("GET", f"/containers/{view.workload_id}/json")[1]
        assert shown["HostConfig"]["Runtime"] == name
        ended = await runtime.stop(spec.key, grace_s=1.0)
        assert ended is not None
        await runtime.remove(spec.key)
    with pytest.raises(CreationDenied, match="kata"):
        await runtime.create(spec_of(runtime_class="kata"))

    async def refused(_: object) -> RelayConnection:  # as of a machine that shares folders, and no sockets in them
        raise Unavailable("the workload's shim does not answer")

    monkeypatch.setattr(RelayConnection, "open", refused)
    with pytest.raises(WorkloadError, match=r"does not answer; the runtime class crun must let unix sockets through"):
        await runtime.create(spec_of(runtime_class="crun"))


@pytest.fixture
def own_engine() -> Iterator[DockerEngine]:
    """An engine that the test may kill; not started yet. Its sockets need a short path: they have 107 bytes."""
    directory = tempfile.mkdtemp(prefix="engine-")
    yield DockerEngine(Path(directory))
    shutil.rmtree(directory, ignore_errors=True)


async def test_an_engine_that_comes_and_goes(
    tmp_path: Path, own_engine: DockerEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = tmp_path / "state"
    absent = DockerRuntime(DockerRuntimeSettings(**settings_for(own_engine, engine_timeout_s=0.1)), state)
    with pytest.raises(Unavailable, match="the Docker engine does not answer"):
        await absent.setup()
    process = await asyncio.to_thread(own_engine.start)
    begin = Engine.start

    async def start_too_late(engine: Engine, container_id: str) -> None:
        process.kill()
        process.wait()
        await begin(engine, container_id)

    try:
        await asyncio.to_thread(own_engine.ensure_image, PYTHON_IMAGE)
        async with running(state, own_engine) as runtime:
            session = SessionId(uuid4())
            network = await runtime.create_network(session, ("main1", "sub1"))
            spec = replace(spec_of(hostname="main1", network=network), session_id=session)
            await runtime.create(spec)
            cut_off = spec_of()
            monkeypatch.setattr(Engine, "start", start_too_late)
            with pytest.raises(Unavailable):
                await runtime.create(cut_off)
            monkeypatch.undo()
            with pytest.raises(Unavailable):
                await runtime.inspect(spec.key)
            with pytest.raises(Unavailable):
                await runtime.stop(spec.key, grace_s=0.0)
            process = await asyncio.to_thread(own_engine.start)
            ended = await exit_within(runtime, spec.key)
            assert ended.reason == "engine-stopped"
            await runtime.remove(spec.key)
            assert list(await runtime.list_networks()) == [session]
            await runtime.remove_network(session)
            assert list(await runtime.list_networks()) == []
            for key in (spec.key, cut_off.key):
                assert not eventually(partial(traces, own_engine, state, str(key.kernel_id)))
            assert "done" in await said(runtime, spec_of(), "print('done')"), "it is used again"
    finally:
        await asyncio.to_thread(end_engine, own_engine, process)


async def test_an_engine_that_lets_containers_live_on(tmp_path: Path, own_engine: DockerEngine) -> None:
    state, engine = tmp_path / "state", replace(own_engine, options=("--live-restore",))
    process = await asyncio.to_thread(engine.start)
    try:
        await asyncio.to_thread(engine.ensure_image, PYTHON_IMAGE)
        async with running(state, engine, reconcile_interval_s=1.0) as runtime:
            session = SessionId(uuid4())
            network = await runtime.create_network(session, ("main1", "sub1"))
            spec = replace(spec_of(hostname="main1", network=network), session_id=session)
            await runtime.create(spec)
            talk = await talk_to(runtime, spec)
            await talk.run("x = 41")
            process.kill()
            process.wait()
            await talk.run("x += 1", "r2")
            process = await asyncio.to_thread(engine.start)
            await runtime._workloads.reconcile()
            await talk.run("print(x)", "r3")
            assert talk.text("r3") == "42\n"
            await talk.close()
            view = await runtime.inspect(spec.key)
            assert view is not None
            assert view.state is WorkloadState.RUNNING
            assert engine.call("POST", f"/containers/{view.workload_id}/kill?signal=KILL")[0] == 204
            assert (await exit_within(runtime, spec.key)).signal == signal.SIGKILL, "it is heard again"
            await runtime.remove(spec.key)
            await runtime.remove_network(session)
            assert not traces(engine, state, str(spec.key.kernel_id))
    finally:
        await asyncio.to_thread(end_engine, engine, process)


async def test_an_engine_whose_disk_is_full(tmp_path: Path, own_engine: DockerEngine) -> None:
    data = own_engine.directory / "data"
    data.mkdir()
    with full_disk(data, 300) as fill:
        process = await asyncio.to_thread(own_engine.start)
        try:
            await asyncio.to_thread(own_engine.ensure_image, PYTHON_IMAGE)
            async with running(tmp_path / "state", own_engine) as runtime:
                first, refused = spec_of(), spec_of()
                await runtime.create(first)
                fill()
                with pytest.raises(WorkloadError, match="no space left"):
                    await runtime.create(refused)
                assert not traces(own_engine, tmp_path / "state", str(refused.key.kernel_id))
                talk = await talk_to(runtime, first)
                await talk.run("print('lives')")
                assert talk.text() == "lives\n"
                await talk.close()
                await runtime.remove(first.key)
                assert not traces(own_engine, tmp_path / "state", str(first.key.kernel_id))
                (data / "filler").unlink()
                await runtime.create(refused)
                process.terminate()  # in good order, which asks every container to end
                process.wait()
                process = await asyncio.to_thread(own_engine.start)
                assert (await exit_within(runtime, refused.key)).reason == "engine-stopped"
        finally:
            await asyncio.to_thread(end_engine, own_engine, process)


async def test_containers_that_nobody_knows_are_removed(tmp_path: Path, docker_engine: DockerEngine) -> None:
    state = tmp_path / "state"
    async with running(state, docker_engine) as runtime:
        spec = spec_of()
        await runtime.create(spec)
        (record,) = (state / "workloads").glob("*/record.json")
        kept = record.read_bytes()
        record.unlink()
        await runtime.shutdown()
        async with running(state, docker_engine) as later:
            assert list(await later.list_workloads()) == []
            assert kept
        assert not eventually(lambda: traces(docker_engine, state / "workloads", str(spec.key.kernel_id)))


def eventually(left: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + PATIENCE_S
    while (found := left()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return found


@pytest.mark.needs("root")
async def test_a_full_disk_takes_no_new_container(
    tmp_path: Path, docker_engine: DockerEngine, known_images: Path
) -> None:
    state, homes = tmp_path / "state", tmp_path / "homes"
    homes.mkdir()
    remember_images(state, known_images)
    await asyncio.to_thread(subprocess.run, ["mount", "-t", "tmpfs", "-o", "size=64m", "t", str(homes)], check=True)
    try:
        async with running(state, docker_engine, homes_directory=str(homes)) as runtime:
            filler = homes / "filler"
            await asyncio.to_thread(filler.write_bytes, bytes(62 << 20))
            refused = spec_of()
            with pytest.raises(WorkloadError, match="the disk of this node is full"):
                await runtime.create(refused)
            assert traces(docker_engine, state, str(refused.key.kernel_id)) == []
            filler.unlink()
            assert await said(runtime, spec_of(), "print('room')") == "room\n"
    finally:
        await asyncio.to_thread(subprocess.run, ["umount", str(homes)], check=True)
