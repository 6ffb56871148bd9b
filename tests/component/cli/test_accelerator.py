"""`backend.ai accelerator`, as it is typed: no cluster, and plugins that do what they like."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ai.backend.pluginhost.check_process import ALL_CHECKS
from tests.support import forked
from tests.support.neighbours import REFERENCE

NODE = """
slot_name = "gpu"
topology = "pcie-tree"
[[devices]]
mother_uuid = "g"
count = 4
model_name = "Mock GPU"
memory_size = "40g"
numa_node = [0, 1]
[[devices]]
mother_uuid = "sick"
model_name = "Mock GPU"
memory_size = "40g"
numa_node = 1
is_healthy = false
[[links]]
a = "g-0"
b = "g-1"
kind = "direct"
bandwidth = 300.0
"""
ROOT = Path(__file__).resolve().parents[3]


def cli(*arguments: str, cwd: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    env = {k: v for k, v in os.environ.items() if not k.startswith("BACKEND")}
    return forked.run(
        [sys.executable, "-m", "ai.backend.cli.main", "accelerator", *arguments],
        env={**env, "XDG_CONFIG_HOME": str(cwd / "config"), "PYTHONPATH": str(ROOT), "COLUMNS": "400", **environ},
        cwd=cwd,
        timeout=55,
    )


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """A folder with an agent.toml whose mock pretends a node."""
    (tmp_path / "mock.toml").write_text(NODE)
    (tmp_path / "agent.toml").write_text(
        f'[agent]\nallow-compute-plugins = ["ai.backend.accelerator.mock", "{REFERENCE}", "no.such.package"]\n'
        f'[plugins.mock]\nconfig-path = "{tmp_path}/mock.toml"\n[plugins.bad]\nfaults = {{ init = "raise" }}\n'
    )
    return tmp_path


# ---- check


def checked(plugin: str, cwd: Path, *options: str) -> tuple[int, dict[str, dict[str, str]], Any]:
    done = cli("check", plugin, "--output", "json", *options, cwd=cwd)
    document = json.loads(done.stdout)
    return done.returncode, {check["check"]: check for check in document["checks"]}, document


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((), "name either a PLUGIN or an executable by --program"),
        (("cpu", "--program", "x"), "name either a PLUGIN or an executable by --program"),
        (("--program", "./nowhere"), "there is no file nowhere"),
    ],
)
def test_check_wants_a_plugin_or_a_program(tmp_path: Path, arguments: tuple[str, ...], told: str) -> None:
    done = cli("check", *arguments, cwd=tmp_path)
    assert done.returncode != 0
    assert told in done.stderr


def test_a_good_plugin_passes_and_every_check_is_told(tmp_path: Path) -> None:
    code, checks, document = checked("cpu", tmp_path)
    assert code == 0
    assert list(checks) == [check.name for check in ALL_CHECKS]
    assert {check["result"] for check in checks.values()} == {"passed", "skipped"}
    assert all(c["reason"].startswith("capability: ") for c in checks.values() if c["result"] == "skipped")
    assert (document["key"], document["passed"]) == ("cpu", True)


def test_a_plugin_of_version_1_is_checked_as_what_it_becomes(tmp_path: Path) -> None:
    done = cli("check", "acme", "--output", "json", cwd=tmp_path, PYTHONPATH=str(ROOT / "tests/data/legacy_site"))
    assert done.returncode == 0, done.stdout
    document = json.loads(done.stdout)
    assert (document["key"], document["passed"]) == ("acme", True)


def test_people_see_a_table_and_a_sum(tmp_path: Path) -> None:
    done = cli("check", "ai.backend.accelerator.mock", "--settings", "default-devices=3", cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    assert "device ids are unique and survive a restart" in done.stdout
    assert "this would alter devices, which is not allowed here" in done.stdout
    assert "unverified on hardware" in done.stdout.splitlines()[-1]
    altered = cli("check", "ai.backend.accelerator.mock", "--alter-devices", "--image", "/a.bit", cwd=tmp_path)
    assert altered.returncode == 0, altered.stdout
    assert "this would alter devices" not in altered.stdout


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("import no_such_module", "No module named 'no_such_module'"),
        ("def (", "SyntaxError"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("import os; os._exit(3)", "its process ended: it exited with status 3"),
        ("import ctypes; ctypes.string_at(0)", "its process ended: it was killed by SIGSEGV"),
        ("import os; print('no licence', flush=True); os._exit(4)", "it exited with status 4 (no licence)"),
        ("import time; time.sleep(60)", "it took longer than 2 s, or blocked its process"),
        ("", "shows 0 compute plugins"),
    ],
)
def test_a_plugin_that_cannot_be_imported_is_a_failed_check(tmp_path: Path, code: str, reason: str) -> None:
    (tmp_path / "mine.py").write_text(code)
    status, checks, document = checked("./mine.py", tmp_path, "--timeout", "2")
    assert status == 1
    first, *rest = checks.values()
    assert (first["check"], first["result"]) == ("it_can_be_loaded", "failed")
    assert reason in first["reason"]
    assert {check["result"] for check in rest} == {"not run"}
    assert document["passed"] is False


PLUGIN = """
import asyncio, ctypes, os, time
from ai.backend.accelerator.mock.plugin import MockPlugin

