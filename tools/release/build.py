"""Builds the files of one release: wheel, source archive, environment, bill of materials."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from tools.release.debian import PREFIX, ROOT, pack_all
from tools.release.image import IMAGE, write_base, write_image
from tools.release.pages import write_completions, write_manual
from tools.release.slim import write_slim

EXTRAS = ("postgres", "redis", "docker", "cuda", "s3", "artifacts", "ldap", "otel", "uvloop")
_PYTHON = "/usr/bin/python3"
_FIRST_EPOCH = 315_532_800
"""1980-01-01, the oldest time that a ZIP can have."""


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

    def build(self, *, with_image: bool = True, base: Path | None = None) -> None:
        """Builds all files. The image is built on ``base``, the archive of a root file system, which is made where it
        does not exist yet. Raises subprocess.CalledProcessError."""
        os.umask(0o022)
        self._folder.mkdir(parents=True, exist_ok=True)
        self._run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-t", "sdist", "-d", str(self._folder))
        (wheel,) = self._folder.glob("backendai-*.whl")
        write_slim(wheel)
        with tempfile.TemporaryDirectory() as text:
            stage = Path(text)
            self._make_environment(stage)
            self._write_materials(stage)
            self._write_pages(stage)
            for path in sorted(stage.rglob("*"), reverse=True):
                os.utime(path, (self._epoch, self._epoch), follow_symlinks=False)
            pack_all(stage, self._folder, self.version, self._epoch, self._run)
            if with_image:
                base = base or stage / "base.tar"
                if not base.exists():
                    write_base(base, self._run)
                archive = self._folder / f"backendai-{self.version}-image.tar"
                write_image(archive, base, stage / PREFIX, f"{IMAGE}:{self.version}", self._epoch)
        (self._folder / "SHA256SUMS").write_text("".join(f"{line}\n" for line in self.sums()))

    def sums(self) -> list[str]:
        """Returns the SHA-256 sum and name of each file."""
        files = sorted(path for path in self._folder.iterdir() if path.name not in ("SHA256SUMS", ".gitignore"))
        return [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}" for path in files]

    def _run(self, *command: str, environment: Mapping[str, str] | None = None) -> str:
        return _run(*command, cwd=ROOT, environment={**self._environment, **(environment or {})})

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
        (wheel,) = self._folder.glob("backendai-*.whl")
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
        # Nobody may write below the prefix later on, and nothing is left there when the package is removed.
        compile_all = (_PYTHON, "-m", "compileall", "-q", "--invalidation-mode", "checked-hash")
        self._run(*compile_all, "-s", str(stage), "-p", "/", str(target / "lib"), environment={"PYTHONHASHSEED": "0"})

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


def _run(*command: str, cwd: Path, environment: Mapping[str, str] | None = None) -> str:
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=True, timeout=900)
    return done.stdout.strip()
