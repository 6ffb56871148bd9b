"""Checks that names and docstrings use the terms of the glossary (`./check lint`).

Names of modules, classes and functions may not be in the table "Banned words" of `docs/glossary.md`, variables and
parameters may not be participles that name no value, and the first line of a docstring may not begin like a riddle.
`tools/words.allow` lists the violations of today as `path::name rule`; a line that matches no violation fails the
check, so the list can only shrink.

Usage: python -m tools.words [--root DIR] [--prune]
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

FOLDERS = ("src", "tools", "bench")
OPENINGS = ("What ", "Who ", "Whose ", "Whether ", "Those ", "One ", "See the module", "It is told")
PARTICIPLES = frozenset({"found", "known", "named", "told", "wanted"})
"""Names that say nothing of a value; nouns do, such as `sessions`, `existing`, `reported`, `requested`."""
NAME, DOCSTRING, VARIABLE = "name", "docstring", "variable"
Named = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def banned_words(glossary: str) -> dict[str, str]:
    """Parse the table "Banned words": name or pattern -> standard term.

    Raises:
        ValueError: the glossary has no such table.
    """
    section = glossary.partition("\n## Banned words\n")[2].partition("\n## ")[0]
    words: dict[str, str] = {}
    for line in section.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| `") and len(cells) == 2:
            words |= dict.fromkeys(re.findall(r"`([^`]+)`", cells[0]), cells[1])
    if not words:
        raise ValueError('docs/glossary.md has no table in a section "Banned words"')
    return words


def violations(path: str, text: str, banned: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield `path::name rule` and an explanation for each banned name or variable, and each riddle of a docstring."""
    module = ast.parse(text, filename=path)
    for name, node in _named(module, Path(path).stem):
        last = name.rpartition(".")[2].strip("_")
        for pattern, term in banned.items():
            if fnmatchcase(last, pattern):
                yield f"{path}::{name} {NAME}", f"{last!r} is banned: use {term}"
        docstring = ast.get_docstring(node) or ""
        if docstring.startswith(OPENINGS):
            yield f"{path}::{name} {DOCSTRING}", f"say what it is or does: {docstring.splitlines()[0]!r}"
    for part in ast.walk(module):
        match part:
            case ast.arg(arg=variable) | ast.Name(id=variable, ctx=ast.Store()):
                if variable.strip("_") in PARTICIPLES:
                    yield f"{path}::{variable} {VARIABLE}", f"line {part.lineno}: name the value by a noun"


def _named(module: ast.Module, stem: str) -> Iterator[tuple[str, Named]]:
    yield stem, module
    todo: list[tuple[str, ast.AST]] = [("", module)]
    while todo:
        prefix, parent = todo.pop()
        for node in ast.iter_child_nodes(parent):
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                yield prefix + node.name, node
                todo.append((f"{prefix}{node.name}.", node))
            elif isinstance(node, ast.stmt | ast.excepthandler | ast.match_case):
                todo.append((prefix, node))


def unresolved(current: Mapping[str, str], allowed: Sequence[str]) -> list[str]:
    """Describe each violation that is not allowed, and each allowance that is no longer needed."""
    broken = [f"{key}: {reason}" for key, reason in current.items() if key not in allowed]
    return broken + [f"tools/words.allow: {key!r} is no longer needed" for key in allowed if key not in current]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Check names and docstrings against the glossary.")
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parent.parent)
    parser.add_argument("--prune", action="store_true", help="remove lines from the allow-list that match nothing")
    args = parser.parse_args(argv)
    root: Path = args.root
    banned = banned_words((root / "docs" / "glossary.md").read_text(encoding="utf-8"))
    current: dict[str, str] = {}
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*.py")):
            name = path.relative_to(root).as_posix()
            current |= violations(name, path.read_text(encoding="utf-8"), banned)
    file = root / "tools" / "words.allow"
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    if args.prune:
        lines = [line for line in lines if line.startswith("#") or line in current]
        file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    broken = unresolved(current, [line for line in lines if line and not line.startswith("#")])
    for line in broken:
        sys.stderr.write(f"words: {line}\n")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
