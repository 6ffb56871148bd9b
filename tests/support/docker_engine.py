"""A Docker engine of our own for tests: a dockerd with its own root, socket and control group, never the machine's.

One engine serves a whole run of pytest, all workers of xdist included: the first that needs it starts a keeper, which
owns the dockerd and ends it once no worker that signed in is alive. Images are made from files of this host and kept as
archives in the checkout's `.cache`; nothing is downloaded.
"""

from __future__ import annotations

import asyncio
import fcntl
import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import time
import urllib.parse
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from tools.kube.families import families

REPOSITORY = Path(__file__).resolve().parents[2]
CACHE = REPOSITORY / ".cache" / "docker-images"
START_TIMEOUT_S = 40.0
SYSTEM_PYTHON = "/usr/bin/python3"
PYTHON_IMAGE, BARE_IMAGE, SHELL_IMAGE, EMPTY_IMAGE = "base/python:1", "base/busybox:1", "base/bash:1", "base/empty:1"
_COREUTILS = ("cat", "cp", "env", "id", "ls", "mkdir", "rm", "sleep", "touch", "true", "uname", "dd", "head")
_HEAVY = (
    "test", "idlelib", "ensurepip", "lib2to3", "tkinter", "turtledemo", "distutils", "pydoc_data", "config-*",
    "unittest", "sqlite3", "dbm", "wsgiref", "xmlrpc",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class DockerEngine:
    """A running engine.

    ``host`` is what DOCKER_HOST would be; ``namespace`` is the network that it is in, ``options`` are dockerd's.
    ``programs`` are folders in which dockerd and what it starts are looked for before the machine's.
    """

    directory: Path
    namespace: Path | None = None
    options: tuple[str, ...] = ()
    programs: tuple[Path, ...] = ()

    @property
    def socket(self) -> Path:
        return self.directory / "docker.sock"

    @property
    def host(self) -> str:
        return f"unix://{self.socket}"

    @property
    def cgroup_parent(self) -> str:
        return f"/backendai-test-{sha256(str(self.directory).encode()).hexdigest()[:8]}"

    def pid(self) -> int:
        return int((self.directory / "docker.pid").read_text())

    def start(self) -> subprocess.Popen[bytes]:
        """A dockerd that is a child of this process; returns once it answers."""
        self.directory.mkdir(parents=True, exist_ok=True)
        log = (self.directory / "dockerd.log").open("ab")
        # A dockerd that was killed takes its containerd along; where nobody reaps that one, its number seems to live.
        (self.directory / "exec/containerd/containerd.pid").unlink(missing_ok=True)
        # No bridge and no rules of a packet filter: the machine's network stays as it is.
        search_path = os.pathsep.join([*map(str, self.programs), os.environ.get("PATH", "")])
        command = [
            shutil.which("dockerd", path=search_path) or "dockerd",
            "--data-root",
            str(self.directory / "data"),
            "--exec-root",
            str(self.directory / "exec"),
        ]
        command += ["--host", self.host, "--pidfile", str(self.directory / "docker.pid"), "--bridge=none"]
        command += ["--iptables=false", "--ip6tables=false", "--exec-opt", "native.cgroupdriver=cgroupfs"]
        command += ["--cgroup-parent", self.cgroup_parent, "--shutdown-timeout", "1"]
        if self.namespace is not None:
            command = ["nsenter", f"--net={self.namespace}", *command]
        if shutil.which("crun"):
            command += ["--add-runtime", f"crun={self._crun()}"]
        if (gvisor := families()["gvisor"]).is_built():
            command += ["--add-runtime", f"runsc={self._runsc(gvisor.place() / 'runsc')}"]
        command += self.options
        with log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**os.environ, "PATH": search_path},
            )
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self.answers():
            if process.poll() is not None or time.monotonic() > deadline:
                process.kill()
                process.wait()
                raise RuntimeError(f"dockerd did not start:\n{self.log()[-2000:]}")
            time.sleep(0.05)
        return process

    def _crun(self) -> Path:
        """Crun as it is; it refuses machines with controllers in both hierarchies, so there it sees one of them."""
        program, unified = Path(shutil.which("crun") or "crun"), Path("/sys/fs/cgroup/unified")
        controllers = unified / "cgroup.controllers"
        if not controllers.exists() or not controllers.read_text().split():
            return program
        wrapped = self.directory / "crun"
        wrapped.write_text(f'#!/bin/sh\nexec unshare -m sh -c \'umount {unified}; exec {program} "$@"\' crun "$@"\n')
        wrapped.chmod(0o755)
        return wrapped

    def _runsc(self, program: Path) -> Path:
        """GVisor, which needs no virtual machine, and lets this machine connect to sockets of its containers."""
        options = "--platform=systrap --host-uds=create"
        wrapped = self.directory / "runsc"
        wrapped.write_text(f'#!/bin/sh\nexec {program} {options} "$@"\n')
        wrapped.chmod(0o755)
        return wrapped

    def log(self) -> str:
        path = self.directory / "dockerd.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def answers(self) -> bool:
        try:
            return self.call("GET", "/_ping")[0] == 200
        except (OSError, http.client.HTTPException):
            return False

    def call(
        self, method: str, path: str, body: bytes | Path | None = None, headers: Mapping[str, str] | None = None
    ) -> tuple[int, Any]:
        """One request; the status and the answer, decoded where it is JSON."""
        connection = _UnixConnection(str(self.socket))
        try:
            if isinstance(body, Path):
                with body.open("rb") as file:
                    connection.request(method, path, file, {"Content-Type": "application/x-tar"})
            else:
                connection.request(method, path, body, {"Content-Type": "application/json", **(headers or {})})
            answer = connection.getresponse()
            content = answer.read()
        finally:
            connection.close()
        try:
            return answer.status, json.loads(content)
        except ValueError:
            return answer.status, content

    def containers(self) -> list[dict[str, Any]]:
        """All of them, running or not."""
        found: list[dict[str, Any]] = self.call("GET", "/containers/json?all=1")[1]
        return found

    def ensure_image(self, name: str) -> None:
        """Import one of the images of this module unless it is there."""
        if self.call("GET", f"/images/{name}/json")[0] == 200:
            return
        repository, _, tag = name.partition(":")
        query = [("fromSrc", "-"), ("repo", repository), ("tag", tag), *(("changes", c) for c in IMAGES[name].changes)]
        status, answer = self.call("POST", f"/images/create?{urllib.parse.urlencode(query)}", archive(name))
        if status != 200 or b"error" in (answer if isinstance(answer, bytes) else json.dumps(answer).encode()):
            raise RuntimeError(f"the image {name} cannot be imported: {answer}")

    def derive_image(self, base: str, name: str, change: str) -> str:
        """An image of its own with one more line of a Dockerfile, such as ``LABEL a=b``; returns its id."""
        body = json.dumps({"Image": base, "Cmd": ["true"]}).encode()
        container = self.call("POST", "/containers/create", body)[1]["Id"]
        repository, _, tag = name.partition(":")
        query = urllib.parse.urlencode({"container": container, "repo": repository, "tag": tag, "changes": change})
        status, answer = self.call("POST", f"/commit?{query}", b"{}")
        self.call("DELETE", f"/containers/{container}")
        if status != 201:
            raise RuntimeError(f"the image {name} cannot be made: {answer}")
        return str(answer["Id"])

    def load_foreign_image(self, name: str) -> None:
        """An empty image for another architecture, whichever this machine is."""
        layer = BytesIO()
        with tarfile.open(fileobj=layer, mode="w") as tar:
            _add_folder(tar, "bin", 0o755)
        digest = f"sha256:{sha256(layer.getvalue()).hexdigest()}"
        config = {
            "architecture": "riscv64",
            "os": "linux",
            "config": {},
            "rootfs": {"type": "layers", "diff_ids": [digest]},
        }
        manifest = [{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]
        image = BytesIO()
        with tarfile.open(fileobj=image, mode="w") as tar:
            _add_text(tar, "config.json", json.dumps(config))
            _add_text(tar, "manifest.json", json.dumps(manifest))
            entry = tarfile.TarInfo("layer.tar")
            entry.size = len(layer.getvalue())
            tar.addfile(entry, BytesIO(layer.getvalue()))
        path = self.directory / "foreign.tar"
        path.write_bytes(image.getvalue())
        status, answer = self.call("POST", "/images/load?quiet=1", path)
        if status != 200:
            raise RuntimeError(f"the image {name} cannot be loaded: {answer}")


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=60)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(60)
        self.sock.connect(self._path)


