"""The generated references, and the links of the pages written by hand."""

import re
from pathlib import Path

import pytest
from tools import docs, translations

REPOSITORY = Path(__file__).resolve().parents[3]
PAGES = sorted([*REPOSITORY.glob("*.md"), *(REPOSITORY / "docs").rglob("*.md")])
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
FRAGMENT = re.compile(r"^(\d+|\+[a-z0-9-]+)\.(breaking|feature|fix|deprecation|doc|misc)\.md$")


def generated() -> str:
    return "one page"


def test_a_page_that_differs_is_named_and_written(tmp_path: Path) -> None:
    generators = {"page.md": f"{__name__}:generated"}
    assert docs.outdated(tmp_path, generators) == {"page.md": "one page\n"}
    (tmp_path / "page.md").write_text("one page\n")
    assert docs.outdated(tmp_path, generators) == {}
    (tmp_path / "page.md").write_text("another\n")
    assert docs.outdated(tmp_path, generators) == {"page.md": "one page\n"}


def test_check_fails_and_writes_nothing_on_an_old_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert docs.main(["--check", "--root", str(tmp_path)]) == 1
    assert "out of date" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
    assert docs.main(["--root", str(tmp_path)]) == 0
    assert docs.main(["--check", "--root", str(tmp_path)]) == 0


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(REPOSITORY).as_posix())
def test_relative_links_lead_somewhere(page: Path) -> None:
    targets = [target.partition("#")[0] for target in LINK.findall(page.read_text(encoding="utf-8"))]
    local = [target for target in targets if target and "://" not in target and not target.startswith("mailto:")]
    assert [target for target in local if not (page.parent / target).exists()] == []


def test_changelog_fragments_have_a_name_that_towncrier_reads() -> None:
    names = {path.name for path in (REPOSITORY / "changes").iterdir()} - {"README.md", ".gitignore"}
    assert [name for name in sorted(names) if not FRAGMENT.match(name)] == []


def test_decisions_have_numbers_of_their_own_and_are_listed() -> None:
    folder = REPOSITORY / "docs" / "decisions"
    pages = sorted(path.name for path in folder.glob("[0-9]*.md"))
    numbers = [name[:4] for name in pages]
    assert len(set(numbers)) == len(numbers)
    index = (folder / "README.md").read_text(encoding="utf-8")
    assert [name for name in pages if f"({name})" not in index] == []


def test_a_translation_has_the_examples_of_its_original(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(translations, "_ROOT", tmp_path)
    monkeypatch.setattr(translations, "_FOLDER", tmp_path / "docs" / "ko")
    (tmp_path / "docs" / "ko").mkdir(parents=True)
    (tmp_path / "docs" / "a.md").write_text("one\n```console\n$ new\n```\ntwo\n```\nlast\n```\n")
    translated = tmp_path / "docs" / "ko" / "a.md"
    translated.write_text("하나\n```console\n$ old\n```\n둘\n```\n```\n")
    assert translations.page("a.md") == "하나\n```console\n$ new\n```\n둘\n```\nlast\n```\n"
    translated.write_text("하나\n```console\n$ old\n```\n")
    with pytest.raises(ValueError, match=r"docs/ko/a.md has 1 examples and its original 2"):
        translations.page("a.md")
