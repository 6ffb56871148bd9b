"""The pages of the documentation whose examples a reader types on a cluster of their own."""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.support.transcripts import examples, matches, run

REPOSITORY = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
PAGES = ["docs/tutorial/first-session.md"]


@pytest.fixture
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, str]]:
    """A cluster as the tutorial starts it, and the environment of a shell that has sourced its env.sh."""
    data_dir = tmp_path_factory.mktemp("t")
    command = [str(BIN / "backend.ai"), "up", "--data-dir", str(data_dir), "--mock", "--detach"]
    subprocess.run(command, check=True, timeout=30)
    try:
        shell = ["bash", "-c", f"source {data_dir}/env.sh && env -0"]
        printed = subprocess.run(shell, check=True, capture_output=True, text=True, timeout=10).stdout
        variables = dict(word.split("=", 1) for word in printed.split("\0") if word)
        yield {**variables, "PATH": f"{BIN}:{os.environ['PATH']}"}
    finally:
        subprocess.run([str(BIN / "backend.ai"), "down", "--data-dir", str(data_dir)], check=True, timeout=60)


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.timeout(180)
def test_a_reader_who_types_every_example_sees_what_the_page_shows(
    page: str, environment: Mapping[str, str], tmp_path: Path
) -> None:
    found = list(examples((REPOSITORY / page).read_text(encoding="utf-8")))
    assert found
    for example in found:
        printed = run(example, cwd=tmp_path, env=environment)
        assert matches(example.expected, printed), (
            f"{page}:{example.line_number}: $ {example.command}\npromised:\n{example.expected}\nprinted:\n{printed}"
        )
