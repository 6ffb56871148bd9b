"""Migrations only add what programs of the version before can do without: managers of both serve side by side."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from ai.backend.manager.db import MIGRATIONS

_ALLOWED = {"add_column", "create_table", "create_index", "drop_index", "f"}
"""What the migrations call of ``op``. Others need a look at what a manager of the version before does meanwhile."""
_HEADER = "import sqlalchemy as sa\nfrom alembic import op\n"


def _calls(tree: ast.AST, module: str) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name))) if name == module:
                yield node


def _name(call: ast.Call) -> str:
    assert isinstance(call.func, ast.Attribute)
    return call.func.attr


def _problems(source: str) -> Iterator[str]:
    """Yields what a manager of the version before could not bear of a migration."""
    tree = ast.parse(source)
    for call in _calls(tree, "op"):
        name = _name(call)
        if name not in _ALLOWED:
            yield f"op.{name} is not known to be harmless"
        elif name == "add_column":
            column = call.args[1]
            if isinstance(column, ast.Name):
                (column,) = (
                    node.value
                    for node in ast.walk(tree)
                    if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == ast.unparse(call.args[1])
                )
            text = ast.unparse(column)
            if "nullable=True" not in text and "server_default=" not in text:
                yield f"an earlier program leaves it out: {text}"
        elif name == "create_index":
            table = ast.literal_eval(call.args[1]) if isinstance(call.args[1], ast.Constant) else None
            if table in ("sessions", "kernels"):
                yield "online_indexes.create_index is for tables that grow with use"


def test_migrations_after_the_baseline_only_add() -> None:
    baseline, *later = sorted((MIGRATIONS / "versions").glob("0*.py"))
    assert "down_revision = None\n" in baseline.read_text()
    assert {path.name: list(_problems(path.read_text())) for path in later} == {path.name: [] for path in later}


@pytest.mark.parametrize(
    ("statement", "problem"),
    [
        ('op.drop_column("sessions", "tag")', "op.drop_column"),
        ('op.add_column("agents", sa.Column("rack", sa.Text(), nullable=False))', "leaves it out"),
        ('rack = sa.Column("rack", sa.Text(), nullable=False)\nop.add_column("agents", rack)', "leaves it out"),
        ('op.create_index("ix_sessions_tag", "sessions", ["tag"])', "tables that grow"),
        ('op.add_column("agents", sa.Column("rack", sa.Text(), nullable=True))', None),
        ('op.create_index("ix_agents_rack", "agents", ["rack"])', None),
    ],
)
def test_what_an_earlier_manager_cannot_bear_is_named(statement: str, problem: str | None) -> None:
    problems = list(_problems(_HEADER + statement))
    assert len(problems) == (problem is not None)
    assert all(problem is not None and problem in text for text in problems)
