"""Every import contract holds on a clean tree and breaks on a violation that is planted in it."""

import subprocess
import sys
from pathlib import Path

import pytest
from tools.contracts import configuration, exceptions, survey

REPOSITORY = Path(__file__).resolve().parents[3]

# A package of every row, and daemons with features and tiers: path below src/ai/backend -> text.
CLEAN = {
    "common/__init__.py": "",
    "common/slots.py": "import decimal\n",
    "core/__init__.py": "",
    "core/planner.py": "import ai.backend.common.slots\n",
    "plugin/__init__.py": "",
    "plugin/accelerator.py": "from ai.backend.core import planner\n",
    "node/__init__.py": "",
    "node/mounts.py": "import os\nfrom ai.backend.plugin import accelerator\n",
    "node/relay/__init__.py": "import json\n",
    "infra/__init__.py": "",
    "infra/bus.py": "import asyncio\nfrom ai.backend.plugin import accelerator\n",
    "client/__init__.py": "",
    "client/session.py": "from ai.backend.common import slots\n",
    "accelerator/mock/__init__.py": "from ai.backend.plugin import accelerator\n",
    "runtime/process/__init__.py": "from ai.backend.node import mounts\n",
    "runner/__init__.py": "",
    "runner/framing.py": "import json\n",
    "runner/runner_main.py": "import framing\n",
    "manager/__init__.py": "",
    "manager/main.py": "from ai.backend.manager.composition import services\n",
    "manager/composition/__init__.py": "",
    "manager/composition/services.py": (
        "from ai.backend.manager.sessions import api, service\nfrom ai.backend.manager.folders import sql as folders\n"
    ),
    "manager/db/__init__.py": "",
    "manager/db/engine.py": "import sqlalchemy\n",
    "manager/sessions/__init__.py": "",
    "manager/sessions/api.py": "from ai.backend.manager.sessions import facade, schemas\n",
    "manager/sessions/facade.py": "from ai.backend.manager.sessions import service\n",
    "manager/sessions/graphql.py": "import ariadne\nfrom ai.backend.manager.sessions import service\n",
    "manager/sessions/model.py": "from ai.backend.common import slots\n",
    "manager/sessions/schemas.py": "from ai.backend.manager.sessions import model\n",
    "manager/sessions/service.py": (
        "from ai.backend.manager.sessions import model, store\nfrom ai.backend.manager.folders import service\n"
    ),
    "manager/sessions/sql.py": (
        "import sqlalchemy\nfrom ai.backend.manager.db import engine\nfrom ai.backend.manager.folders import tables\n"
    ),
    "manager/sessions/store.py": "from ai.backend.manager.sessions import model\n",
    "manager/agents/__init__.py": "",
    "manager/agents/model.py": "",
    "manager/folders/__init__.py": "",
    "manager/folders/service.py": "",
    "manager/folders/sql.py": "from ai.backend.manager.folders import tables\n",
    "manager/folders/tables.py": "import sqlalchemy\n",
    "agent/__init__.py": "",
    "agent/main.py": "from ai.backend.agent.lifecycle import supervisor\n",
    "agent/lifecycle/__init__.py": "",
    "agent/lifecycle/supervisor.py": "from ai.backend.agent.kernels import model\nfrom ai.backend.infra import bus\n",
    "agent/kernels/__init__.py": "",
    "agent/kernels/model.py": "",
    "storage/__init__.py": "",
    "storage/main.py": "from ai.backend.storage.folders import api\n",
    "storage/folders/__init__.py": "",
    "storage/folders/api.py": "from ai.backend.storage.folders import service\n",
    "storage/folders/service.py": "from ai.backend.storage.volumes import registry\n",
    "storage/volumes/__init__.py": "",
    "storage/volumes/registry.py": "",
    "appproxy/coordinator/__init__.py": "",
    "appproxy/coordinator/main.py": "from ai.backend.appproxy.coordinator.circuits import service\n",
    "appproxy/coordinator/circuits/__init__.py": "",
    "appproxy/coordinator/circuits/service.py": "from ai.backend.appproxy.coordinator.workers import model\n",
    "appproxy/coordinator/workers/__init__.py": "",
    "appproxy/coordinator/workers/model.py": "",
    "appproxy/worker/__init__.py": "",
    "appproxy/worker/main.py": "from ai.backend.appproxy.worker.link import link\n",
    "appproxy/worker/access/__init__.py": "",
    "appproxy/worker/access/gate.py": "",
    "appproxy/worker/link/__init__.py": "",
    "appproxy/worker/link/link.py": "from ai.backend.appproxy.worker.access import gate\n",
    "web/__init__.py": "",
    "web/main.py": "from ai.backend.web.relay import api\n",
    "web/login/__init__.py": "",
    "web/login/service.py": "",
    "web/relay/__init__.py": "",
    "web/relay/api.py": "from ai.backend.web.login import service\n",
    "simulator/__init__.py": "from ai.backend.core import planner\nfrom ai.backend.manager import main\n",
    "standalone/__init__.py": "from ai.backend.manager import main\nfrom ai.backend.agent import main as agent\n",
    "cli/__init__.py": "from ai.backend.client import session\n",
    "cli/up.py": "from ai.backend.manager import main\n",
}

