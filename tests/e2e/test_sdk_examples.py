"""Every program of docs/howto/sdk.md does what it says on a real cluster."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cluster import Cluster, running_cluster

EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "examples"
EXPECTED = {
    "versions.py": ("", ["'version': 'v7.20230615'"]),
    "versions_async.py": ("", ["'version': 'v7.20230615'"]),
    "explicit_config.py": ("", ["'manager':"]),
    "list_sessions.py": ("", []),
    "create_session.py": ("", ["-"]),
    "run_snippet.py": ("Lablup\n", ["Who are you? ", "Hello, Lablup!"]),
    "run_batch.py": ("", ["arguments: ['arg1', 'arg2']", "exit code 0"]),
    "run_stream.py": ("", ["tick 0\ntick 1\ntick 2\n"]),
    "raw_request.py": ("", ["'cpu', 'mem'"]),
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running_cluster(tmp_path_factory.mktemp("sdk") / "c") as running:
        yield running


def test_every_example_is_tried_and_named() -> None:
    found = {path.name for path in EXAMPLES.glob("*.py")} - {"console.py"}
    assert found == set(EXPECTED)
    page = (EXAMPLES.parent / "howto" / "sdk.md").read_text()
    assert all(f"../examples/{name}" in page for name in found)


@pytest.mark.parametrize("name", EXPECTED)
def test_an_example(name: str, cluster: Cluster) -> None:
    typed, expected = EXPECTED[name]
    done = subprocess.run(
        [sys.executable, EXAMPLES / name],
        capture_output=True,
        text=True,
        input=typed,
        timeout=50,
        env=cluster.environment(),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    for text in expected:
        assert text in done.stdout
    assert cluster.json("ps")["total_count"] == 0
