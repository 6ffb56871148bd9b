"""The runner is standard library only and parses on Python 3.8."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

import ai.backend.runner

SOURCES = sorted(Path(ai.backend.runner.__file__).parent.glob("*.py"))


def test_there_is_something_to_check() -> None:
    assert len(SOURCES) > 10


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: p.name)
def test_source(path: Path) -> None:
    tree = ast.parse(path.read_text(), feature_version=(3, 8))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [] if node.level else [node.module or ""]
        else:
            continue
        for name in names:
            assert name.partition(".")[0] in sys.stdlib_module_names, f"{path.name}:{node.lineno} imports {name}"


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: p.name)
def test_annotations_are_never_evaluated(path: Path) -> None:
    """`list[int]` and `X | None` in annotations are text on Python 3.8 only with this statement."""
    tree = ast.parse(path.read_text())
    has_annotations = any(isinstance(n, ast.FunctionDef) and n.returns for n in ast.walk(tree))
    imports = [n for n in tree.body if isinstance(n, ast.ImportFrom) and n.module == "__future__"]
    assert imports or not has_annotations
