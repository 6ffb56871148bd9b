"""``python -m tools.draw`` shows what a reader is to judge."""

from __future__ import annotations

import pytest
from tools import draw


def test_a_seed_draws_the_same_docstrings_and_names(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["draw", "--seed", "3", "--number", "5"])
    draw.main()
    first = capsys.readouterr().out
    draw.main()
    assert capsys.readouterr().out == first
    docstrings, names = first.split("== names\n")
    assert len(docstrings.splitlines()) == 1 + 2 * 5
    assert len(names.splitlines()) == 5
