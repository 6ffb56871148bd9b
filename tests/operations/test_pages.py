"""A reader who types the commands of the pages for operators sees what they show."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.test_howtos import HOWTOS, follow
from tests.support.cluster import Cluster


@pytest.mark.timeout(600)
def test_daemons_die_as_the_page_shows(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path / "data")
    try:
        follow(HOWTOS / "when-a-daemon-dies.md", tmp_path, cluster.environment())
    finally:
        cluster.run("down", "--data-dir", str(cluster.data_dir))
