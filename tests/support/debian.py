"""Root file systems of Debian, made by mmdebstrap and kept outside the tree, and machines that boot them."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from tests.support.cluster import wait_until
from tests.support.docker_engine import DockerEngine
from tests.support.skips import is_ci

MACHINE = "systemd,systemd-sysv,dbus,adduser,passwd,python3,postgresql,redis-server,etcd-server,etcd-client,procps"
"""What a machine has before our packages come: systemd, the services, and what the packages depend on."""
_MIRROR = "http://deb.debian.org/debian"


def cache_folder() -> Path:
    """Returns ``$XDG_CACHE_HOME/backend.ai/debian``, by default below ``~/.cache``."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "backend.ai" / "debian"


def root_archive(packages: str, options: Sequence[str] = (), *, variant: str = "minbase") -> Path:
    """Returns the archive of a root with these packages, of this machine's release of Debian, made once.

    Skips where no mmdebstrap or no mirror is there.
    """
    if shutil.which("mmdebstrap") is None:
        pytest.skip("binary: mmdebstrap is not installed (package mmdebstrap)")
    lines = Path("/etc/os-release").read_text().splitlines()
    suite = next(line.partition("=")[2] for line in lines if line.startswith("VERSION_CODENAME="))
    digest = sha256(repr((suite, packages, tuple(options), variant)).encode()).hexdigest()[:12]
    archive = cache_folder() / f"{suite}-{digest}.tar"
    if archive.exists():
        return archive
    archive.parent.mkdir(parents=True, exist_ok=True)
    unfinished = archive.with_suffix(f".{os.getpid()}.tar")
    pattern = "/usr/share/locale/*"
    command = ["mmdebstrap", "--quiet", f"--variant={variant}", f"--include={packages}"]
    command += [f"--dpkgopt=path-exclude={pattern}", *options, suite, str(unfinished), _MIRROR]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    if done.returncode:
        reason = f"binary: no root of Debian can be made: {done.stderr[-500:]}"
        unfinished.unlink(missing_ok=True)
        if is_ci():
            pytest.fail(reason)
        pytest.skip(reason)
    unfinished.replace(archive)
    return archive


def import_image(engine: DockerEngine, name: str, archive: Path, *changes: str) -> None:
    """Makes an image of the archive of a root, with lines of a Dockerfile."""
    words = [word for change in changes for word in ("--change", change)]
    docker(engine, "import", *words, str(archive), name)


def docker(engine: DockerEngine, *words: str, timeout_s: float = 60, check: bool = True) -> str:
    """Returns what ``docker WORDS`` prints; fails with all that it wrote."""
    environment = {**os.environ, "DOCKER_HOST": engine.host}
    done = subprocess.run(
        ["docker", *words], env=environment, capture_output=True, text=True, check=False, timeout=timeout_s
    )
    assert not check or done.returncode == 0, f"docker {' '.join(words)}\n{done.stdout}\n{done.stderr}"
    return done.stdout


class DebianMachine:
    """A container that boots systemd: it has a loopback for a network, and sessions may make namespaces in it."""

    def __init__(self, engine: DockerEngine, name: str) -> None:
        self._engine = engine
        self.name = name

    def start(self, image: str, *volumes: str) -> None:
        options = ["--cap-add", "SYS_ADMIN", "--cap-add", "NET_ADMIN", "--cgroupns=host", "--network=none"]
        for option in ("seccomp=unconfined", "apparmor=unconfined", "systempaths=unconfined"):
            options += ["--security-opt", option]
        # Not the host's folder of hierarchies itself: systemd makes folders there, and makes it read-only for the host.
        options += ["--tmpfs", "/run", "--tmpfs", "/tmp", "--tmpfs", "/sys/fs/cgroup", "--stop-signal", "SIGRTMIN+3"]
        hierarchies = [path for path in Path("/sys/fs/cgroup").iterdir() if path.is_dir() and not path.is_symlink()]
        for volume in (*(f"{path}:{path}" for path in hierarchies), *volumes):
            options += ["--volume", volume]
        docker(self._engine, "run", "--detach", "--name", self.name, *options, image, "/sbin/init")
        self.wait_booted()

    def wait_booted(self) -> None:
        """Waits for the end of the boot, also where a unit has failed."""
        wait_until(
            lambda: self.run("systemctl is-system-running || true").strip() in ("running", "degraded"),
            timeout_s=90,
            what="the boot",
        )

    def reboot(self) -> None:
        docker(self._engine, "restart", "--time", "30", self.name)
        self.wait_booted()

    def run(self, script: str, *, timeout_s: float = 90, **environment: Any) -> str:
        """Returns what a script of the shell prints as root; fails where a line of it fails."""
        words = [word for name, value in environment.items() for word in ("--env", f"{name}={value}")]
        command = ("exec", *words, self.name, "bash", "-euo", "pipefail", "-c", script)
        return docker(self._engine, *command, timeout_s=timeout_s)


@contextmanager
def running_machine(engine: DockerEngine, name: str, *volumes: str) -> Iterator[DebianMachine]:
    """Boots a machine of ``MACHINE``, and removes it at the end."""
    image = "test/debian-machine:1"
    if engine.call("GET", f"/images/{image}/json")[0] != 200:
        import_image(engine, image, root_archive(MACHINE), "ENV container=docker")
    machine = DebianMachine(engine, name)
    try:
        machine.start(image, *volumes)
        yield machine
    finally:
        docker(engine, "rm", "--force", "--volumes", name, check=False)
