"""A reader who types the commands of the pages for operators sees what they show."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.e2e.test_howtos import HOWTOS, follow
from tests.support.cluster import Cluster

PAGE = HOWTOS / "when-a-daemon-dies.md"


def test_each_unit_has_its_part() -> None:
    lines = PAGE.read_text().splitlines()
    parts = {
        unit: anchors
        for line in lines
        if line.startswith("| `backendai-")
        for _, names, anchors, _ in [line.split("|")]
        for unit in re.findall(r"`([a-z-]+)`", names)
    }
    assert parts.keys() == {path.stem for path in (HOWTOS.parents[1] / "deploy/systemd").glob("*.service")}
    headings = {f"#{line[3:].lower().replace(' ', '-')}" for line in lines if line.startswith("## ")}
    assert {anchor for anchors in parts.values() for anchor in re.findall(r"\((#[a-z-]+)\)", anchors)} <= headings


@pytest.mark.timeout(600)
def test_daemons_die_as_the_page_shows(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path / "data")
    try:
        follow(PAGE, tmp_path, cluster.environment())
    finally:
        cluster.run("down", "--data-dir", str(cluster.data_dir))