# ---- an engine of the 29 line, built from Go modules

CDI_FAMILIES = ("engine", "containerd", "runc")


def why_no_cdi_engine() -> str | None:
    """Why no engine with CDI can run here: Debian's has none, and one of the 29 line has to be built."""
    missing = [name for name in CDI_FAMILIES if not families()[name].is_built()]
    if missing and shutil.which("go") is None:
        return "machine: an engine with CDI is built by Go, which is not installed"
    if missing:
        return f"machine: not built: {', '.join(missing)} (python -m tools.kube build {' '.join(CDI_FAMILIES)})"
    return why_not()


def cdi_engine_in(directory: Path) -> DockerEngine:
    """An engine of the 29 line that looks CDI names up in the folder ``cdi`` of its directory; it is not started."""
    (directory / "cdi").mkdir(parents=True, exist_ok=True)
    return DockerEngine(
        directory,
        options=("--cdi-spec-dir", str(directory / "cdi")),
        programs=tuple(families()[name].place() for name in CDI_FAMILIES),
    )


# ---- one engine for all workers


def why_not() -> str | None:
    """Why no engine can run here; None if one can be tried."""
    if shutil.which("dockerd") is None:
        return "binary: dockerd is not installed (package docker.io)"
    if shutil.which("busybox") is None:
        return "binary: busybox is not installed (package busybox-static)"
    return None if os.geteuid() == 0 else "machine: an engine of our own needs root"


