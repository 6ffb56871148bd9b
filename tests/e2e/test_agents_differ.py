"""Agents of one `up` with plugins of their own, one of them beside bad neighbours."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.cluster import Cluster, wait_until

ROOT = Path(__file__).parents[2]
CONFIGS = {
    "i-local": """
        [agent]
        allowed-compute-plugins = ["ai.backend.accelerator.mock"]
        [plugins.mock]
        default-devices = 1
    """,
    "i-local-2": """
        [agent]
        allow-compute-plugins = ["tests.support.neighbours:Neighbour", "vendor_crash", "vendor_gone"]
        [plugins.bad]
        journal = "{journal}"
    """,
}
SMALL = ("-r", "cpu=1", "-r", "mem=256m")


class Mixed(Cluster):
    """``i-local`` has a mock device, ``i-local-2`` two of a plugin in a host process, ``i-local-3`` none."""

    def __init__(self, folder: Path) -> None:
        self.configs, self.journal = folder / "agents", folder / "journal"
        self.configs.mkdir()
        for name, text in CONFIGS.items():
            (self.configs / f"{name}.toml").write_text(text.replace("{journal}", str(self.journal)))
        (folder / "vendor_crash.py").write_text("import ctypes; ctypes.string_at(0)")
        path = os.pathsep.join([str(ROOT), str(folder)])
        super().__init__(folder / "data", env={"PYTHONPATH": path})

    def start_all(self, *options: str) -> None:
        self.options = options
        self.start()
        wait_until(lambda: len(self.agents()) == 3, what="three agents")

    def agents(self) -> dict[str, Any]:
        return {a["id"]: a for a in self.json("admin", "agent", "list", admin=True)["items"]}

    def plugins(self, agent: str) -> dict[str, Any]:
        found: dict[str, Any] = self.agents()[agent]["compute_plugins"]
        return found

    def start_session(self, name: str, slot: str) -> str:
        """Returns the agent that it runs on."""
        self.run("start", "-q", "-t", name, *SMALL, "-r", f"{slot}=1", "python", check=True)
        return self.agent_of(name)

    def agent_of(self, name: str) -> str:
        return str(self.json("info", name, admin=True)["containers"][0]["agent"])

    def says(self, name: str) -> str:
        return self.run("run", "-q", "-t", name, "-c", "print(6 * 7)", "python", check=True).stdout.strip()

    def hosts(self) -> list[int]:
        lines = self.journal.read_text().splitlines()
        return list(dict.fromkeys(int(line.split()[1]) for line in lines))


def is_alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mixed]:
    cluster = Mixed(tmp_path_factory.mktemp("mixed"))
    cluster.start_all("--agents", "3", "--agent-config", str(cluster.configs))
    try:
        yield cluster
    finally:
        cluster.stop()


def test_each_agent_offers_what_it_has(mixed: Mixed) -> None:
    wait_until(lambda: mixed.plugins("i-local-2").get("bad", {}).get("healthy"), what="the hosted plugin")
    offered = {name: sorted(agent["available_slots"]) for name, agent in mixed.agents().items()}
    assert offered == {
        "i-local": ["cpu", "mem", "mock.device"],
        "i-local-2": ["bad.device", "cpu", "mem"],
        "i-local-3": ["cpu", "mem"],
    }
    assert mixed.start_session("with-mock", "mock.device") == "i-local"
    assert mixed.start_session("with-bad", "bad.device") == "i-local-2"
    assert (mixed.says("with-mock"), mixed.says("with-bad")) == ("42", "42")


def test_the_cause_is_seen_in_the_list_and_in_the_log(mixed: Mixed) -> None:
    def listed(*words: str) -> bool:
        lines = mixed.run("admin", "agent", "list", admin=True, check=True).stdout.splitlines()
        return any(all(word in line for word in ("i-local-2", "has failed", *words)) for line in lines)

    wait_until(lambda: listed("vendor_crash", "killed by SIGSEGV"), what="the plugin that crashed")
    wait_until(lambda: listed("vendor_gone", "has no module"), what="the plugin that is missing")
    log = (mixed.data_dir / "logs" / "up.log").read_text()
    assert "killed by SIGSEGV" in log
    assert "allow-compute-plugins names vendor_gone, which is no installed plugin and no package" in log


def test_a_plugin_that_is_killed_comes_back_and_its_session_runs_on(mixed: Mixed) -> None:
    last = mixed.hosts()[-1]
    os.kill(last, signal.SIGKILL)
    assert mixed.says("with-bad") == "42"
    wait_until(lambda: mixed.hosts()[-1] != last and mixed.plugins("i-local-2")["bad"]["healthy"], what="another host")
    assert mixed.start_session("with-bad-2", "bad.device") == "i-local-2"
    mixed.run("rm", "with-bad-2", check=True)


def test_a_killed_agent_leaves_no_host_and_the_next_up_remembers(mixed: Mixed) -> None:
    mixed.kill()
    wait_until(lambda: not any(map(is_alive, mixed.hosts())), timeout_s=10, what="the end of all hosts")
    (mixed.configs / "i-local-2.toml").write_text("")
    mixed.start_all()
    # The manager knows three agents from its former life; what the new ones say comes with their first heartbeats.
    wait_until(
        lambda: sorted(mixed.agents()["i-local-2"]["available_slots"]) == ["cpu", "mem"], what="the end of the plugin"
    )
    assert "mock.device" in mixed.agents()["i-local"]["available_slots"]
    # What runs with devices of a plugin that is gone is kept, shown and ended cleanly.
    wait_until(lambda: mixed.says("with-bad") == "42", what="the session to be found again")
    assert mixed.agent_of("with-bad") == "i-local-2"
    assert mixed.json("info", "with-bad")["occupying_slots"]["bad.device"] == "1"
    refused = mixed.run("run", "--rm", "-q", *SMALL, "-r", "bad.device=1", "-c", "print(1)", "python", timeout_s=60)
    assert refused.returncode != 0
    assert "bad.device" in refused.stdout + refused.stderr
    assert "terminated" in mixed.run("rm", "with-bad", check=True).stdout
    assert "terminated" in mixed.run("rm", "with-mock", check=True).stdout


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("i-local.toml", '[agent]\nid = "x"', ("i-local.toml", "agent.id is what `up` says")),
        ("i-local.toml", "[agent]\nallow = []", ("i-local.toml", "agent.allow", "there is no such key")),
        ("i-local.toml", "[agent", ("i-local.toml", "is not TOML")),
        ("i-locla.toml", "", ("i-locla.toml", "is for no agent of this cluster")),
    ],
)
def test_a_configuration_that_cannot_be_used_is_refused(
    tmp_path: Path, name: str, text: str, words: tuple[str, ...]
) -> None:
    folder = tmp_path / "agents"
    folder.mkdir()
    (folder / name).write_text(text)
    done = Cluster(tmp_path / "data").run("up", "-d", str(tmp_path / "data"), "--agent-config", str(folder))
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert all(word in done.stderr for word in words), done.stderr
