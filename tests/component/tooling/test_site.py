"""The documentation is built as HTML, without a dead link, and its versions stand beside each other."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tools.site import branch_version, main

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.timeout(180)
def test_the_site_is_built_beside_older_versions(tmp_path: Path) -> None:
    for old in ("9.09", "24.3", "not-a-version"):
        (tmp_path / old).mkdir()
    assert main(["--into", str(tmp_path)]) == 0
    version = branch_version(ROOT)
    listed = json.loads((tmp_path / "versions.json").read_text())
    assert [entry["version"] for entry in listed] == [version, "24.3", "9.09"]
    assert [entry["aliases"] for entry in listed] == [["latest"], [], []]
    assert f"url={version}/index.html" in (tmp_path / "index.html").read_text()
    site = tmp_path / version
    for page in ("index", "tutorial/first-session", "howto/import-models", "reference/settings", "ko/index"):
        assert (site / f"{page}.html").is_file(), page
    words = str(json.loads((site / "search" / "search_index.json").read_text()))
    assert "artifact" in words
    assert "세션" in words
    assert 'script src="https://' not in (site / "index.html").read_text(), "nothing is loaded from other servers"
