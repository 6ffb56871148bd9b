"""The page on security names tests that exist."""

import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[3]
_REFERENCE = re.compile(r"`((?:manager|web|hook|appproxy)/[a-z_/]+\.py)(?:::(\w+))?`")
REFERENCES = _REFERENCE.findall((REPOSITORY / "docs" / "security.md").read_text(encoding="utf-8"))


def test_the_page_names_tests() -> None:
    assert len(REFERENCES) > 20


@pytest.mark.parametrize(("file", "name"), sorted(set(REFERENCES)))
def test_a_named_test_exists(file: str, name: str) -> None:
    source = (REPOSITORY / "tests" / "component" / file).read_text(encoding="utf-8")
    assert not name or re.search(rf"^(async )?def {name}\(", source, re.MULTILINE)