@contextmanager
def shared_engine(directory: Path) -> Iterator[DockerEngine]:
    """The engine in this directory, started if nobody has; it ends after the last worker that has signed in.

    Raises:
        RuntimeError: it does not start.
    """
    directory.mkdir(parents=True, exist_ok=True)
    engine, workers = DockerEngine(directory), directory / "workers"
    workers.mkdir(exist_ok=True)
    mine = workers / str(os.getpid())
    with (directory / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        mine.touch()
        if not engine.answers():
            with (directory / "keeper.log").open("ab") as output:
                subprocess.run(
                    [sys.executable, str(Path(__file__).resolve()), str(directory)],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
                    check=True,
                )
            _await(
                engine.answers, START_TIMEOUT_S, lambda: (directory / "keeper.log").read_text() + engine.log()[-2000:]
            )
    try:
        yield engine
    finally:
        mine.unlink()
        if not any(workers.iterdir()):
            _await(lambda: not (directory / "exec").exists(), 30.0, lambda: "the engine does not end")


def _await(condition: Any, timeout_s: float, why: Any) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError(why())
        time.sleep(0.05)


def keep(directory: Path) -> None:
    """What the keeper does: the engine lives as long as a worker does."""
    engine = DockerEngine(directory)
    process = engine.start()
    while process.poll() is None and any(_lives(path) for path in (directory / "workers").iterdir()):
        time.sleep(0.2)
    end_engine(engine, process)


def end_engine(engine: DockerEngine, process: subprocess.Popen[bytes]) -> None:
    """End the engine with everything in it, and remove its root, which is of no use to anybody."""
    if process.poll() is None:
        for container in engine.containers():
            engine.call("DELETE", f"/containers/{container['Id']}?force=1&v=1")
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    sweep(engine)


def sweep(engine: DockerEngine) -> None:
    """End and remove what an engine leaves: processes, mounts, control groups, and at last its root."""
    for pid in _leftovers(engine):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    time.sleep(0.1)
    for line in reversed(Path("/proc/self/mountinfo").read_text().splitlines()):
        target = line.split()[4]
        if target.startswith(f"{engine.directory}/"):
            subprocess.run(["umount", "-l", target], check=False, capture_output=True)
    for hierarchy in Path("/sys/fs/cgroup").glob(f"*{engine.cgroup_parent}"):
        for path, _, _ in os.walk(hierarchy, topdown=False):
            with suppress(OSError):
                os.rmdir(path)
    with suppress(OSError):
        os.rmdir(f"/sys/fs/cgroup{engine.cgroup_parent}")
    engine.socket.unlink(missing_ok=True)
    for name in ("data", "exec"):
        shutil.rmtree(engine.directory / name, ignore_errors=True)


def _leftovers(engine: DockerEngine) -> list[int]:
    """The shims of an engine that was killed, and what runs in its control groups."""
    found: list[int] = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if f"{engine.directory}/exec/containerd".encode() in path.read_bytes():
                found.append(int(path.parent.name))
    for path in Path("/sys/fs/cgroup").glob(f"*{engine.cgroup_parent}/*/cgroup.procs"):
        with suppress(OSError):
            found += map(int, path.read_text().split())
    return [pid for pid in found if pid != os.getpid()]


def _lives(path: Path) -> bool:
    return Path("/proc", path.name).exists()


# ---- images


@dataclass(frozen=True, slots=True)
class Recipe:
    """An image: what of this host is in it, and its configuration as lines of a Dockerfile."""

    programs: tuple[str, ...] = ()
    trees: tuple[str, ...] = ()
    links: Mapping[str, str] | None = None
    changes: tuple[str, ...] = ()


_PATH = "ENV PATH=/usr/local/bin:/usr/bin:/bin"
_APPLETS = ("sh", "sleep", "ls", "cat", "id", "env", "true", "mkdir", "rm")


def _python_library() -> str:
    asked = [SYSTEM_PYTHON, "-I", "-c", "import os; print(os.path.dirname(os.__file__))"]
    return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()


def _recipes() -> dict[str, Recipe]:
    tools = tuple(found for name in (*_COREUTILS, "bash") if (found := shutil.which(name)))
    busybox = os.path.realpath(shutil.which("busybox") or "/bin/busybox")
    shell = {"/bin/sh": shutil.which("bash") or "/bin/bash"}  # where the image has it too
    return {
        PYTHON_IMAGE: Recipe((*tools, SYSTEM_PYTHON), ("python",), shell, (_PATH, "VOLUME /scratch")),
        SHELL_IMAGE: Recipe(tools, ("libc",), shell, (_PATH,)),
        BARE_IMAGE: Recipe((busybox,), (), {f"/bin/{name}": busybox for name in _APPLETS}, ("ENV PATH=/bin:/usr/bin",)),
        EMPTY_IMAGE: Recipe(changes=("ENV PATH=/bin",)),
    }


IMAGES = _recipes() if shutil.which("busybox") else {}


def archive(name: str) -> Path:
    """The image's root file system, made once for these versions of the host's files."""
    recipe = IMAGES[name]
    files = dict(_files(recipe))
    facts = sorted(
        (target, str(source), os.stat(source).st_size, os.stat(source).st_mtime_ns) for target, source in files.items()
    )
    digest = sha256(json.dumps([facts, recipe.links], default=str).encode()).hexdigest()[:16]
    path = CACHE / f"{re.sub('[^a-z0-9]', '-', name)}-{digest}.tar"
    if path.exists():
        return path
    CACHE.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(f".{os.getpid()}")
    with tarfile.open(unfinished, "w") as tar:
        for folder in ("tmp", "home", "etc", "proc", "sys", "dev", "opt", "bin", "usr/bin"):
            _add_folder(tar, folder, 0o1777 if folder == "tmp" else 0o755)
        _add_text(tar, "etc/passwd", "root:x:0:0:root:/root:/bin/sh\ndaemon:x:1:1:daemon:/:/bin/false\n")
        _add_text(tar, "etc/group", "root:x:0:\ndaemon:x:1:\n")
        for target, source in sorted(files.items()):
            tar.add(source, target.lstrip("/"), recursive=False, filter=_as_root)
        for link, target in (recipe.links or {}).items():
            entry = tarfile.TarInfo(link.lstrip("/"))
            entry.type, entry.linkname = tarfile.SYMTYPE, target
            tar.addfile(entry)
    unfinished.replace(path)
    return path


def _as_root(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = "root"
    return entry


def _add_folder(tar: tarfile.TarFile, name: str, mode: int) -> None:
    entry = tarfile.TarInfo(name)
    entry.type, entry.mode = tarfile.DIRTYPE, mode
    tar.addfile(entry)


def _add_text(tar: tarfile.TarFile, name: str, text: str) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(text), 0o644
    tar.addfile(entry, BytesIO(text.encode()))


def _files(recipe: Recipe) -> Iterator[tuple[str, str]]:
    """(path in the image, path on the host); links are followed, libraries are where the loader looks for them."""
    for program in recipe.programs:
        yield program, os.path.realpath(program)
        yield from ((library, os.path.realpath(library)) for library in _libraries(program))
    if "libc" in recipe.trees:
        folder = next(Path(library).parent for library in _libraries(recipe.programs[0]) if "/libc.so" in library)
        for name in ("libpthread.so.0", "libdl.so.2", "libutil.so.1", "librt.so.1", "libm.so.6"):
            yield str(folder / name), os.path.realpath(folder / name)
    if "python" in recipe.trees:
        library = Path(_python_library())
        for path in sorted(library.rglob("*")):
            parts = path.relative_to(library).parts
            heavy = any(Path(parts[0]).match(pattern) for pattern in _HEAVY) or parts[0] in (
                "site-packages",
                "dist-packages",
            )
            if heavy or not path.is_file() or "EXTERNALLY" in path.name:
                continue
            yield str(path), os.path.realpath(path)
            if path.suffix == ".so":
                yield from ((needed, os.path.realpath(needed)) for needed in _libraries(str(path)))


def _libraries(program: str) -> Iterable[str]:
    done = subprocess.run(["ldd", program], capture_output=True, text=True, check=False)
    return re.findall(r"(?:=> )?(/\S+) \(0x", done.stdout)


# ---- pytest


@pytest.fixture(scope="session")
def docker_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DockerEngine]:
    """The engine of this run, with the Python image."""
    top = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        top = top.parent
    try:
        started = shared_engine(top / "docker")
        engine = started.__enter__()
        engine.ensure_image(PYTHON_IMAGE)
    except (RuntimeError, OSError) as error:
        pytest.skip(f"binary: dockerd does not work here: {error}")
    yield engine
    started.__exit__(None, None, None)


@pytest.fixture(scope="session")
def known_images(docker_engine: DockerEngine, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the runtime remembers of the Python image, so that not every test has it found out again."""
    from ai.backend.runtime.docker.runtime import DockerRuntime
    from ai.backend.runtime.docker.settings import DockerRuntimeSettings

    state = tmp_path_factory.mktemp("known")

    async def find_out() -> None:
        runtime = DockerRuntime(DockerRuntimeSettings(docker_host=docker_engine.host), state)
        await runtime.setup()
        await runtime._images.facts(PYTHON_IMAGE)
        await runtime.shutdown()

    asyncio.run(find_out())
    return state / "images"


def remember_images(state: Path, known: Path) -> None:
    """Let a runtime on this state directory know what another one has found out."""
    if not (state / "images").exists():
        shutil.copytree(known, state / "images")


if __name__ == "__main__":
    if os.fork() == 0:
        os.setsid()
        keep(Path(sys.argv[1]))
