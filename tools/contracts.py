"""Checks the import contracts of the packages with import-linter (`./check contracts`).

The tables of `tools/layout.py` say who may import whom. The configuration of import-linter is written from them and
from the packages that exist, so a package joins its contract when its first module appears, and a package that is in
no table fails the check. `tools/layout.allow` lists the imports that do not obey yet; it may only shrink.
The test `tests/unit/tooling/test_contracts.py` plants a violation of every contract.

Usage: python -m tools.contracts [--src DIR] [--print]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

from tools.layout import DAEMONS, FEATURES, LAYERS, NEIGHBOURS, PREFIX, STANDING_ALONE, STDLIB_ONLY, WITHOUT_TIERS

# fmt: off
IO_MODULES = (
    "aiodocker", "aiohttp", "alembic", "ariadne", "asyncio", "asyncpg", "click",
    "concurrent", "ctypes", "fcntl", "http", "kubernetes_asyncio", "logging", "mmap",
    "multiprocessing", "os", "pathlib", "pty", "redis", "resource", "rich", "select", "selectors",
    "shutil", "signal", "socket", "socketserver", "sqlalchemy", "sqlite3", "ssl", "subprocess",
    "tempfile", "termios", "threading", "urllib3", "zmq",
)
# fmt: on

# Libraries that only some files of a feature may import: contract name, patterns of those files, the libraries.
LIBRARIES: tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...] = (
    ("only-adapters-import-sql", ("sql", "sql_*", "tables"), ("sqlalchemy", "alembic")),
    ("only-wire-imports-graphql", ("graphql", "graphql_*"), ("ariadne", "graphql")),
)


@dataclass(frozen=True, slots=True)
class Tree:
    """The packages under a source directory, with the importable portions of each."""

    packages: dict[str, tuple[str, ...]] = field(default_factory=dict)
    children: dict[str, tuple[str, ...]] = field(default_factory=dict)
    feature_modules: tuple[str, ...] = ()
    """Modules of the daemons' features that are divided into tiers."""

    def portions(self, packages: Iterable[str]) -> list[str]:
        return [portion for package in packages for portion in self.packages.get(package, ())]


def survey(src: Path) -> Tree:
    """List what exists. A package with `__init__.py` is one portion, one without is the portions below it."""
    base = src.joinpath(*PREFIX.split("."))
    packages: dict[str, tuple[str, ...]] = {}
    children: dict[str, tuple[str, ...]] = {}
    for package in sorted(p for p in base.iterdir() if p.is_dir() and any(p.rglob("*.py"))):
        if (package / "__init__.py").exists():
            packages[package.name] = (f"{PREFIX}.{package.name}",)
        else:
            portions = sorted(p.name for p in package.iterdir() if (p / "__init__.py").exists())
            packages[package.name] = tuple(f"{PREFIX}.{package.name}.{portion}" for portion in portions)
        names = {p.stem for p in package.iterdir() if p.suffix == ".py" or (p.is_dir() and any(p.rglob("*.py")))}
        children[package.name] = tuple(sorted(names - {"__init__", "__pycache__"}))
    modules = tuple(module for daemon in FEATURES for module in _modules_with_tiers(base, daemon))
    return Tree(packages, children, modules)


def _modules_with_tiers(base: Path, daemon: str) -> Iterator[str]:
    folder = base.joinpath(*daemon.split("."))
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder).with_suffix("").parts
        if path.stem != "__init__" and len(parts) > 1 and parts[0] not in WITHOUT_TIERS[daemon]:
            yield ".".join((PREFIX, daemon, *parts))


def unchecked_packages(tree: Tree) -> list[str]:
    """Name every package that is in no table, and every package without an importable portion."""
    registered = {package for row in LAYERS for package in row} | set(STANDING_ALONE)
    unknown = [
        f"package {package!r} is in no layer of tools/layout.py"
        for package in tree.packages
        if package not in registered
    ]
    hollow = [
        f"package {package!r} has modules but no __init__.py, and cannot be checked"
        for package, portions in tree.packages.items()
        if not portions
    ]
    return unknown + hollow


def _section(name: str, **options: str | Sequence[str]) -> str:
    lines = [f"[importlinter:contract:{name}]", f"name = {name}"]
    for key, value in options.items():
        lines.append(f"{key} = {value}" if isinstance(value, str) else "\n    ".join([f"{key} =", *value]))
    return "\n".join(lines) + "\n"


def _stack(tree: Tree) -> str:
    rows = [" | ".join(tree.portions(row)) for row in LAYERS]
    return _section("stack", type="layers", layers=[row for row in rows if row])


def _forbidden(
    name: str,
    sources: Sequence[str],
    targets: Sequence[str],
    *,
    direct_only: bool,
    ignore: Sequence[str] = (),
) -> str:
    if not sources or not targets:
        return ""
    options: dict[str, str | Sequence[str]] = {
        "type": "forbidden",
        "source_modules": sources,
        "forbidden_modules": targets,
    }
    if direct_only:
        options["allow_indirect_imports"] = "True"
    if ignore:
        options |= {"ignore_imports": ignore, "unmatched_ignore_imports_alerting": "none"}
    return _section(name, **options)


