"""Selects the tests that a change can affect (`./check --changed`).

A test file is selected if it changed, or if it imports, directly or not, a module of `src` or `tests` that changed.
Files that are no modules select by the rules of `OTHERS`. The selection follows imports alone: a change that reaches
other code by data, by a process or over a network needs the whole `./check`.

Usage: python -m tools.changed [--base REV]      prints `LANE FILE...`, a line for each lane
"""

from __future__ import annotations

import argparse
import ast
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LANES = ("unit", "contract", "component", "simulation", "e2e", "conformance", "openapi", "kubernetes")
# beginning of a path that is no module -> the test files and folders that it can affect
OTHERS: Mapping[str, tuple[str, ...]] = {
    "pyproject.toml": ("tests/unit/tooling",),
    "uv.lock": ("tests/unit/tooling",),
    "tools/": ("tests/unit/tooling",),
    "tools/kube/": ("tests/component/tooling/test_kube_build.py", "tests/kubernetes"),
    "check": ("tests/unit/tooling",),
    "changes/": ("tests/unit/tooling/test_changes.py",),
    "docs/howto/": ("tests/e2e/test_howtos.py", "tests/unit/plugin/test_author_guide.py"),
    "docs/tutorial/": ("tests/e2e/test_tutorial.py",),
    "docs/examples/": (
        "tests/e2e/test_sdk_examples.py",
        "tests/contract/accelerator/test_mock_example.py",
        "tests/component/agent/test_program_plugin.py",
    ),
    "deploy/": ("tests/e2e/test_deployment.py",),
}


def module_of(path: str) -> str | None:
    """Return the dotted name of a Python file of `src` or `tests`, or None for another file."""
    if not path.endswith(".py") or not path.startswith(("src/", "tests/")):
        return None
    return path.removeprefix("src/").removesuffix(".py").replace("/", ".").removesuffix(".__init__")


def imports_of(text: str, modules: Iterable[str]) -> set[str]:
    """Return the modules among `modules` that a source text imports, with the packages that hold them."""
    existing = set(modules)
    names: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    names &= existing
    for name in list(names):
        while "." in name:
            name = name.rpartition(".")[0]
            if name in existing:
                names.add(name)
    return names


def affected(changed: Iterable[str], sources: Mapping[str, str]) -> set[str]:
    """Return the test files that a change of the files `changed` can affect.

    Args:
        changed: paths from the root of the repository; they need not exist any more.
        sources: path -> text of every Python file of `src` and `tests`.
    """
    paths = {module: path for path in sources if (module := module_of(path)) is not None}
    importers: dict[str, set[str]] = {}
    for module, path in paths.items():
        for imported in imports_of(sources[path], paths):
            importers.setdefault(imported, set()).add(module)
    reached: set[str] = set()
    pending = [module for path in changed if (module := module_of(path)) is not None]
    while pending:
        module = pending.pop()
        if module not in reached:
            reached.add(module)
            pending += importers.get(module, ())
    selected = {paths[module] for module in reached if module in paths and _is_test(paths[module])}
    folders = {path.rpartition("/")[0] for path in changed if path.endswith("conftest.py")}
    selected |= {path for path in sources if _is_test(path) and any(path.startswith(f"{f}/") for f in folders)}
    for path in changed:
        for beginning, targets in OTHERS.items():
            if path.startswith(beginning):
                selected |= {other for other in sources if _is_test(other) and other.startswith(targets)}
    return selected


def _is_test(path: str) -> bool:
    return path.startswith("tests/") and path.rpartition("/")[2].startswith("test_")


def _git(*arguments: str) -> list[str]:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Name the tests that a change can affect.")
    parser.add_argument("--base", default="HEAD", help="what the working tree is compared with")
    base: str = parser.parse_args(argv).base
    changed = [*_git("diff", "--name-only", base), *_git("ls-files", "--others", "--exclude-standard")]
    files = [path for folder in ("src", "tests") for path in sorted((ROOT / folder).rglob("*.py"))]
    sources = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in files}
    selected = sorted(affected(changed, sources))
    for lane in LANES:
        own = [path for path in selected if path.startswith(f"tests/{lane}/")]
        if own:
            sys.stdout.write(" ".join([lane, *own]) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
