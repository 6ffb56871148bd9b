"""Refuses sleeps in the unit lane: its tests wait for events, or sleep in simulated time.

Usage: python -m tools.unit_lane [--privates]

Modules that run on the clock of the simulator may sleep. ``asyncio.sleep(0)`` only lets other tasks run. With
``--privates`` it lists where tests use private names of others, which ports and public methods replace.
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TypeGuard

TESTS = Path("tests")
_SIMULATOR = "ai.backend.simulator"
_CLOCKS = ("time", "asyncio")


def sleeps(text: str) -> list[int]:
    """Returns the lines of a test module that name a sleep; none if the module runs in simulated time."""
    tree = ast.parse(text)
    nodes = list(ast.walk(tree))
    if any(isinstance(node, ast.ImportFrom) and (node.module or "").startswith(_SIMULATOR) for node in nodes):
        return []
    yields = {id(node.func) for node in nodes if isinstance(node, ast.Call) and _is_zero(node.args)}
    calls = {node.lineno for node in nodes if _is_sleep(node) and id(node) not in yields}
    imported = {node.lineno for node in nodes if isinstance(node, ast.ImportFrom) and _imports_sleep(node)}
    return sorted(calls | imported)


def _is_sleep(node: ast.AST) -> TypeGuard[ast.Attribute]:
    return (
        isinstance(node, ast.Attribute)
        and node.attr == "sleep"
        and isinstance(node.value, ast.Name)
        and node.value.id in _CLOCKS
    )


def _is_zero(arguments: list[ast.expr]) -> bool:
    return len(arguments) == 1 and isinstance(arguments[0], ast.Constant) and arguments[0].value == 0


def _imports_sleep(node: ast.ImportFrom) -> bool:
    return node.module in _CLOCKS and any(alias.name == "sleep" for alias in node.names)


def privates(text: str) -> Iterator[tuple[int, str]]:
    """Yields line and name of each private attribute of another object, and of each private name of ours, in use."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Attribute) and _is_private(node.attr):
            if not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")):
                yield node.lineno, ast.unparse(node)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("ai."):
            for alias in node.names:
                if _is_private(alias.name):
                    yield node.lineno, alias.name


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--privates", action="store_true", help="list private accesses of every lane instead")
    if parser.parse_args().privates:
        lines = [
            f"{path}:{line}: {name}"
            for path in sorted(TESTS.rglob("*.py"))
            for line, name in privates(path.read_text())
        ]
        sys.stdout.write("\n".join([*lines, f"{len(lines)} private accesses\n"]))
        return
    places = [f"{path}:{line}" for path in sorted((TESTS / "unit").rglob("*.py")) for line in sleeps(path.read_text())]
    for place in places:
        sys.stderr.write(f"{place}: a unit test sleeps: wait for an event, or run in simulated time\n")
    sys.exit(1 if places else 0)


if __name__ == "__main__":
    main()
