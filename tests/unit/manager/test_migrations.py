"""Migrations only add what programs of the version before can do without: managers of both serve side by side."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from ai.backend.manager.db import MIGRATIONS

LATER = sorted((MIGRATIONS / "versions").glob("0*.py"))[1:]
ALLOWED = {"add_column", "create_table", "create_index", "drop_index", "f"}
"""What the migrations call of ``op``. Others need a look at what a manager of the version before does meanwhile."""


def _calls(tree: ast.AST, module: str) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name))) if name == module:
                yield node


def _name(call: ast.Call) -> str:
    assert isinstance(call.func, ast.Attribute)
    return call.func.attr


@pytest.mark.parametrize("path", LATER, ids=lambda path: path.stem)
def test_it_only_adds(path: Path) -> None:
    tree = ast.parse(path.read_text())
    calls = list(_calls(tree, "op"))
    assert {_name(call) for call in calls} <= ALLOWED
    for call in calls:
        if _name(call) == "add_column":
            column = call.args[1]
            if isinstance(column, ast.Name):
                (column,) = (
                    node.value
                    for node in ast.walk(tree)
                    if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == ast.unparse(call.args[1])
                )
            text = ast.unparse(column)
            assert "nullable=True" in text or "server_default=" in text, f"an earlier program leaves it out: {text}"
        elif _name(call) == "create_index":
            table = ast.literal_eval(call.args[1]) if isinstance(call.args[1], ast.Constant) else None
            assert table not in ("sessions", "kernels"), "online_indexes.create_index is for tables that grow with use"
