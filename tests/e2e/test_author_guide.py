"""The plugin of the author's guide: written, built as a wheel, installed beside the platform's wheel, and used."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.cluster import Cluster, running_cluster, wait_until

ROOT = Path(__file__).resolve().parents[2]
SMALL = ("-r", "cpu=1", "-r", "mem=256m")
SHOW = "import os; print(*(os.environ['ACME_' + n] for n in ('VISIBLE_DEVICES', 'MEMORY_LIMITS')))"


@dataclass(frozen=True)
class Installed:
    """An environment with two wheels in it: the platform's and the plugin's. The rest it shares with this one."""

    folder: Path
    python: str

    def run(self, *arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH" and not k.startswith("BACKEND")}
        return subprocess.run(
            [self.python, *arguments],
            cwd=cwd or self.folder,
            env=environment | {"BACKENDAI_CONSOLE": "skip"},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def cli(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self.run("-m", "ai.backend.cli.main", *arguments)


def done(process: subprocess.CompletedProcess[str]) -> str:
    assert process.returncode == 0, process.stdout + process.stderr
    return process.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    folder = tmp_path_factory.mktemp("author")
    here = Installed(folder, sys.executable)
    done(here.cli("accelerator", "new", "acme"))
    dist = folder / "dist"
    done(here.run("-m", "hatchling", "build", "-t", "wheel", "-d", str(dist), cwd=ROOT))
    done(here.run("-m", "venv", str(folder / "venv")))
    made = Installed(folder, str(folder / "venv" / "bin" / "python"))
    (packages,) = (folder / "venv").glob("lib/python*/site-packages")
    (packages / "shared.pth").write_text(sysconfig.get_path("purelib") + "\n")
    # The guide's own command, which must not ask the package index for the project's name.
    (command,) = re.findall(
        r"^(pip wheel [^#\n]*)", (ROOT / "docs/howto/write-an-accelerator-plugin.md").read_text(), re.M
    )
    offline = ("--no-index", "--no-build-isolation", "--wheel-dir", str(dist))
    done(made.run("-m", *command.split(), *offline))
    wheels = sorted(map(str, dist.glob("*.whl")))
    assert len(wheels) == 2
    done(made.run("-m", "pip", "install", "--quiet", "--no-index", "--no-deps", *wheels))
    return made


@pytest.fixture(scope="module")
def cluster(installed: Installed) -> Iterator[Cluster]:
    """An agent that finds the plugin by its entry point; the cards are of a file that tests change."""
    cards = installed.folder / "cards.toml"
    cards.write_text((installed.folder / "backendai-acme/src/backendai_acme/devices.toml").read_text())
    leases = installed.folder / "leases"
    leases.mkdir()
    configs = installed.folder / "agents"
    configs.mkdir()
    (configs / "i-local.toml").write_text(
        f'[agent]\nallow-compute-plugins = ["acme"]\n[intervals]\ninventory = 0.5\n'
        f'[plugins.acme]\ndevices-file = "{cards}"\nlease-dir = "{leases}"\n'
    )
    data = installed.folder / "data"
    with running_cluster(data, "--agent-config", str(configs), python=installed.python) as cluster:
        wait_until(lambda: "acme.device" in slots(cluster), what="the plugin's slots")
        yield cluster


def slots(cluster: Cluster) -> dict[str, str]:
    (agent,) = cluster.json("admin", "agent", "list", admin=True)["items"]
    found = agent["available_slots"]
    return dict(json.loads(found) if isinstance(found, str) else found)


def test_the_wheels_are_what_is_used(installed: Installed) -> None:
    where = done(
        installed.run("-c", "import ai.backend.cli.main as m, backendai_acme as a; print(m.__file__, a.__file__)")
    )
    assert where.count(str(installed.folder / "venv")) == 2
    assert "plugin.py" in done(installed.cli("accelerator", "new", "another"))


@pytest.mark.timeout(120)
def test_the_installed_plugin_passes_the_check(installed: Installed) -> None:
    report = json.loads(done(installed.cli("accelerator", "check", "acme", "--output", "json")))
    assert report["passed"]
    assert report["key"] == "acme"
    assert sum(check["result"] == "passed" for check in report["checks"]) > 35
    listed = {p["name"]: p for p in json.loads(done(installed.cli("accelerator", "list", "--output", "json")))}
    assert listed["acme"]["package"] == "backendai-acme 0.1.0"
    assert listed["acme"]["slots"] == {"acme.device": "2", "acme.shares": "2"}
    assert "acme-0002" in done(installed.cli("accelerator", "show", "acme", "--tree"))


@pytest.mark.timeout(180)
def test_a_session_gets_a_card_or_a_part_of_one(installed: Installed, cluster: Cluster) -> None:
    whole = cluster.run("run", "--rm", "-q", *SMALL, "-r", "acme.device=1", "-c", SHOW, "python", check=True)
    assert whole.stdout.split() == ["acme-0001", str(16 << 30)]
    half = cluster.run("run", "--rm", "-q", *SMALL, "-r", "acme.shares=0.5", "-c", SHOW, "python", check=True)
    assert half.stdout.split()[1] == str(8 << 30)
    wanted = ("-r", "acme.device=1", "--variant", "acme::generation::2.0")
    assert cluster.run("run", "--rm", "-q", *SMALL, *wanted, "-c", SHOW, "python", check=True).stdout
    leases = installed.folder / "leases"
    wait_until(lambda: not list(leases.iterdir()), what="the end of every lease")
    try:
        cluster.run("start", "-q", "-t", "holder", *SMALL, "-r", "acme.device=1", "python", check=True)
        (lease,) = leases.iterdir()
        assert lease.read_text() == "acme-0001"
    finally:
        cluster.run("rm", "holder", check=True)
    wait_until(lambda: not list(leases.iterdir()), what="the end of the lease")


@pytest.mark.timeout(120)
def test_what_the_file_says_happens(installed: Installed, cluster: Cluster) -> None:
    cards = installed.folder / "cards.toml"
    before = cards.read_text()
    try:
        cards.write_text(before.replace("# licensed = false", "licensed = false\n#"))
        denied = cluster.run("run", "--rm", *SMALL, "-r", "acme.device=2", "-c", SHOW, "python")
        assert denied.returncode == 125
        assert "the card acme-0002 has no licence" in denied.stderr
        cards.write_text(before.replace("# problem =", "problem =").replace('hot"', 'hot" #'))
        wait_until(lambda: float(slots(cluster)["acme.device"]) == 1, what="the sick card's end")
        told = cluster.run("admin", "agent", "list", admin=True, check=True).stdout
        assert "the device acme acme-0002 is unhealthy: it is too hot" in told
    finally:
        cards.write_text(before)
    wait_until(lambda: float(slots(cluster)["acme.device"]) == 2, what="the recovery of the card")
