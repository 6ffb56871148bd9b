"""The page of the console for each command: it names every command, and only addresses that the console has."""

import re
from pathlib import Path

from tests.unit.cli.test_tree import LEAVES

REPOSITORY = Path(__file__).parents[3]
_WORDS = re.compile("`([^`]+)`")
_ADDRESS = re.compile(r"^\s*path: '(/[^']*)'", re.MULTILINE)


def _rows() -> dict[str, str]:
    """Returns the cell of pages for each command of the page."""
    cells_by_command: dict[str, str] = {}
    for line in (REPOSITORY / "docs/reference/console.md").read_text().splitlines():
        if not line.startswith("| `"):
            continue
        commands, pages, *_ = (cell.strip() for cell in line.strip("|").split("|"))
        for command in _WORDS.findall(commands):
            assert command not in cells_by_command, command
            cells_by_command[command] = pages
    return cells_by_command


def test_every_command_has_a_row() -> None:
    rows = _rows()
    for path, _, _ in LEAVES:
        assert any(" ".join(path[:n]) in rows for n in range(1, len(path) + 1)), " ".join(path)


def test_every_row_is_of_a_command() -> None:
    commands = {" ".join(path[:n]) for path, _, _ in LEAVES for n in range(1, len(path) + 1)}
    assert sorted(set(_rows()) - commands) == []


def test_every_row_names_pages_of_the_console_or_why_there_is_none() -> None:
    addresses = set(_ADDRESS.findall((REPOSITORY / "webui/src/app/router.tsx").read_text()))
    for command, cell in _rows().items():
        pages = _WORDS.findall(cell)
        if cell.startswith("none"):
            assert ": " in cell, command
            assert pages == [], command
        else:
            assert pages != [], command
            assert sorted(set(pages) - addresses) == [], command
