"""What the tiers really give: to an ordinary user, without a network, in small memory, with devices and images."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from ai.backend.common.errors import CreationDenied
from ai.backend.common.ids import KernelId, SessionId
from ai.backend.common.states import Enforcement
from ai.backend.common.structs import replace
from ai.backend.plugin.accelerator import DeviceMapping, Mount, WorkloadConfig
from ai.backend.plugin.runtime import WorkloadKey, WorkloadSpec
from ai.backend.plugin.testing.runtime.suite import Talk
from ai.backend.runtime.process import rootfs
from ai.backend.runtime.process.probe import probe
from ai.backend.runtime.process.runtime import ProcessRuntime
from ai.backend.runtime.process.sandbox import HostPaths, compose
from ai.backend.runtime.process.settings import ProcessRuntimeSettings
from tests.component.runtime.audit import eventually, traces_of

MIB = 1024 * 1024
ORDINARY_UID = 12345
DRIVER = Path(__file__).with_name("driver.py")


@pytest.fixture
async def runtime(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ProcessRuntime]:
    settings: dict[str, Any] = dict(getattr(request, "param", {}))
    if "homes_directory" in settings:
        settings["homes_directory"] = tmp_path / settings["homes_directory"]
    runtime = ProcessRuntime(ProcessRuntimeSettings(**settings), tmp_path / "state")
    await runtime.setup()
    yield runtime
    for view in await runtime.list_workloads():
        await runtime.remove(view.key)
    await runtime.shutdown()


async def start(runtime: ProcessRuntime, image: str = "python", **changes: Any) -> tuple[WorkloadKey, Talk]:
    key = WorkloadKey(kernel_id=KernelId(uuid4()), attempt=1)
    await runtime.create(WorkloadSpec(key=key, session_id=SessionId(uuid4()), image=image, **changes))
    talk = Talk(await runtime.open_channel(key, epoch=1), 20.0)
    await talk.kind("ready")
    return key, talk


def ordinary_python() -> str:
    """An interpreter of this version that an ordinary user may execute, or a skip."""
    ask = "import os, sys; print(sys.version_info[:2], os.access(os.path.realpath(sys.executable), os.X_OK))"
    for candidate in (sys.executable, shutil.which("python3", path="/usr/bin") or ""):
        command = ["setpriv", f"--reuid={ORDINARY_UID}", f"--regid={ORDINARY_UID}", "--clear-groups", candidate]
        try:
            done = subprocess.run([*command, "-c", ask], capture_output=True, text=True, check=False)
        except OSError:
            continue
        if done.stdout.strip() == f"{sys.version_info[:2]} True":
            return candidate
    pytest.skip("machine: no interpreter of this version is open to an ordinary user")


@pytest.fixture
def ordinary() -> Iterator[Path]:
    """A directory of an ordinary user."""
    base = Path("/tmp", f"backendai-test-{uuid4().hex[:8]}")
    base.mkdir()
    os.chown(base, ORDINARY_UID, ORDINARY_UID)
    yield base
    shutil.rmtree(base)


def as_ordinary_user(base: Path, kernel_id: str, settings: dict[str, Any], *more: str) -> list[dict[str, Any]]:
    """One life of a workload under an ordinary user's runtime; its steps."""
    packages = [entry for entry in sys.path if entry.endswith("site-packages")]
    environ = {
        "PATH": "/usr/bin:/bin",
        "PYTHONPATH": os.pathsep.join([str(DRIVER.parents[3] / "src"), *packages]),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    identity = ["setpriv", f"--reuid={ORDINARY_UID}", f"--regid={ORDINARY_UID}", "--clear-groups"]
    command = [*identity, ordinary_python(), str(DRIVER), str(base / "state"), kernel_id, json.dumps(settings)]
    done = subprocess.run(
        [*command, "removed", *more], env=environ, capture_output=True, text=True, timeout=50, check=False
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.needs("root", "isolation")
@pytest.mark.parametrize(("settings", "tier"), [({}, "caged"), ({"sandbox": "off"}, "bare")])
def test_an_ordinary_user_without_delegation(ordinary: Path, settings: dict[str, Any], tier: str) -> None:
    kernel_id = str(uuid4())
    steps = as_ordinary_user(ordinary, kernel_id, settings)
    assert steps[0] == {"step": "setup", "tier": tier}
    assert [step["step"] for step in steps[1:]] == ["ready", "stopped", "removed", "shutdown"]
    assert not eventually(lambda: traces_of(kernel_id, ordinary))


@pytest.mark.needs("root", "isolation")
def test_an_ordinary_user_who_may_not_stage_mounts_nothing_behind_a_link(tmp_path: Path) -> None:
    findings = probe(ProcessRuntimeSettings(), tmp_path)
    home, source = tmp_path / "home", str(tmp_path)
    home.mkdir()
    (home / "link").symlink_to("/newroot")
    host_paths = HostPaths(
        bwrap=findings.host.bwrap or "",
        home=home,
        runner=findings.host.runner,
        static_folder=findings.host.static_folder,
        etc_folder=None,
        prefixes=(),
        rootfs=None,
        python=None,
        mounts=[],
        devices=(),
        files={},
        folders={},
        hostname="main1",
        tmp_bytes=MIB,
        shmem_bytes=MIB,
        has_private_network=False,
        has_seccomp=False,
        has_block_fd=False,
        is_staged=False,
        in_user_namespace=True,
    )
    for targets in (["/home/work/link/x"], ["/home/work/link"], ["/home/work/a", "/home/work/a/b"]):
        mounts = [Mount(source=source, target=target, read_only=True) for target in targets]
        with pytest.raises(CreationDenied, match="behind a link"):
            compose(replace(host_paths, mounts=mounts), ["/bin/true"])
    plain_mount = Mount(source=source, target="/home/work/a", read_only=True)
    arguments, _ = compose(replace(host_paths, mounts=[plain_mount]), ["/bin/true"])
    assert arguments[arguments.index("/home/work/a") - 2] == "--ro-bind"


@pytest.mark.needs("root", "isolation")
def test_an_ordinary_user_mounts_a_path_in_a_folder(ordinary: Path) -> None:
    """Opened beneath the folder: what is a link when the session starts is nowhere mounted."""
    folder = ordinary / "folder"
    (folder / "sub/dir").mkdir(parents=True)
    (folder / "sub/dir/file").write_text("inside")
    (folder / "link").symlink_to("/etc")
    for path in (folder, folder / "sub", folder / "sub/dir"):
        os.chown(path, ORDINARY_UID, ORDINARY_UID)
    code = (
        "import os; open('/mnt/data/made', 'w').close()\n"
        "print(sorted(os.listdir('/mnt/data')), os.path.exists('/tmp/0'))"
    )
    steps = as_ordinary_user(ordinary, str(uuid4()), {}, f"{folder}/./sub/dir", code)
    assert {"step": "ran", "said": "['file', 'made'] False\n"} in steps, steps
    assert (folder / "sub/dir/made").stat().st_uid == ORDINARY_UID
    for below in ("link", "gone"):
        failed = as_ordinary_user(ordinary, str(uuid4()), {}, f"{folder}/./{below}", code)
        assert [step["step"] for step in failed] == ["setup", "failed", "shutdown"]
    bare = as_ordinary_user(ordinary, str(uuid4()), {"sandbox": "off"}, f"{folder}/./sub/dir", code)
    assert "no path in a folder can be mounted" in bare[1]["error"]


@pytest.mark.needs("root", "isolation")
@pytest.mark.parametrize(("network", "exposure"), [("none", "private"), ("host", "host")])
def test_an_ordinary_user_connects_to_a_port(ordinary: Path, network: str, exposure: str) -> None:
    """Into a network of its own by the power over what its sandbox owns."""
    code = (
        "import socketserver, threading\n"
        "class Hello(socketserver.BaseRequestHandler):\n"
        "    def handle(self): self.request.sendall(b'hello')\n"
        "server = socketserver.TCPServer(('127.0.0.1', 0), Hello)\n"
        "threading.Thread(target=server.serve_forever, daemon=True).start()\n"
        "print(server.server_address[1])\n"
    )
    steps = as_ordinary_user(ordinary, str(uuid4()), {"network": network}, str(ordinary), code)
    assert {"step": "connected", "said": "hello", "exposure": exposure} in steps, steps


@pytest.mark.needs("isolation", "cgroups", "root")
async def test_control_groups_have_the_limits(runtime: ProcessRuntime) -> None:
    config = WorkloadConfig(cpu_limit=0.5, memory_limit_bytes=96 * MIB, cpuset=(0,))
    key, talk = await start(runtime, config=config, pids=77)
    await talk.run("import os; print(sorted(os.sched_getaffinity(0)))")
    assert talk.text() == "[0]\n"
    record = json.loads((runtime.state_dir / "workloads" / str(key) / "record.json").read_text())
    values = limits_of([group["path"] for group in record["cgroups"]])
    assert values in (
        {"memory.limit_in_bytes": str(96 * MIB), "cpu.cfs_quota_us": "50000", "pids.max": "77"},
        {"memory.max": str(96 * MIB), "cpu.max": "50000", "pids.max": "77"},
    )
    await talk.close()


def limits_of(groups: list[str]) -> dict[str, str]:
    """The first word of each limit's file, where there is one."""
    names = ("memory.limit_in_bytes", "cpu.cfs_quota_us", "pids.max", "memory.max", "cpu.max")
    paths = (Path(group, name) for group in groups for name in names)
    return {path.name: path.read_text().split()[0] for path in paths if path.exists()}


@pytest.mark.needs("isolation", "cgroups", "root")
async def test_one_core_is_one_core(runtime: ProcessRuntime) -> None:
    key, talk = await start(runtime, config=WorkloadConfig(cpu_limit=0.2, memory_limit_bytes=128 * MIB))
    await runtime.measure([key])
    code = "import time\nend = time.monotonic() + 1.0\nwhile time.monotonic() < end: pass\nprint(time.process_time())"
    await talk.run(code)
    assert float(talk.text()) < 0.5
    measured = {m.key: m for m in (await runtime.measure([key]))[key]}
    assert measured["cpu_util"].value < 60
    assert measured["mem"].capacity == 128 * MIB
    await talk.close()


@pytest.mark.needs("isolation")
@pytest.mark.parametrize("runtime", [{"network": "none"}], indirect=True)
async def test_no_network(runtime: ProcessRuntime) -> None:
    assert runtime.info().enforcement["network"] is Enforcement.ENFORCED
    _, talk = await start(runtime)
    code = (
        "import socket\nprint([name for _, name in socket.if_nameindex()])\n"
        "try: socket.create_connection(('192.0.2.1', 80), timeout=2)\nexcept OSError as e: print(e.errno)"
    )
    await talk.run(code)
    assert talk.text() == "['lo']\n101\n"
    await talk.close()


@pytest.mark.needs("isolation")
async def test_devices_and_mounts(runtime: ProcessRuntime, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "file").write_text("shared")
    data.chmod(0o777)
    config = WorkloadConfig(
        devices=(DeviceMapping(source="/dev/zero", target="/dev/accel0"),),
        mounts=(Mount(source=str(data), target="/mnt/ro"), Mount(source=str(data), target="/mnt/rw", read_only=False)),
    )
    _, talk = await start(runtime, config=config)
    code = (
        "import os\nprint(open('/dev/accel0', 'rb').read(2), open('/mnt/ro/file').read())\n"
        "open('/mnt/rw/made', 'w').close()\n"
        "try: open('/mnt/ro/no', 'w')\nexcept OSError as e: print(e.errno)\n"
        "print(os.path.exists('/dev/vda'), os.path.exists('/dev/kmsg'))\n"
        "print(os.path.isdir('/sys/class'), os.path.exists('/sys/kernel'), os.access('/sys/class', os.W_OK))"
    )
    await talk.run(code)
    assert talk.text() == "b'\\x00\\x00' shared\n30\nFalse False\nTrue False False\n"
    assert sorted(os.listdir(data)) == ["file", "made"]
    await talk.close()


@pytest.mark.needs("isolation")
@pytest.mark.parametrize("target", ["/", "/etc", "/proc/self", "relative", "/mnt/../etc", "/home/work"])
async def test_bad_mounts_are_denied(runtime: ProcessRuntime, tmp_path: Path, target: str) -> None:
    key = WorkloadKey(kernel_id=KernelId(uuid4()), attempt=1)
    config = WorkloadConfig(mounts=(Mount(source=str(tmp_path), target=target),))
    with pytest.raises(CreationDenied):
        await runtime.create(WorkloadSpec(key=key, session_id=SessionId(uuid4()), image="python", config=config))
    assert not traces_of(str(key.kernel_id), runtime.state_dir)


@pytest.mark.needs("isolation", "gcc")
async def test_a_bash_and_a_c_session(runtime: ProcessRuntime) -> None:
    _, shell = await start(runtime, "bash")
    await shell.run("x=41; echo $((x + 1)) $HOME $USER")
    assert shell.text() == "42 /home/work work\n"
    await shell.close()
    _, talk = await start(runtime, "c")
    await talk.run('#include <stdio.h>\nint main(void) { puts("compiled"); return 0; }')
    assert talk.text() == "compiled\n"
    await talk.close()


@pytest.mark.needs("isolation")
async def test_shims_are_small(runtime: ProcessRuntime) -> None:
    """Five hundred of them must fit: private memory of a shim beside its zygote's shared pages."""
    shims: list[int] = []
    for _ in range(5):
        key, talk = await start(runtime)
        await talk.run("print('x' * 1000)")
        await talk.close()
        shims.append(json.loads((runtime.state_dir / "workloads" / str(key) / "shim.json").read_text())["shim"][0])
    sizes = [private_bytes(pid) for pid in shims]
    assert max(sizes) < 3.5 * MIB, sizes


def private_bytes(pid: int) -> int:
    lines = (line.split() for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines())
    return sum(int(words[1]) * 1024 for words in lines if words[0] in ("Private_Clean:", "Private_Dirty:"))


@pytest.mark.needs("isolation")
@pytest.mark.slow
async def test_an_imported_root_runs_its_own_python(runtime: ProcessRuntime, tmp_path: Path) -> None:
    """A root directory made of this host's own files, as an archive."""
    version = await asyncio.to_thread(system_python)
    archive = await asyncio.to_thread(make_root_archive, tmp_path, version)
    images = runtime.state_dir / "images"
    image = await asyncio.to_thread(rootfs.import_image, archive, "team/tiny:1", images)
    assert image.name == "team/tiny:1"
    assert "team/tiny:1" in {found.name for found in await runtime.list_images()}
    _, talk = await start(runtime, "team/tiny:1")
    await talk.run("import sys, os; print(sys.executable, open('/etc/who').read(), os.path.exists('/usr/sbin'))")
    assert talk.text() == f"/usr/bin/python{version} image False\n"
    await talk.close()


def system_python() -> str:
    """The version of /usr/bin/python3, like 3.11."""
    ask = ["/usr/bin/python3", "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
    try:
        return subprocess.run(ask, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        pytest.skip("machine: no system Python to make an image of")


def make_root_archive(base: Path, version: str) -> Path:
    (base / "who").write_text("image")
    archive = base / "root.tar"
    ldd = subprocess.run(["ldd", f"/usr/bin/python{version}"], capture_output=True, text=True, check=True)
    linked = ldd.stdout.split()
    with tarfile.open(archive, "w") as tar:
        tar.add(base / "who", "etc/who")
        for name in (f"/usr/bin/python{version}", f"/usr/lib/python{version}", "/bin/sh", *linked):
            if name.startswith("/") and Path(name).exists():
                tar.add(os.path.realpath(name), name.lstrip("/"), filter=without_caches)
        for library in Path("/lib", f"{os.uname().machine}-linux-gnu").glob("lib*.so*"):
            if library.stat().st_size < 3 * MIB:
                tar.add(os.path.realpath(library), str(library).lstrip("/"))
    return archive


def without_caches(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    skip = ("__pycache__", "/test/", "/config-", "/idlelib", "/tkinter", "/ensurepip")
    return None if any(part in member.name for part in skip) else member


@pytest.mark.parametrize("runtime", [{"homes_directory": "HOMES"}], indirect=True)
async def test_homes_are_where_the_settings_say(runtime: ProcessRuntime, tmp_path: Path) -> None:
    """`container.scratch-root` of the published file."""
    key, talk = await start(runtime)
    await talk.run("open('here', 'w').close()")
    home = tmp_path / "HOMES" / str(key.kernel_id)
    assert (home / "here").exists()
    assert not (tmp_path / "state" / "homes" / str(key.kernel_id)).exists()
    await runtime.remove(key)
    assert not home.exists()
