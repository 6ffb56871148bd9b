"""Draws random docstrings and names of the source for a reader who has not seen it.

Usage: python -m tools.draw [--seed N] [--number 60]

The reader says of each, without opening a body, what it does. What they cannot say is renamed or written anew.
"""

from __future__ import annotations

import argparse
import ast
import random
import sys
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path("src/ai/backend")
_Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def _definitions(tree: ast.AST, prefix: str) -> Iterator[tuple[str, ast.AST]]:
    """Yields every class, function, parameter and assigned local of a module with its qualified name."""
    for node in ast.iter_child_nodes(tree):
        name = prefix
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            name = f"{prefix}.{node.name}"
            yield name, node
        elif isinstance(node, ast.arg) and node.arg not in ("self", "cls", "_"):
            yield f"{prefix}({node.arg})", node
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id != "_":
            yield f"{prefix}:{node.id}", node
        yield from _definitions(node, name)


def _shown(name: str, node: ast.AST) -> str:
    """Returns a name with what stands beside it in the declaration."""
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
            return f"{name}({ast.unparse(node.args)}){returns}"
        case ast.arg(annotation=ast.expr() as annotation):
            return f"{name}: {ast.unparse(annotation)}"
        case ast.ClassDef(bases=bases) if bases:
            return f"{name}({', '.join(map(ast.unparse, bases))})"
    return name


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--number", type=int, default=60, help="of docstrings, and of names")
    arguments = parser.parse_args()
    dice = random.Random(arguments.seed)
    names: dict[str, str] = {}
    docstrings: list[str] = []
    for path in sorted(SOURCE.rglob("*.py")):
        module = path.relative_to(SOURCE).with_suffix("").as_posix()
        tree = ast.parse(path.read_text())
        nodes = dict(_definitions(tree, module))
        names.update({name: _shown(name, node) for name, node in nodes.items()})
        for name, node in [(module, tree), *nodes.items()]:
            if isinstance(node, _Documented) and (text := ast.get_docstring(node)):
                docstrings.append(f"{name}\n    {text.splitlines()[0]}")
    for title, drawn in (("docstrings", docstrings), ("names", list(names.values()))):
        sys.stdout.write(f"== {title}\n")
        for number, item in enumerate(dice.sample(drawn, arguments.number), 1):
            sys.stdout.write(f"{number:2}. {item}\n")


if __name__ == "__main__":
    main()
