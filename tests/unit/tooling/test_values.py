"""Values are structs (docs/decisions/0743): the frozen dataclasses that remain have a reason which this reads."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[3] / "src/ai/backend"
INTERFACES = ("plugin", "client", "cli", "hook")
"""Packages that plugin authors and users of the SDK read, or that start without msgspec."""
EXEMPT = ("infra/console", "node/relay", "runner", "common", "pluginhost/v1/api")
"""Programs that have the standard library alone, and modules that plugins and the client share with the daemons."""
HAND_WRITTEN = {"__post_init__", "__eq__", "__hash__"}


def _frozen_dataclasses(tree: ast.Module) -> list[ast.ClassDef]:
    return [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        and any(
            isinstance(each, ast.Call)
            and ast.unparse(each.func).endswith("dataclass")
            and any(option.arg == "frozen" for option in each.keywords)
            for each in node.decorator_list
        )
    ]


def _has_reason(node: ast.ClassDef) -> bool:
    """Returns True for a field that no text may show, for methods that a struct has of its own, and for a subclass."""
    methods = {each.name for each in node.body if isinstance(each, ast.FunctionDef)}
    return bool(node.bases) or bool(methods & HAND_WRITTEN) or "repr=False" in ast.unparse(node)


@pytest.mark.parametrize(
    "package", sorted(path.name for path in SOURCE.iterdir() if path.is_dir() and path.name not in INTERFACES)
)
def test_a_frozen_dataclass_has_a_reason(package: str) -> None:
    without_reason = [
        f"{path.relative_to(SOURCE)}: {node.name}"
        for path in sorted((SOURCE / package).rglob("*.py"))
        if not str(path.relative_to(SOURCE)).startswith(EXEMPT)
        for node in _frozen_dataclasses(ast.parse(path.read_text()))
        if not _has_reason(node)
    ]
    assert not without_reason, "write `class Name(msgspec.Struct, frozen=True)`"
