"""Builds everything of a release into a folder: wheel, source archive, Debian packages, bill of materials, check sums.

Usage: python -m tools.release FOLDER [--without-console]

The same commit gives the same bytes, whenever and wherever in the file system it is built: times are those of the
commit, and no file names the folder it was built in. What is packed besides the wheel are the versions of uv.lock.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml
from tools.release_pages import write_completions, write_manual

ROOT = Path(__file__).parents[1]
PREFIX = Path("opt/backend.ai")
"""Where the packages install the environment that the units and ``/usr/bin/backend.ai`` use."""
EXTRAS = ("postgres", "redis", "docker", "cuda", "s3", "artifacts", "ldap", "uvloop")
_PYTHON = "/usr/bin/python3"
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_FIRST_EPOCH = 315_532_800
"""1980-01-01, the oldest time that a ZIP can have."""


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


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--without-console", action="store_true", help="leave the web console out of the wheel")
    options = parser.parse_args(arguments)
    release = Release(options.folder.absolute(), with_console=not options.without_console)
    try:
        release.build()
    except subprocess.CalledProcessError as error:
        sys.stderr.write(f"release: {' '.join(map(str, error.cmd))} failed\n{error.stdout}\n{error.stderr}\n")
        return 1
    for line in release.sums():
        sys.stdout.write(f"{line}\n")
    return 0


class Release:
    """Builds one release into ``folder``."""

    def __init__(self, folder: Path, *, with_console: bool) -> None:
        self._folder = folder
        self._epoch = max(_FIRST_EPOCH, int(_run("git", "log", "-1", "--format=%ct", cwd=ROOT) or 0))
        self.version = str(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"])
        self._environment = {
            **{name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
            "SOURCE_DATE_EPOCH": str(self._epoch),
            "BACKENDAI_CONSOLE": "require" if with_console else "skip",
            "LC_ALL": "C.UTF-8",
            "TZ": "UTC",
        }

    def build(self) -> None:
        """Builds all files. Raises subprocess.CalledProcessError."""
        os.umask(0o022)
        self._folder.mkdir(parents=True, exist_ok=True)
        self._run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-t", "sdist", "-d", str(self._folder))
        with tempfile.TemporaryDirectory() as text:
            stage = Path(text)
            self._make_environment(stage)
            self._write_materials(stage)
            self._write_pages(stage)
            for path in sorted(stage.rglob("*"), reverse=True):
                os.utime(path, (self._epoch, self._epoch), follow_symlinks=False)
            for package in (self._base_package(stage), *map(self._daemon_package, DAEMONS)):
                self._pack(package)
        (self._folder / "SHA256SUMS").write_text("".join(f"{line}\n" for line in self.sums()))

    def sums(self) -> list[str]:
        """Returns the SHA-256 sum and name of each file."""
        files = sorted(path for path in self._folder.iterdir() if path.name not in ("SHA256SUMS", ".gitignore"))
        return [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}" for path in files]

    def _run(self, *command: str, cwd: Path = ROOT) -> str:
        return _run(*command, cwd=cwd, environment=self._environment)

    # ---- what the packages install ----

    def _make_environment(self, stage: Path) -> None:
        """Makes the environment of the packages, which may lie anywhere, of the locked versions and the wheel."""
        uv = str(Path(sys.executable).with_name("uv"))
        target = stage / PREFIX
        extras = [word for extra in EXTRAS for word in ("--extra", extra)]
        requirements = self._run(
            uv, "export", "--frozen", "--no-dev", "--no-emit-project", "--no-header", "--no-annotate", *extras
        )
        (stage / "requirements.txt").write_text(requirements)
        (wheel,) = self._folder.glob("*.whl")
        self._run(uv, "venv", "--quiet", "--relocatable", "--python", _PYTHON, str(target))
        python = str(target / "bin/python")
        install = (uv, "pip", "install", "--quiet", "--no-deps", "--link-mode", "copy", "--python", python)
        self._run(*install, "--require-hashes", "-r", str(stage / "requirements.txt"))
        self._run(*install, str(wheel))
        for path in {*target.glob("bin/activate*"), *target.glob("bin/*.bat"), *target.glob("CACHEDIR.TAG")}:
            path.unlink()
        for name in (".gitignore", ".lock"):
            (target / name).unlink(missing_ok=True)
        for name in ("direct_url.json", "uv_cache.json", "REQUESTED"):  # they name this machine's folders
            for path in target.rglob(f"*.dist-info/{name}"):
                path.unlink()
        for record in target.rglob("*.dist-info/RECORD"):
            lines = [line for line in record.read_text().splitlines() if "/direct_url.json," not in line]
            lines = [line for line in lines if not line.partition(",")[0].endswith(("uv_cache.json", "/REQUESTED"))]
            record.write_text("".join(f"{line}\n" for line in sorted(lines)))
        for cache in target.rglob("__pycache__"):
            shutil.rmtree(cache)

    def _write_materials(self, stage: Path) -> None:
        """Writes the bill of materials of the environment, in the format CycloneDX 1.6."""
        name = f"backendai-{self.version}.cdx.json"
        program = str(Path(sys.executable).with_name("cyclonedx-py"))
        options = ("--output-reproducible", "--of", "JSON", "--sv", "1.6", "--pyproject", str(ROOT / "pyproject.toml"))
        self._run(program, "environment", *options, "-o", str(self._folder / name), str(stage / PREFIX / "bin/python"))

    def _write_pages(self, stage: Path) -> None:
        share = stage / "usr/share"
        write_manual(share / "man/man1", self.version, datetime.fromtimestamp(self._epoch, UTC))
        write_completions(stage / "completions")

    # ---- Debian packages ----

    def _base_package(self, stage: Path) -> dict[str, Any]:
        completions = stage / "completions"
        places = {
            "bash": "/usr/share/bash-completion/completions/backend.ai",
            "zsh": "/usr/share/zsh/vendor-completions/_backend.ai",
            "fish": "/usr/share/fish/vendor_completions.d/backend.ai.fish",
        }
        contents: list[dict[str, Any]] = [
            {"src": str(stage / PREFIX), "dst": f"/{PREFIX}", "type": "tree"},
            {"src": f"/{PREFIX}/bin/backend.ai", "dst": "/usr/bin/backend.ai", "type": "symlink"},
            {"src": str(stage / "usr/share/man/man1"), "dst": "/usr/share/man/man1", "type": "tree"},
            *({"src": str(completions / shell), "dst": place} for shell, place in places.items()),
            {"src": str(ROOT / "LICENSE"), "dst": "/usr/share/doc/backendai/copyright"},
        ]
        major, minor = sys.version_info[:2]
        depends = [f"python3 (>= {major}.{minor})", f"python3 (<< {major}.{minor + 1})"]
        return self._package("backendai", "command line and libraries of Backend.AI", contents, depends)

    def _daemon_package(self, daemon: Daemon) -> dict[str, Any]:
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
        scripts = {name: str(ROOT / f"deploy/debian/{name}.sh") for name in ("preinstall", "postinstall", "preremove")}
        return {**package, "recommends": list(daemon.recommends), "scripts": scripts}

    def _package(
        self, name: str, summary: str, contents: Sequence[Mapping[str, Any]], depends: Sequence[str]
    ) -> dict[str, Any]:
        moment = datetime.fromtimestamp(self._epoch, UTC).isoformat()
        return {
            "name": name,
            "arch": _ARCHITECTURES[os.uname().machine],
            "platform": "linux",
            "version": self.version,
            "version_schema": "none",
            "section": "admin",
            "priority": "optional",
            "maintainer": "The authors of backendai",
            "description": summary,
            "license": "Apache-2.0",
            "mtime": moment,
            "depends": list(depends),
            "contents": [{**entry, "file_info": {**entry.get("file_info", {}), "mtime": moment}} for entry in contents],
            "deb": {"compression": "zstd"},
        }

    def _pack(self, package: Mapping[str, Any]) -> None:
        program = str(Path(sys.executable).with_name("nfpm"))
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as config:
            config.write(yaml.safe_dump(dict(package)))
            config.flush()
            self._run(program, "package", "-f", config.name, "-p", "deb", "-t", f"{self._folder}/")


def _run(*command: str, cwd: Path, environment: Mapping[str, str] | None = None) -> str:
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=True, timeout=900)
    return done.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