# contract, path of the planted module, its text.
PLANTS = [
    ("stack", "core/bad.py", "import ai.backend.infra.bus\n"),
    ("stack", "common/bad.py", "import ai.backend.core.planner\n"),
    ("stack", "plugin/bad.py", "import ai.backend.node.mounts\n"),
    ("stack", "node/bad.py", "import ai.backend.infra.bus\n"),
    ("stack", "manager/sessions/bad.py", "import ai.backend.agent.main\n"),
    ("stack", "accelerator/mock/bad.py", "import ai.backend.runtime.process\n"),
    ("stack", "infra/bad.py", "import ai.backend.manager.main\n"),
    ("stack", "client/bad.py", "import ai.backend.cli\n"),
    ("stack", "appproxy/worker/bad.py", "import ai.backend.appproxy.coordinator.main\n"),
    ("stack", "simulator/bad.py", "import ai.backend.standalone\n"),
    ("pure", "core/bad.py", "import asyncio\n"),
    ("pure", "core/bad.py", "from concurrent.futures import Future\n"),
    ("pure", "common/bad.py", "import logging\n"),
    ("pure", "common/bad.py", "def later() -> None:\n    import socket\n"),
    # A lower feature imports an upper one.
    ("features-of-manager", "manager/folders/bad.py", "import ai.backend.manager.sessions.model\n"),
    ("features-of-agent", "agent/kernels/bad.py", "import ai.backend.agent.lifecycle.supervisor\n"),
    ("features-of-storage", "storage/volumes/bad.py", "import ai.backend.storage.folders.service\n"),
    (
        "features-of-appproxy-coordinator",
        "appproxy/coordinator/workers/bad.py",
        "import ai.backend.appproxy.coordinator.circuits.service\n",
    ),
    ("features-of-appproxy-worker", "appproxy/worker/access/bad.py", "import ai.backend.appproxy.worker.link.link\n"),
    ("features-of-web", "web/login/bad.py", "import ai.backend.web.relay.api\n"),
    ("only-adapters-import-sql", "appproxy/coordinator/circuits/bad.py", "import sqlalchemy\n"),
    # Features of one row import each other.
    ("features-of-manager", "manager/folders/bad.py", "import ai.backend.manager.agents.model\n"),
    ("features-of-storage", "storage/folders/bad.py", "import ai.backend.storage.artifacts.bad\n"),
    # A file imports a tier above its own, in its feature or in a lower one.
    ("features-of-manager", "manager/sessions/bad.py", "import ai.backend.manager.sessions.sql\n"),
    ("features-of-manager", "manager/sessions/bad.py", "import ai.backend.manager.sessions.api\n"),
    ("features-of-manager", "manager/sessions/bad.py", "import ai.backend.manager.folders.tables\n"),
    ("features-of-manager", "manager/sessions/bad_gateway.py", "import ai.backend.manager.sessions.service\n"),
    ("features-of-manager", "manager/sessions/sql_bad.py", "import ai.backend.manager.folders.sql\n"),
    ("features-of-manager", "manager/sessions/bad_api.py", "import ai.backend.manager.sessions.sql\n"),
    ("features-of-manager", "manager/folders/model.py", "import ai.backend.manager.folders.service\n"),
    ("features-of-storage", "storage/folders/schemas.py", "import ai.backend.storage.folders.service\n"),
    # A module or folder that is in no row.
    ("features-of-manager", "manager/utils.py", ""),
    ("features-of-agent", "agent/helpers/__init__.py", ""),
    ("only-adapters-import-sql", "manager/sessions/bad.py", "import sqlalchemy.orm\n"),
    ("only-adapters-import-sql", "agent/kernels/bad.py", "import alembic\n"),
    ("only-wire-imports-graphql", "manager/sessions/bad.py", "import ariadne\n"),
    ("only-wire-imports-graphql", "manager/sessions/bad_api.py", "from graphql import GraphQLError\n"),
    ("cli-starts-daemons-by-their-main", "cli/bad.py", "import ai.backend.manager.sessions.service\n"),
    ("accelerators-see-only-the-spi", "accelerator/mock/bad.py", "import ai.backend.core.planner\n"),
    ("accelerators-see-only-the-spi", "accelerator/mock/bad.py", "import ai.backend.node.mounts\n"),
    ("runtimes-and-volumes-see-the-spi-and-the-node", "runtime/process/bad.py", "import ai.backend.core.planner\n"),
    ("client-sees-only-common", "client/bad.py", "import ai.backend.plugin.accelerator\n"),
    ("simulator-runs-managers-and-agents-alone", "simulator/bad.py", "import ai.backend.runtime.process\n"),
    ("nobody-imports-the-runner", "agent/bad.py", "import ai.backend.runner.framing\n"),
    ("runner-imports-nothing-of-ours", "runner/bad.py", "import ai.backend.common.slots\n"),
    ("runner-is-standard-library-only", "runner/bad.py", "import msgspec\n"),
    ("runner-is-standard-library-only", "node/relay/bad.py", "import msgspec\n"),
]
# Modules that a plant imports and the clean tree lacks.
WITH_PLANTS = {"storage/artifacts/__init__.py": "", "storage/artifacts/bad.py": ""}


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
    done = check(build(tmp_path, {**CLEAN, **WITH_PLANTS, path: text}))
    assert done.returncode != 0
    assert contract in verdicts(done.stdout, "BROKEN"), done.stdout + done.stderr


