"""Packs Debian packages with nfpm: one with the program, and one for each daemon with its units and settings."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
PREFIX = Path("opt/backend.ai")
"""Where the packages install the environment that the units and ``/usr/bin/backend.ai`` use."""
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
LIBRARIES = ("libstdc++6",)
"""Packages of the shared libraries that compiled modules of the environment need, besides those of python3."""
_DAEMON_SCRIPTS = ("preinstall", "postinstall", "preremove", "postremove")


@dataclass(frozen=True, slots=True)
class Daemon:
    """A Debian package with the units and settings of daemons; ``user`` is who owns the settings."""

    name: str
    summary: str
    units: Sequence[str]
    settings: Sequence[str]
    user: str = "root"
    depends: Sequence[str] = ()
    recommends: Sequence[str] = ()


DAEMONS = (
    Daemon(
        "backendai-manager",
        "manager of a cluster of compute sessions",
        ("backendai-manager",),
        ("manager.toml", "volumes.json"),
        "backendai",
        recommends=("postgresql-client",),
    ),
    Daemon(
        "backendai-agent",
        "agent and watcher of a node of compute sessions",
        ("backendai-agent", "backendai-watcher"),
        ("agent.toml",),
        recommends=("iproute2", "slirp4netns"),
    ),
    Daemon(
        "backendai-storage-proxy",
        "storage proxy of virtual folders",
        ("backendai-storage-proxy",),
        ("storage-proxy.toml",),
    ),
    Daemon("backendai-web", "web server and console", ("backendai-web",), ("webserver.toml",), "backendai"),
    Daemon(
        "backendai-app-proxy",
        "app proxy: coordinator and worker",
        ("backendai-app-proxy-coordinator", "backendai-app-proxy-worker"),
        ("proxy-coordinator.toml", "proxy-worker.toml"),
        "backendai",
    ),
)


def pack_all(stage: Path, folder: Path, version: str, epoch: int, run: Callable[..., str]) -> None:
    """Packs all packages into ``folder``. ``stage`` has what is installed: the environment, ``usr/share/man`` and
    ``completions``. Raises subprocess.CalledProcessError."""
    packing = _Packing(stage, version, datetime.fromtimestamp(epoch, UTC).isoformat())
    program = str(Path(sys.executable).with_name("nfpm"))
    for package in (packing.base_package(), *map(packing.daemon_package, DAEMONS)):
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as config:
            config.write(yaml.safe_dump(dict(package)))
            config.flush()
            run(program, "package", "-f", config.name, "-p", "deb", "-t", f"{folder}/")


@dataclass(frozen=True, slots=True)
class _Packing:
    """Describes packages to nfpm; ``moment`` is the time of all files."""

    stage: Path
    version: str
    moment: str

    def base_package(self) -> dict[str, Any]:
        completions = self.stage / "completions"
        places = {
            "bash": "/usr/share/bash-completion/completions/backend.ai",
            "zsh": "/usr/share/zsh/vendor-completions/_backend.ai",
            "fish": "/usr/share/fish/vendor_completions.d/backend.ai.fish",
        }
        contents: list[dict[str, Any]] = [
            {"src": str(self.stage / PREFIX), "dst": f"/{PREFIX}", "type": "tree"},
            {"src": f"/{PREFIX}/bin/backend.ai", "dst": "/usr/bin/backend.ai", "type": "symlink"},
            {"src": str(self.stage / "usr/share/man/man1"), "dst": "/usr/share/man/man1", "type": "tree"},
            *({"src": str(completions / shell), "dst": place} for shell, place in places.items()),
            {"src": str(ROOT / "LICENSE"), "dst": "/usr/share/doc/backendai/copyright"},
        ]
        major, minor = sys.version_info[:2]
        depends = [f"python3 (>= {major}.{minor})", f"python3 (<< {major}.{minor + 1})", *LIBRARIES]
        package = self._package("backendai", "command line and libraries of Backend.AI", contents, depends)
        return {**package, "scripts": _scripts("postremove")}

    def daemon_package(self, daemon: Daemon) -> dict[str, Any]:
        contents: list[dict[str, Any]] = [
            {
                "src": str(ROOT / f"deploy/systemd/{unit}.service"),
                "dst": f"/usr/lib/systemd/system/{unit}.service",
                "file_info": {"mode": 0o644},
            }
            for unit in daemon.units
        ]
        for file in daemon.settings:
            info = {"mode": 0o640, "group": daemon.user}
            content = {"src": str(ROOT / "deploy/config" / file), "dst": f"/etc/backend.ai/{file}"}
            contents.append({**content, "type": "config|noreplace", "file_info": info})
        package = self._package(
            daemon.name, daemon.summary, contents, [f"backendai (= {self.version})", "adduser", *daemon.depends]
        )
        return {**package, "recommends": list(daemon.recommends), "scripts": _scripts(*_DAEMON_SCRIPTS)}

    def _package(
        self, name: str, summary: str, contents: Sequence[Mapping[str, Any]], depends: Sequence[str]
    ) -> dict[str, Any]:
        return {
            "name": name,
            "arch": ARCHITECTURES[os.uname().machine],
            "platform": "linux",
            "version": self.version,
            "version_schema": "none",
            "section": "admin",
            "priority": "optional",
            "maintainer": "The authors of backendai",
            "description": summary,
            "license": "Apache-2.0",
            "mtime": self.moment,
            "depends": list(depends),
            "contents": [
                {**entry, "file_info": {**entry.get("file_info", {}), "mtime": self.moment}} for entry in contents
            ],
            "deb": {"compression": "zstd"},
        }


def _scripts(*names: str) -> dict[str, str]:
    return {name: str(ROOT / f"deploy/debian/{name}.sh") for name in names}
