"""The core's own ruff.toml refuses clocks, dice, identities, logs and caches; no module of it keeps state."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

CORE = Path(__file__).resolve().parents[3] / "src" / "ai" / "backend" / "core"


def lint(source: str) -> list[str]:
    """Lint a text as if it were a module of the core; return the lines of the report."""
    command = [sys.executable, "-m", "ruff", "check", "--no-cache", "--output-format", "concise"]
    command += ["--select", "TID251", "--stdin-filename", str(CORE / "planted.py"), "-"]
    done = subprocess.run(command, cwd=CORE, input=source, capture_output=True, text=True, timeout=30, check=False)
    return [line for line in done.stdout.splitlines() if "TID251" in line]


@pytest.mark.parametrize(
    "source",
    [
        "import time\n",
        "from time import monotonic\n",
        "import random\n",
        "from random import Random\n",
        "import secrets\n",
        "import logging\n",
        "import os\n",
        "import gc\n",
        "from functools import lru_cache\n",
        "import functools\n\n\n@functools.cache\ndef f() -> int:\n    return 1\n",
        "from uuid import uuid4\n",
        "import uuid\n\nx = uuid.uuid4()\n",
        "import uuid\n\nx = uuid.uuid1()\n",
        "import datetime\n\nx = datetime.datetime.now()\n",
        "from datetime import datetime\n\nx = datetime.now()\n",
        "from datetime import datetime\n\nx = datetime.utcnow()\n",
        "from datetime import date\n\nx = date.today()\n",
    ],
)
def test_a_planted_import_is_refused(source: str) -> None:
    assert lint(source)


@pytest.mark.parametrize(
    "source",
    [
        "import uuid\n\nx = uuid.UUID(int=0)\n",
        "from datetime import timedelta\n",
        "from functools import cached_property\n",
    ],
)
def test_the_pure_part_of_a_module_is_allowed(source: str) -> None:
    assert lint(source) == []


_CONTAINERS = {"dict", "list", "set", "OrderedDict", "defaultdict", "deque", "Counter", "WeakValueDictionary"}


def _is_empty_container(value: ast.expr | None) -> bool:
    match value:
        case ast.Dict(keys=[]) | ast.List(elts=[]):
            return True
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), args=[]):
            return name in _CONTAINERS
        case ast.Call(func=ast.Name(id="defaultdict" | "deque") | ast.Attribute(attr="defaultdict" | "deque")):
            return True
    return False


def module_state(source: str) -> list[str]:
    """Names the module-level variables that can only be meant to change: empty containers, and globals."""
    tree = ast.parse(source)
    names = [name for node in ast.walk(tree) if isinstance(node, ast.Global) for name in node.names]
    for statement in tree.body:
        if isinstance(statement, ast.Assign | ast.AnnAssign) and _is_empty_container(statement.value):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            names += [ast.unparse(target) for target in targets]
    return names


@pytest.mark.parametrize(
    "source",
    [
        "_CACHE: dict[int, str] = {}\n",
        "_SEEN = set()\n",
        "import collections\n\n_LAST = collections.OrderedDict()\n",
        "_LAST = None\n\n\ndef f():\n    global _LAST\n    _LAST = 1\n",
    ],
)
def test_planted_state_of_a_module_is_found(source: str) -> None:
    assert module_state(source)


def test_no_module_of_the_core_keeps_state() -> None:
    modules = sorted(CORE.rglob("*.py"))
    assert len(modules) > 30
    assert {str(m.relative_to(CORE)): names for m in modules if (names := module_state(m.read_text()))} == {}
