"""An xfs with project quotas, in a file and mounted: the real thing, where the kernel has it."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

_SIZE_MIB = 320  # mkfs.xfs makes none below 300


@contextmanager
def quota_disk(place: Path) -> Iterator[Path]:
    """Mounted below ``place``, and gone again afterwards.

    Raises:
        OSError: it cannot be made or mounted.
    """
    image, point = place / "disk.img", place / "disk"
    with image.open("wb") as file:
        file.truncate(_SIZE_MIB << 20)
    point.mkdir()
    try:
        _run("mkfs.xfs", "-q", str(image))
        _run("mount", "-o", "loop,prjquota", str(image), str(point))
        try:
            yield point
        finally:
            _run("umount", "-l", str(point))
    finally:
        image.unlink()


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode != 0:
        raise OSError(f"{command[0]}: {done.stderr.strip()[:200]}")


@cache
def why_no_quota_disk() -> str | None:
    """Probe by doing."""
    with tempfile.TemporaryDirectory() as place:
        try:
            with quota_disk(Path(place)):
                return None
        except (OSError, subprocess.TimeoutExpired) as e:
            return f"machine: no xfs with project quotas can be mounted here: {' '.join(str(e).split())}"