def write_exceptions(root: Path, text: str) -> None:
    (root / "tools").mkdir()
    (root / "tools" / "layout.allow").write_text(text)


def test_a_listed_exception_permits_one_import(tmp_path: Path) -> None:
    planted = {"manager/folders/bad.py": "import ai.backend.manager.sessions.model\n"}
    write_exceptions(tmp_path, "manager.folders.bad -> manager.sessions.model  # until the values are handed in\n")
    done = check(build(tmp_path, {**CLEAN, **planted}))
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_stale_exception_breaks_the_contract(tmp_path: Path) -> None:
    write_exceptions(tmp_path, "manager.sessions.service -> manager.folders.service  # obeys the rules\n")
    done = check(build(tmp_path, CLEAN))
    assert done.returncode != 0
    assert "features-of-manager" in verdicts(done.stdout, "BROKEN")
    assert "this exception is no longer needed" in done.stdout


def test_an_exception_needs_a_reason() -> None:
    with pytest.raises(ValueError, match="a reason"):
        exceptions("manager.folders.bad -> manager.sessions.model\n")


@pytest.mark.parametrize(
    ("path", "message"),
    [("misc/__init__.py", "is in no layer"), ("kubeacc/main.py", "no __init__.py")],
)
def test_an_unknown_package_fails(tmp_path: Path, path: str, message: str) -> None:
    done = check(build(tmp_path, {**CLEAN, path: ""}))
    assert done.returncode != 0
    assert message in done.stderr


def test_packages_that_do_not_exist_yet_are_tolerated(tmp_path: Path) -> None:
    tree = survey(build(tmp_path, {"common/__init__.py": ""}))
    assert "ai.backend.manager" not in configuration(tree)
    assert check(tmp_path / "src").returncode == 0


def test_every_package_of_this_tree_is_covered() -> None:
    tree = survey(REPOSITORY / "src")
    text = configuration(tree)
    assert [portion for portions in tree.packages.values() for portion in portions if portion not in text] == []
