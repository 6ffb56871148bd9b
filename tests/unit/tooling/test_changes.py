"""Changelog fragments are named as ``changes/README.md`` says."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_every_fragment_is_a_topic_or_an_issue_with_a_type() -> None:
    types = [t["directory"] for t in tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["towncrier"]["type"]]
    name = re.compile(rf"(\+[a-z0-9]+(-[a-z0-9]+)*|[0-9]+)\.({'|'.join(types)})\.md")
    names = [path.name for path in (ROOT / "changes").glob("*.md") if path.name != "README.md"]
    assert [n for n in names if not name.fullmatch(n)] == []


def test_the_version_is_a_branch_of_the_calendar_and_a_release() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert re.fullmatch(r"2[0-9]\.([1-9]|1[0-2])\.(0|[1-9][0-9]*)", version)
    locked = tomllib.loads((ROOT / "uv.lock").read_text())["package"]
    assert [package["version"] for package in locked if package["name"] == "backendai"] == [version]