class Plugin(MockPlugin):
    async def {method}(self):
        {code}
"""


@pytest.mark.parametrize(
    ("method", "code", "failed", "reason"),
    [
        ("get_node_info", "os._exit(7)", "node_info_is_text", "its process ended: it exited with status 7"),
        ("get_node_info", "ctypes.string_at(0)", "node_info_is_text", "its process ended: it was killed by SIGSEGV"),
        ("get_node_info", "time.sleep(60)", "node_info_is_text", "it took longer than 8 s, or blocked its process"),
        ("get_node_info", "await asyncio.sleep(60)", "node_info_is_text", "get_node_info took longer than 2 s"),
        ("get_node_info", "raise OSError('lost')", "node_info_is_text", "get_node_info raised OSError: lost"),
        ("get_node_info", "raise SystemExit(3)", "node_info_is_text", "SystemExit: 3"),
        ("init", "raise OSError('lost')", "it_starts_and_stops", "init raised OSError: lost"),
        ("init", "os._exit(7)", "it_starts_and_stops", "its process ended: it exited with status 7"),
    ],
)
def test_a_plugin_that_misbehaves_fails_and_the_others_go_on(
    tmp_path: Path, method: str, code: str, failed: str, reason: str
) -> None:
    (tmp_path / "mine.py").write_text(PLUGIN.format(method=method, code=code))
    status, checks, _ = checked("mine.py", tmp_path, "--timeout", "8", "--deadline", "2")
    assert status == 1
    assert checks[failed]["result"] == "failed"
    assert reason in checks[failed]["reason"]
    assert checks["its_key_is_a_slot_name"]["result"] == "passed"
    assert checks["the_names_of_metrics_stay"]["result"] == ("not run" if method == "init" else "passed")


def test_bad_words_are_told_in_a_line(tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text("= 1")
    for arguments, words in [
        (("check", "nowhere.py"), "there is no file nowhere.py"),
        (("check", "cpu", "--settings", "bad.toml"), "bad.toml is no TOML"),
        (("check", "cpu", "--settings", "none.toml"), "cannot read none.toml"),
        (("show", "no-such-plugin"), "no plugin no-such-plugin is installed"),
        (("list", "-f", "none.toml"), "none.toml"),
        (("new", "Bad Name"), "cannot be the name of a plugin"),
        (("new", "cuda"), "there is a plugin cuda already"),
    ]:
        done = cli(*arguments, cwd=tmp_path)
        assert done.returncode == 1
        assert words in done.stderr
        assert len(done.stderr.splitlines()) == 1, done.stderr
    status, checks, _ = checked("cpu", tmp_path, "--settings", "reserved-cup=1")
    assert status == 1
    assert "plugins.cpu.reserved-cup" in checks["it_can_be_loaded"]["reason"]


# ---- list and show


def test_list_tells_what_each_plugin_finds_and_what_is_wrong(node: Path) -> None:
    done = cli("list", "--output", "json", cwd=node)
    assert done.returncode == 0, done.stderr
    found = {plugin["name"]: plugin for plugin in json.loads(done.stdout)}
    assert found["mock"]["slots"] == {"gpu.device": "4"}
    assert found["mock"]["allowed"]
    assert [d["health"] for d in found["mock"]["devices"]].count("unhealthy") == 1
    assert found["cpu"]["verified_on"]
    assert found["cpu"]["package"].startswith("backendai ")
    assert not found["gaudi3"]["allowed"]
    assert "the driver is gone" in found["bad"]["reason"]
    assert "has no module no;" in found["no.such.package"]["reason"]
    listed = cli("list", "--wide", cwd=node)
    assert "5 (1 unhealthy)" in listed.stdout
    assert "allow-compute-plugins" in listed.stderr
    (line,) = [line for line in listed.stdout.splitlines() if line.startswith("gaudi3 ")]
    assert "not allowed" in line
    assert "unverified on hardware" in line
    assert "cpu 1 of backendai" in cli("show", "cpu", cwd=node).stderr


def test_show_prints_a_table_and_the_links(node: Path) -> None:
    done = cli("show", "mock", cwd=node)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Mock GPU") == 5
    assert "unhealthy: declared as not healthy" in done.stdout
    (row,) = [line for line in done.stdout.splitlines() if line.startswith("[0] g-0")]
    assert row.split()[2:5] == ["x", "direct", "300"]
    assert "pcie-switch" in done.stdout


def test_show_prints_a_tree(node: Path) -> None:
    lines = cli("show", "mock", "--tree", cwd=node).stdout.splitlines()
    assert lines[0] == "NUMA node 0"
    switch = next(n for n, line in enumerate(lines) if line.endswith("PCIe switch of g-2"))
    assert lines[switch - 1].endswith("PCIe root of g-0")
    assert "mock g-2: Mock GPU, 40.0 GiB, gpu.device 1, healthy" in lines[switch + 1]
    assert lines[-1] == "└── mock sick: Mock GPU, 40.0 GiB, gpu.device 1, unhealthy: declared as not healthy"


# ---- new


def test_new_writes_once_and_never_over_anything(tmp_path: Path) -> None:
    done = cli("new", "acme-x1", "--output", "json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    written = json.loads(done.stdout)["files"]
    assert "backendai-acme-x1/src/backendai_acme_x1/plugin.py" in written
    before = {path: (tmp_path / path).read_text() for path in written}
    again = cli("new", "acme-x1", cwd=tmp_path)
    assert again.returncode == 1
    assert "backendai-acme-x1 is not empty; nothing was written" in again.stderr
    assert {path: (tmp_path / path).read_text() for path in written} == before
    (tmp_path / "file").write_text("mine")
    assert "is not empty" in cli("new", "other", "--dir", "file", cwd=tmp_path).stderr


def test_a_new_plugin_passes_its_own_test_and_the_check(tmp_path: Path) -> None:
    assert cli("new", "acme-x1", cwd=tmp_path).returncode == 0
    folder = tmp_path / "backendai-acme-x1"
    tested = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder / "src"), "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert tested.returncode == 0, tested.stdout
    assert " passed" in tested.stdout
    done = cli("check", "backendai_acme_x1", "--output", "json", cwd=tmp_path, PYTHONPATH=str(folder / "src"))
    assert done.returncode == 0, done.stdout
    results = {c["check"]: c["result"] for c in json.loads(done.stdout)["checks"]}
    assert results["random_requests_keep_the_invariants"] == "passed"
    assert results["health_is_watched"] == "passed"
