"""The lint of words refuses banned names and docstrings that are riddles."""

from pathlib import Path

import pytest
from tools.words import banned_words, main, violations

GLOSSARY = """# Glossary

| **pot** | not banned, in another section |

## Banned words

| word | standard term |
|---|---|
| `*Book`, `Pot` | tracker, budget |
| `settle` | complete |
"""
BANNED = banned_words(GLOSSARY)
CLEAN = '''"""Tracks runs."""

class RunTracker:
    """Tracks the runs of a session."""

    def complete(self) -> None:
        """Completes a run."""
'''


def keys(text: str, path: str = "src/a.py") -> list[str]:
    return [key for key, _ in violations(path, text, BANNED)]


def test_plain_names_and_sentences_pass() -> None:
    assert keys(CLEAN) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("class RunBook: ...", "src/a.py::RunBook name"),
        ("class _Pot: ...", "src/a.py::_Pot name"),
        ("class Run:\n    def _settle(self): ...", "src/a.py::Run._settle name"),
        ("if True:\n    async def settle(): ...", "src/a.py::settle name"),
        ('"""What is left."""', "src/a.py::a docstring"),
        ('class Run:\n    """Who runs."""', "src/a.py::Run docstring"),
        ('def run():\n    """See the module."""', "src/a.py::run docstring"),
        ("def run():\n    found = []", "src/a.py::found variable"),
        ("def run(*, wanted: int): ...", "src/a.py::wanted variable"),
        ("with open(path) as named: ...", "src/a.py::named variable"),
    ],
)
def test_a_planted_word_is_refused(text: str, expected: str) -> None:
    assert keys(text) == [expected]


def test_a_function_whose_name_is_a_participle_may_be_called() -> None:
    assert keys("def _named(key): ...\n_named(1)") == []


def test_a_module_may_not_have_a_banned_name() -> None:
    assert keys("", "src/settle.py") == ["src/settle.py::settle name"]


def test_a_glossary_without_the_table_is_refused() -> None:
    with pytest.raises(ValueError, match="Banned words"):
        banned_words("# Glossary")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for folder in ("src", "docs", "tools"):
        (tmp_path / folder).mkdir()
    (tmp_path / "docs" / "glossary.md").write_text(GLOSSARY)
    (tmp_path / "src" / "a.py").write_text("class Pot: ...\n")
    return tmp_path


def test_the_allow_list_permits_a_violation_and_goes_stale(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    allow = root / "tools" / "words.allow"
    assert main(["--root", str(root)]) == 1
    assert "src/a.py::Pot name: 'Pot' is banned: use tracker, budget" in capsys.readouterr().err
    allow.write_text("# today\nsrc/a.py::Pot name\n")
    assert main(["--root", str(root)]) == 0
    (root / "src" / "a.py").write_text(CLEAN)
    assert main(["--root", str(root)]) == 1
    assert "is no longer needed" in capsys.readouterr().err
    assert main(["--root", str(root), "--prune"]) == 0
    assert allow.read_text() == "# today\n"
