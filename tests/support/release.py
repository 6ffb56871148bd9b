"""One release that the tests of packages, wheels and images share: built once for all workers of a run."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.debian import cache_folder

ROOT = Path(__file__).parents[2]


def built_release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the folder of a release without the console. The root below its image is kept outside the tree."""
    top = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        top = top.parent
    folder = top / "release"
    with (top / "release.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "SHA256SUMS").exists():
            build_release(folder)
    return folder


def build_release(folder: Path, *, umask: int = 0o022, zone: str = "UTC") -> None:
    """Builds a release into ``folder`` by the command of maintainers."""
    cache_folder().mkdir(parents=True, exist_ok=True)
    base = cache_folder() / f"image-base-{image_digest()}.tar"
    command = [sys.executable, "-m", "tools.release", str(folder), "--without-console", "--base", str(base)]
    environment = {**os.environ, "TZ": zone, "PYTHONPATH": f"{ROOT}/src:{ROOT}"}
    done = subprocess.run(
        command, check=False, cwd=ROOT, env=environment, umask=umask, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr


def image_digest() -> str:
    """Returns a name for the root below the image, which changes with the code that makes it."""
    from hashlib import sha256

    return sha256((ROOT / "tools/release/image.py").read_bytes()).hexdigest()[:12]
