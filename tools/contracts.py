"""The import contracts of the rooms, checked by import-linter (`./check contracts`).

The tables below are the truth about who may import whom. The configuration of import-linter is
written from them and from the rooms that exist, so a room joins its contract in the moment its first
module appears, and a room that is in no table fails the check. The test
`tests/unit/tooling/test_contracts.py` plants a violation of every contract.

Usage: python -m tools.contracts [--src DIR] [--print]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

PREFIX = "ai.backend"

# Upper rows may import lower rows. Rooms of one row do not import each other.
LAYERS: tuple[tuple[str, ...], ...] = (
    ("cli",),
    ("standalone", "simulator"),
    ("manager", "agent", "storage", "appproxy", "web", "kubeacc"),
    ("infra", "client", "accelerator", "runtime", "volume"),
    ("plugin",),
    ("core",),
    ("common",),
)
DAEMONS = LAYERS[2]
# The runner inside a workload: in no layer, because nothing may import it and it imports nothing of ours.
STANDING_ALONE = ("kernel",)

# The same words inside every daemon, upper may import lower.
INSIDE: tuple[str, ...] = (
    "server | watcher",
    "main",
    "commands",
    "composition",
    "api | adapters",
    "services",
    "ports",
    "model",
    "config | errors",
)

# fmt: off
IO_MODULES = (
    "aiodocker", "aiohttp", "aiosqlite", "alembic", "ariadne", "asyncio", "asyncpg", "click",
    "concurrent", "ctypes", "fcntl", "http", "kubernetes_asyncio", "logging", "mmap",
    "multiprocessing", "os", "pathlib", "pty", "redis", "resource", "rich", "select", "selectors",
    "shutil", "signal", "socket", "socketserver", "sqlalchemy", "sqlite3", "ssl", "subprocess",
    "tempfile", "termios", "threading", "urllib3", "zmq",
)
# fmt: on

# Who may not import whom although the layers would allow it. Only direct imports count: a re-export is fine.
NEIGHBOURS: tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...] = (
    ("plugins-see-only-the-spi", ("accelerator", "runtime", "volume"), ("core", "infra", "client")),
    ("client-sees-only-common", ("client",), ("core", "plugin", "infra")),
    (
        "simulator-runs-the-core-alone",
        ("simulator",),
        (*DAEMONS, "client", "runtime", "accelerator", "volume"),
    ),
)


@dataclass(frozen=True, slots=True)
class Tree:
    """The rooms under a source directory: their names, and the importable portions each consists of."""

    rooms: dict[str, tuple[str, ...]] = field(default_factory=dict)
    children: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def portions(self, rooms: Iterable[str]) -> list[str]:
        return [portion for room in rooms for portion in self.rooms.get(room, ())]


def survey(src: Path) -> Tree:
    """Find what exists. A room with `__init__.py` is one portion, one without is the portions below it."""
    base = src.joinpath(*PREFIX.split("."))
    rooms: dict[str, tuple[str, ...]] = {}
    children: dict[str, tuple[str, ...]] = {}
    for room in sorted(p for p in base.iterdir() if p.is_dir() and any(p.rglob("*.py"))):
        if (room / "__init__.py").exists():
            rooms[room.name] = (f"{PREFIX}.{room.name}",)
        else:
            subrooms = sorted(p.name for p in room.iterdir() if (p / "__init__.py").exists())
            rooms[room.name] = tuple(f"{PREFIX}.{room.name}.{sub}" for sub in subrooms)
        names = {p.stem for p in room.iterdir() if p.suffix == ".py" or (p.is_dir() and any(p.rglob("*.py")))}
        children[room.name] = tuple(sorted(names - {"__init__", "__pycache__"}))
    return Tree(rooms, children)


def strangers(tree: Tree) -> list[str]:
    """Name every room that the tables do not know, and every room without a single importable portion."""
    known = {room for row in LAYERS for room in row} | set(STANDING_ALONE)
    unknown = [f"room {room!r} is in no layer of tools/contracts.py" for room in tree.rooms if room not in known]
    hollow = [
        f"room {room!r} has modules but no __init__.py: nobody can check it" for room, p in tree.rooms.items() if not p
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


def _inside(tree: Tree) -> str:
    containers = [portion for daemon in DAEMONS for portion in tree.rooms.get(daemon, ())]
    if not containers:
        return ""
    rows = [" | ".join(f"({word})" for word in row.split(" | ")) for row in INSIDE]
    return _section(
        "inside",
        type="layers",
        containers=containers,
        layers=rows,
        exhaustive="True",
        exhaustive_ignores=["__main__"],
    )


def configuration(tree: Tree) -> str:
    """Return the whole import-linter configuration for the rooms that exist."""
    everything = [portion for portions in tree.rooms.values() for portion in portions]
    kernel = tree.portions(STANDING_ALONE)
    others = [portion for portion in everything if portion not in kernel]
    head = ["[importlinter]", "root_packages ="]
    head += [f"    {portion}" for portion in everything]
    head += ["include_external_packages = True", "exclude_type_checking_imports = False"]
    head += ["contract_types =", "    only_stdlib: tools.stdlib_contract.OnlyStdlibContract", ""]
    sections = [
        _stack(tree),
        _forbidden("pure", tree.portions(("common", "core")), IO_MODULES, direct_only=False),
        _inside(tree),
        _forbidden(
            "no-sql-above-the-adapters",
            _above_sql(tree),
            ("sqlalchemy", "aiosqlite", "alembic"),
            direct_only=True,
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
        _forbidden("nobody-imports-the-runner", others, kernel, direct_only=True),
        _forbidden("runner-imports-nothing-of-ours", kernel, others, direct_only=True),
        _stdlib_only([*kernel, *(f"{PREFIX}.plugin.{name}" for name in ("relay",) if _has(tree, "plugin", name))]),
    ]
    return "\n".join([*head, *(section for section in sections if section)])


def _stdlib_only(modules: Sequence[str]) -> str:
    """What is started inside a workload, by whatever Python is there."""
    return _section("runner-is-standard-library-only", type="only_stdlib", modules=modules) if modules else ""


def _has(tree: Tree, room: str, child: str) -> bool:
    return child in tree.children.get(room, ())


def _above_sql(tree: Tree) -> list[str]:
    layers = ("api", "services", "ports", "model", "errors")
    return [
        f"{portion}.{layer}"
        for daemon in DAEMONS
        for portion in tree.rooms.get(daemon, ())
        for layer in layers
        if layer in tree.children[daemon]
    ]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Check the import contracts of the rooms.")
    parser.add_argument("--src", type=Path, default=Path(__file__).resolve().parent.parent / "src")
    parser.add_argument("--print", action="store_true", dest="show", help="print the configuration, check nothing")
    args = parser.parse_args(argv)
    tree = survey(args.src)
    text = configuration(tree)
    if args.show:
        sys.stdout.write(text)
        return 0
    found = strangers(tree)
    for line in found:
        sys.stderr.write(f"contracts: {line}\n")
    if found:
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
