"""The author's guide shows the code of the skeleton, and names every part of a plugin."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ai.backend.common.errors import InvalidInput
from ai.backend.plugin.accelerator import POWERS, UNITS
from ai.backend.plugin.testing.accelerator.scaffold import check_name, render

PAGE = Path(__file__).resolve().parents[3] / "docs" / "howto" / "write-an-accelerator-plugin.md"
SHOWN = re.compile(r"<!-- (\S+) -->\n```\w+\n(.*?)```", re.DOTALL)


def test_the_code_of_the_page_is_the_code_of_a_new_plugin() -> None:
    files = render("acme")
    shown = SHOWN.findall(PAGE.read_text())
    assert len(shown) >= 12
    for path, code in shown:
        assert code in files[path], f"{path} has not:\n{code}"


def test_python_on_the_page_is_all_compared() -> None:
    page = PAGE.read_text()
    assert page.count("```python") == sum("```python" in block for block in re.findall(r"<!-- \S+ -->\n```\w+", page))


def test_the_page_names_every_unit_and_power() -> None:
    words = set(re.findall(r"`([a-z_]+)`", PAGE.read_text()))
    assert words >= UNITS
    assert words >= POWERS.keys()


MALFORMED = ("", "A", "1a", "a.b", "a_b", "-a", "a-", "a--b", "a b", "../a", "a" * 33)


@pytest.mark.parametrize("name", [*MALFORMED, "cpu", "mock"])
def test_a_name_that_no_plugin_may_have(name: str) -> None:
    with pytest.raises(InvalidInput):
        check_name(name)


def test_no_field_of_a_template_is_left() -> None:
    for path, text in render("acme-x1").items():
        assert not re.search(r"\{(name|package|class_|project|prefix|key)\}", path + text)