def exceptions(text: str) -> list[str]:
    """Parse the list of allowed violations: `importer -> imported  # reason`, without the common prefix.

    Raises:
        ValueError: a line has no reason.
    """
    lines = []
    for line in text.splitlines():
        entry, _, reason = line.partition("#")
        if not entry.strip():
            continue
        importer, _, imported = entry.partition("->")
        if not reason.strip() or not imported.strip():
            raise ValueError(f"an exception needs an importer, an imported module and a reason: {line!r}")
        lines.append(f"{PREFIX}.{importer.strip()} -> {PREFIX}.{imported.strip()}")
    return lines


def _features(tree: Tree, allowed: Sequence[str]) -> Iterator[str]:
    for daemon in FEATURES:
        if not any(portion == f"{PREFIX}.{daemon}" for portion in tree.portions(tree.packages)):
            continue
        options: dict[str, str | Sequence[str]] = {"type": "features", "daemon": daemon}
        own = [line for line in allowed if line.startswith(f"{PREFIX}.{daemon}.")]
        if own:
            options["exceptions"] = own
        yield _section(f"features-of-{daemon.replace('.', '-')}", **options)


def configuration(tree: Tree, allowed: Sequence[str] = ()) -> str:
    """Return the whole import-linter configuration for the packages that exist."""
    everything = [portion for portions in tree.packages.values() for portion in portions]
    runner = tree.portions(STANDING_ALONE)
    others = [portion for portion in everything if portion not in runner]
    head = ["[importlinter]", "root_packages ="]
    head += [f"    {portion}" for portion in everything]
    head += ["include_external_packages = True", "exclude_type_checking_imports = False"]
    head += [
        "contract_types =",
        "    only_stdlib: tools.stdlib_contract.OnlyStdlibContract",
        "    features: tools.feature_contract.FeaturesContract",
        "",
    ]
    sections = [
        _stack(tree),
        _forbidden("pure", tree.portions(("common", "core")), IO_MODULES, direct_only=False),
        *_features(tree, allowed),
        *(
            _forbidden(name, _modules_but(tree, patterns), libraries, direct_only=True)
            for name, patterns, libraries in LIBRARIES
        ),
        _forbidden(
            "cli-starts-daemons-by-their-main",
            tree.portions(("cli",)),
            tree.portions(DAEMONS),
            direct_only=True,
            ignore=[f"{PREFIX}.cli.** -> {daemon}.main" for daemon in tree.portions(DAEMONS)],
        ),
        *(
            _forbidden(name, tree.portions(sources), tree.portions(targets), direct_only=True)
            for name, sources, targets in NEIGHBOURS
        ),
        _forbidden("nobody-imports-the-runner", others, runner, direct_only=True),
        _forbidden("runner-imports-nothing-of-ours", runner, others, direct_only=True),
        _stdlib_only([*runner, *(f"{PREFIX}.{name}" for name in STDLIB_ONLY if _exists(tree, name))]),
    ]
    return "\n".join([*head, *(section for section in sections if section)])


def _stdlib_only(modules: Sequence[str]) -> str:
    """Return the contract of programs that run inside workloads, with any Python found there."""
    return _section("runner-is-standard-library-only", type="only_stdlib", modules=modules) if modules else ""


def _exists(tree: Tree, name: str) -> bool:
    package, _, child = name.partition(".")
    return child in tree.children.get(package, ())


def _modules_but(tree: Tree, patterns: Sequence[str]) -> list[str]:
    """List the modules of the features with tiers whose file name matches no pattern."""
    return [
        module
        for module in tree.feature_modules
        if not any(fnmatchcase(module.rpartition(".")[2], pattern) for pattern in patterns)
    ]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Check the import contracts of the packages.")
    parser.add_argument("--src", type=Path, default=Path(__file__).resolve().parent.parent / "src")
    parser.add_argument("--print", action="store_true", dest="show", help="print the configuration, check nothing")
    args = parser.parse_args(argv)
    tree = survey(args.src)
    allowed = args.src.parent / "tools" / "layout.allow"
    text = configuration(tree, exceptions(allowed.read_text(encoding="utf-8")) if allowed.exists() else ())
    if args.show:
        sys.stdout.write(text)
        return 0
    errors = unchecked_packages(tree)
    for line in errors:
        sys.stderr.write(f"contracts: {line}\n")
    if errors:
        return 1
    repository = Path(__file__).resolve().parent.parent
    written = args.src.parent / ".cache" / "importlinter.ini"
    written.parent.mkdir(exist_ok=True)
    written.write_text(text, encoding="utf-8")
    path = os.pathsep.join([str(args.src), str(repository), os.environ.get("PYTHONPATH", "")])
    # The linter's cache is keyed on modification times and stays red after an older file is restored.
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command as run; run()"]
    options = ["--config", str(written), "--no-cache"]
    return subprocess.run([*command, *options], env={**os.environ, "PYTHONPATH": path}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
