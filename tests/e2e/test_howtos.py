"""The how-tos: a reader who types their commands sees what they show."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ai.backend.accelerator.mock.faults import BEHAVIOURS, CALLS
from tests.support.cluster import Cluster, running_cluster
from tests.support.hub_thread import hub_with_tiny
from tests.support.transcripts import examples, matches, run

HOWTOS = Path(__file__).resolve().parents[2] / "docs" / "howto"
FAILURES = HOWTOS / "try-failures.md"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """What the page starts, on the declaration that it shows first."""
    shown = re.search(r"```toml\n(.*?)```", FAILURES.read_text(), re.DOTALL)
    assert shown is not None
    (tmp_path / "mock-accelerator.toml").write_text(shown[1])
    with running_cluster(tmp_path / "data", "--mock", str(tmp_path / "mock-accelerator.toml")) as cluster:
        yield cluster


def follow(page: Path, folder: Path, environment: dict[str, str]) -> None:
    """Type every example of a page."""
    found = list(examples(page.read_text()))
    assert found
    environment = {**environment, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    for example in found:
        printed = run(example, cwd=folder, env=environment)
        assert matches(example.expected, printed), (
            f"{page.name}:{example.line_number}: $ {example.command}\n"
            f"promised:\n{example.expected}\nprinted:\n{printed}"
        )


@pytest.mark.timeout(180)
def test_devices_fail_as_the_page_shows(cluster: Cluster) -> None:
    follow(FAILURES, cluster.data_dir.parent, cluster.environment())


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "page",
    [
        "agents-that-differ.md",
        "choose-devices.md",
        "claim-devices.md",
        "operate-devices.md",
        "open-apps-in-a-browser.md",
    ],
)
def test_pages_that_start_a_cluster_do_what_they_show(page: str, tmp_path: Path) -> None:
    cluster = Cluster(tmp_path / "data")
    try:
        follow(HOWTOS / page, tmp_path, cluster.environment())
    finally:
        cluster.run("down", "--data-dir", str(cluster.data_dir))


@pytest.mark.timeout(180)
def test_models_are_imported_as_the_page_shows(tmp_path: Path) -> None:
    with hub_with_tiny() as hub:
        page = tmp_path / "import-models.md"
        page.write_text((HOWTOS / page.name).read_text().replace("https://huggingface.co", hub.url))
        cluster = Cluster(tmp_path / "data")
        cluster.data_dir.mkdir()
        (cluster.data_dir / "storage-proxy.toml").write_text('[artifacts]\nallowed-hosts = ["127.0.0.1"]\n')
        try:
            follow(page, tmp_path, cluster.environment())
        finally:
            cluster.run("down", "--data-dir", str(cluster.data_dir))


def test_the_page_names_every_behaviour_and_every_call() -> None:
    named = set(re.findall(r"`([a-z_-]+)`", FAILURES.read_text()))
    assert set(BEHAVIOURS) | set(CALLS) <= named
