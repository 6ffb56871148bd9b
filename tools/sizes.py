"""Size limits of source files and functions (`./check lint`).

Files aim at 250 lines and stop at 800, functions aim at 60 and stop at 100. A raised limit is a line of
`tools/sizes.allow` with its reason: `path limit  # reason`, or `path::function limit  # reason`.
Migrations and generated files are exempt.

Usage: python -m tools.sizes [--root DIR]
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

FILE_LIMIT = 800
FUNCTION_LIMIT = 100
FOLDERS = ("src", "tests", "tools", "bench")
EXEMPT = ("migrations/versions/", "/generated/")


@dataclass(frozen=True, slots=True)
class Measure:
    """Holds the size of a file or function: its name, its number of lines, and the limit of its kind."""

    name: str
    lines: int
    limit: int


def measure(path: str, text: str) -> Iterator[Measure]:
    """Yield the size of a file and of every function in it."""
    yield Measure(path, len(text.splitlines()), FILE_LIMIT)
    for node in _statements(ast.parse(text, filename=path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            yield Measure(f"{path}::{node.name}", lines, FUNCTION_LIMIT)


def _statements(root: ast.AST) -> Iterator[ast.AST]:
    """Every statement below, and what holds statements. Expressions, which are nine nodes of ten, hold none."""
    todo = [root]
    while todo:
        node = todo.pop()
        yield node
        for name in ("body", "orelse", "finalbody", "handlers", "cases"):
            below = getattr(node, name, None)
            todo += below if isinstance(below, list) else ()


def allowances(text: str) -> dict[str, int]:
    """Parse the allow-list.

    Raises:
        ValueError: a line has no reason or no limit.
    """
    limits: dict[str, int] = {}
    for line in text.splitlines():
        entry, _, reason = line.partition("#")
        if not entry.strip():
            continue
        name, _, limit = entry.strip().rpartition(" ")
        if not reason.strip() or not name:
            raise ValueError(f"an allowance needs a name, a limit and a reason: {line!r}")
        limits[name.strip()] = int(limit)
    return limits


def offenders(measures: Sequence[Measure], allowed: dict[str, int]) -> list[str]:
    """Name everything over its limit, and every allowance that is no longer needed."""
    seen = {size.name: size for size in measures}
    over = [
        f"{size.name}: {size.lines} lines, limit {allowed.get(size.name, size.limit)}"
        for size in measures
        if size.lines > allowed.get(size.name, size.limit)
    ]
    stale = [
        f"tools/sizes.allow: {name} needs no allowance"
        for name in allowed
        if name not in seen or seen[name].lines <= seen[name].limit
    ]
    return over + stale


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Check the sizes of files and functions.")
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parent.parent)
    root: Path = parser.parse_args(argv).root
    measures: list[Measure] = []
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*.py")):
            name = path.relative_to(root).as_posix()
            if not any(part in name for part in EXEMPT):
                measures += measure(name, path.read_text(encoding="utf-8"))
    listed = root / "tools" / "sizes.allow"
    errors = offenders(measures, allowances(listed.read_text(encoding="utf-8")) if listed.exists() else {})
    for line in errors:
        sys.stderr.write(f"sizes: {line}\n")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
