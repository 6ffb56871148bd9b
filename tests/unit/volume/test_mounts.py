"""The disk of a path is looked up where a container may show no devices."""

from __future__ import annotations

from pathlib import Path

import pytest

from ai.backend.plugin.volume import Mount
from ai.backend.volume.vfs import mounts


def test_a_device_that_is_not_shown_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a pod the mount of a volume names a device of the node, for which there is no file."""
    hidden = Mount("/", "/dev/of-the-node-alone", "ext4", ())
    monkeypatch.setattr(mounts, "mount_of", lambda _path: hidden)
    disk = mounts.disk_of(tmp_path)
    assert disk is None or disk.name == "stat"
