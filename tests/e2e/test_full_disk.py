"""A user who fills the disk of the whole platform through a folder."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.cluster import Cluster, running_cluster, wait_until

pytestmark = [pytest.mark.needs("root", "isolation")]
FILL = """
import os
f = open('data/big', 'wb')
for size in (1 << 20, 1 << 12):
    try:
        while True: os.posix_fallocate(f.fileno(), os.fstat(f.fileno()).st_size, size)
    except OSError: pass
import time; time.sleep(600)
"""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    disk = tmp_path / "disk"
    disk.mkdir()
    with (tmp_path / "image").open("wb") as image:
        image.truncate(400 << 20)
    # Blocks that are kept for root would help the daemons here; not every disk has them.
    subprocess.run(["mkfs.ext4", "-q", "-m", "0", "-O", "^has_journal", str(tmp_path / "image")], check=True)
    if subprocess.run(["mount", "-o", "loop", str(tmp_path / "image"), str(disk)], check=False).returncode != 0:
        pytest.skip("machine: no file can be mounted as a disk")
    try:
        (disk / "data.up.log").symlink_to(tmp_path / "up.log")  # there is room for it when a test fails
        with running_cluster(disk / "data") as made:
            yield made
            print(made.log())
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def _statuses(cluster: Cluster) -> list[str]:
    return [session["status"] for session in cluster.json("ps")["items"]]


def test_others_live_and_everything_can_be_deleted(cluster: Cluster) -> None:
    disk = cluster.data_dir.parent
    cluster.run("session", "create", "--name", "victim", "python", admin=True, check=True)
    cluster.run("vfolder", "create", "data", check=True)
    with ThreadPoolExecutor(1) as pool:
        filling = pool.submit(cluster.run, "run", "-m", "data", "-c", FILL, "python")
        wait_until(lambda: shutil.disk_usage(disk).free < 20 << 20, timeout_s=30, what="a full disk")
        wait_until(lambda: "RUNNING" not in _statuses(cluster), timeout_s=40, what="the filler's end")
        filling.result()
    victims = cluster.json("ps", admin=True)["items"]
    assert [session["status"] for session in victims if session["name"] == "victim"] == ["RUNNING"]
    cluster.run("vfolder", "delete", "data", check=True)
    cluster.run("vfolder", "purge", "-y", "data", check=True)
    wait_until(lambda: shutil.disk_usage(disk).free > 100 << 20, timeout_s=30, what="room")
    cluster.run("session", "destroy", "victim", admin=True, check=True)
