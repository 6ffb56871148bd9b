"""Every import contract holds on a clean tree and breaks on a violation that is planted in it."""

import subprocess
import sys
from pathlib import Path

import pytest
from tools.contracts import configuration, survey

REPOSITORY = Path(__file__).resolve().parents[3]

# A house with every kind of room. Written once per test: path below src/ai/backend -> text.
CLEAN = {
    "common/__init__.py": "",
    "common/slots.py": "import decimal\n",
    "core/__init__.py": "",
    "core/planner.py": "import ai.backend.common.slots\n",
    "plugin/__init__.py": "",
    "plugin/accelerator.py": "from ai.backend.core import planner\n",
    "plugin/relay/__init__.py": "import json\n",
    "infra/__init__.py": "",
    "infra/bus.py": "import asyncio\nfrom ai.backend.plugin import accelerator\n",
    "client/__init__.py": "",
    "client/session.py": "from ai.backend.common import slots\n",
    "accelerator/mock/__init__.py": "from ai.backend.plugin import accelerator\n",
    "runtime/process/__init__.py": "from ai.backend.plugin import accelerator\n",
    "kernel/__init__.py": "",
    "kernel/framing.py": "import json\n",
    "kernel/runner_main.py": "import framing\n",
    "manager/__init__.py": "",
    "manager/main.py": "from ai.backend.manager import api\n",
    "manager/api/__init__.py": "from ai.backend.manager import ports\n",
    "manager/ports/__init__.py": "",
    "manager/services/__init__.py": "",
    "manager/adapters/__init__.py": "import sqlalchemy\n",
    "agent/__init__.py": "",
    "agent/main.py": "",
    "simulator/__init__.py": "from ai.backend.core import planner\nfrom ai.backend.manager import main\n",
    "standalone/__init__.py": "from ai.backend.manager import main\nfrom ai.backend.agent import main as agent\n",
    "cli/__init__.py": "from ai.backend.client import session\n",
    "cli/up.py": "from ai.backend.manager.main import api\n",
}

PLANTS = [
    ("stack", "core/bad.py", "import ai.backend.infra.bus\n"),
    ("stack", "common/bad.py", "import ai.backend.core.planner\n"),
    ("stack", "plugin/bad.py", "import ai.backend.infra.bus\n"),
    ("stack", "manager/services/bad.py", "import ai.backend.agent.main\n"),
    ("stack", "accelerator/mock/bad.py", "import ai.backend.runtime.process\n"),
    ("stack", "infra/bad.py", "import ai.backend.manager.main\n"),
    ("stack", "client/bad.py", "import ai.backend.cli\n"),
    ("pure", "core/bad.py", "import asyncio\n"),
    ("pure", "core/bad.py", "from concurrent.futures import Future\n"),
    ("pure", "common/bad.py", "import logging\n"),
    ("pure", "common/bad.py", "def later() -> None:\n    import socket\n"),
    ("inside", "manager/services/bad.py", "import ai.backend.manager.adapters\n"),
    ("inside", "manager/api/bad.py", "import ai.backend.manager.adapters\n"),
    ("inside", "manager/utils.py", ""),
    ("inside", "agent/helpers/__init__.py", ""),
    ("no-sql-above-the-adapters", "manager/services/bad.py", "import sqlalchemy.orm\n"),
    ("cli-starts-daemons-by-their-main", "cli/bad.py", "import ai.backend.manager.services\n"),
    ("plugins-see-only-the-spi", "accelerator/mock/bad.py", "import ai.backend.core.planner\n"),
    ("client-sees-only-common", "client/bad.py", "import ai.backend.plugin.accelerator\n"),
    ("simulator-runs-managers-and-agents-alone", "simulator/bad.py", "import ai.backend.runtime.process\n"),
    ("nobody-imports-the-runner", "agent/bad.py", "import ai.backend.runner.framing\n"),
    ("runner-imports-nothing-of-ours", "kernel/bad.py", "import ai.backend.common.slots\n"),
    ("runner-is-standard-library-only", "kernel/bad.py", "import msgspec\n"),
    ("runner-is-standard-library-only", "plugin/relay/bad.py", "import msgspec\n"),
]


def build(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / "src" / "ai" / "backend" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root / "src"


def check(src: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tools.contracts", "--src", str(src)]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=50, check=False)


def verdicts(output: str, verdict: str) -> set[str]:
    """Return the contracts with this verdict; a line reads `name KEPT` or `name BROKEN (1 ignored import)`."""
    return {words[0] for words in map(str.split, output.splitlines()) if words[1:2] == [verdict]}


def test_a_clean_tree_keeps_every_contract(tmp_path: Path) -> None:
    src = build(tmp_path, CLEAN)
    done = check(src)
    assert done.returncode == 0, done.stdout + done.stderr
    planted = {name for name, _, _ in PLANTS}
    assert verdicts(done.stdout, "KEPT") == planted, (
        "every contract has a planted violation, and every plant a contract"
    )


@pytest.mark.parametrize(("contract", "path", "text"), PLANTS)
def test_a_planted_violation_breaks_its_contract(tmp_path: Path, contract: str, path: str, text: str) -> None:
    assert path not in CLEAN
    done = check(build(tmp_path, {**CLEAN, path: text}))
    assert done.returncode != 0
    assert contract in verdicts(done.stdout, "BROKEN"), done.stdout + done.stderr


@pytest.mark.parametrize(
    ("path", "message"),
    [("misc/__init__.py", "is in no layer"), ("storage/main.py", "no __init__.py")],
)
def test_a_room_that_nobody_knows_fails(tmp_path: Path, path: str, message: str) -> None:
    done = check(build(tmp_path, {**CLEAN, path: ""}))
    assert done.returncode != 0
    assert message in done.stderr


def test_rooms_that_do_not_exist_yet_are_tolerated(tmp_path: Path) -> None:
    tree = survey(build(tmp_path, {"common/__init__.py": ""}))
    assert "ai.backend.manager" not in configuration(tree)
    assert check(tmp_path / "src").returncode == 0


def test_every_room_of_this_tree_is_covered() -> None:
    tree = survey(REPOSITORY / "src")
    text = configuration(tree)
    assert [portion for portions in tree.rooms.values() for portion in portions if portion not in text] == []
