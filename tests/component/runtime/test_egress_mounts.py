"""A helper of session networks must not change the mounts of the host."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from ai.backend.runtime.process.egress import find_helpers
from ai.backend.runtime.process.settings import ProcessRuntimeSettings

pytestmark = pytest.mark.needs("root")


def _run(*command: str) -> None:
    subprocess.run(command, check=True)


@pytest.fixture
def child_of_a_shared_mount(tmp_path: Path) -> Iterator[Path]:
    """A mount below a mount from which changes propagate, as all are below /run on a host with systemd."""
    shared, child = tmp_path / "shared", tmp_path / "shared" / "child"
    shared.mkdir()
    _run("mount", "-t", "tmpfs", "none", str(shared))
    try:
        _run("mount", "--make-shared", str(shared))
        child.mkdir()
        _run("mount", "-t", "tmpfs", "none", str(child))
        yield child
    finally:
        _run("umount", "-R", str(shared))


def test_the_sandbox_of_a_helper_detaches_nothing_outside(child_of_a_shared_mount: Path) -> None:
    if shutil.which("slirp4netns") is None:
        pytest.skip("machine: slirp4netns is not installed")
    find_helpers(ProcessRuntimeSettings())
    assert child_of_a_shared_mount.is_mount()
