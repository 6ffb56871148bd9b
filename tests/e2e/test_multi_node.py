"""A session over two machines: two namespaces, an agent in each, and a manager beside the first.

What is left of its network is asked of the kernel.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from ai.backend.infra.rpc.zmq.keys import AgentKeyDirectory, load_or_generate_keypair
from ai.backend.node.linux import ipsec
from tests.support.cluster import wait_until
from tests.support.forked import ForkedPopen
from tests.support.migrated import migrated
from tests.support.namespaces import Machine, two_machines

pytestmark = [pytest.mark.needs("root", "isolation", "ip", "ssh"), pytest.mark.timeout(180)]
SIZE = ("-r", "cpu=1", "-r", "mem=128m")
AGENTS = ("i-one", "i-two")
LOGIN = (
    "import os, subprocess\n"
    "for host in os.environ['BACKENDAI_CLUSTER_HOSTS'].split(','):\n"
    "    there = 'hostname; ssh -o BatchMode=yes main1 hostname'\n"
    "    done = subprocess.run(['ssh', '-o', 'BatchMode=yes', host, there], capture_output=True, text=True)\n"
    "    print(done.stdout.split(), done.stderr)\n"
)


class TwoMachines:
    """The daemons, each in its namespace, and commands beside the manager."""

    def __init__(self, folder: Path, machines: tuple[Machine, Machine]) -> None:
        self.root = folder
        self.machines = machines
        self.daemons: dict[str, ForkedPopen] = {}
        self.user: dict[str, str] = {}
        here = machines[0].address
        (folder / "manager.toml").write_text(
            f'data-dir = "{folder}/manager"\n[manager]\nservice-addr = {{ host = "{here}", port = 8081 }}\n'
            f'[agent-link]\nbind = "tcp://{here}:6011"\nagent-keys = "{folder}/agents"\n'
            f'key-file = "{folder}/manager.key_secret"\n[database]\nurl = "sqlite:///{folder}/manager.db"\n'
        )
        migrated(folder / "manager.db")
        self.manager_key = load_or_generate_keypair(folder / "manager.key_secret").public
        allowed = AgentKeyDirectory(folder / "agents")
        for name in AGENTS:
            allowed.allow(name, load_or_generate_keypair(folder / f"{name}.key").public)

    def run(self, *words: str, env: dict[str, str] | None = None) -> str:
        with self._start(*words, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            out, err = process.communicate(timeout=90)
        assert process.returncode == 0, f"{words}\n{out}\n{err}\n{self.log()}"
        return str(out)

    def _start(self, *words: str, on: int = 0, env: dict[str, str] | None = None, **options: Any) -> ForkedPopen:
        kept = {k: v for k, v in os.environ.items() if not k.startswith("BACKEND")}
        program = [sys.executable, "-m", "tests.support.in_namespace", self.machines[on].name]
        return ForkedPopen(
            [*program, "-m", "ai.backend.cli.main", *words],
            stdin=subprocess.DEVNULL,
            env={**kept, "HOME": str(self.root), "NO_COLOR": "1", "COLUMNS": "200", **(env or {})},
            **options,
        )

    def daemon(self, name: str, *words: str, on: int = 0) -> None:
        with (self.root / f"{name}.log").open("ab") as output:
            self.daemons[name] = self._start(*words, on=on, stdout=output, stderr=output, start_new_session=True)

    def start(self) -> None:
        manager = ("mgr", "-f", str(self.root / "manager.toml"))
        who = ""
        for line in self.run(*manager, "bootstrap").splitlines():
            who = line.removeprefix("# ") if line.startswith("# ") else who
            if who == "user" and line.startswith("BACKEND"):
                key, _, value = line.partition("=")
                self.user[key] = value
        self.user["BACKEND_ENDPOINT"] = f"http://{self.machines[0].address}:8081"
        self.daemon("manager", *manager, "start-server")
        for number, name in enumerate(AGENTS):
            self.start_agent(number, name)
        wait_until(lambda: self.column("SELECT id FROM agents") == list(AGENTS), what=f"both agents\n{self.log()}")

    def start_agent(self, number: int, name: str) -> None:
        path = self.root / f"{name}.toml"
        path.write_text(
            f'[agent]\nid = "{name}"\ndata-dir = "{self.root}/{name}"\n'
            f'[link]\nmanager-addr = "tcp://{self.machines[0].address}:6011"\n'
            f'manager-key = "{self.manager_key}"\nkeypair-file = "{self.root}/{name}.key"\n'
        )
        self.daemon(name, "ag", "start-server", "-f", str(path), on=number)

    def kill(self, name: str) -> None:
        process = self.daemons.pop(name)
        process.send_signal(signal.SIGKILL)
        process.wait()

    def stop(self) -> None:
        for process in self.daemons.values():
            process.terminate()
        for process in self.daemons.values():
            process.wait(30)

    def log(self) -> str:
        return "\n".join(f"--- {p.name}\n{p.read_text(errors='replace')[-3000:]}" for p in self.root.glob("*.log"))

    def cli(self, *words: str) -> str:
        return self.run(*words, env=self.user)

    def json(self, *words: str) -> Any:
        return json.loads(self.cli("--output", "json", *words))

    def column(self, query: str, *values: str) -> list[Any]:
        with closing(sqlite3.connect(self.root / "manager.db")) as database:
            return sorted(row[0] for row in database.execute(query, values))

    def guards(self) -> set[str]:
        """What the kernels are told of who may send."""
        return set().union(*(machine.ip("xfrm", "policy").splitlines() for machine in self.machines))

    def links(self) -> set[str]:
        return set().union(*(machine.links() for machine in self.machines))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoMachines]:
    with two_machines() as machines:
        made = TwoMachines(tmp_path_factory.mktemp("machines"), machines)
        try:
            made.start()
            yield made
        finally:
            made.stop()


def logins(cluster: TwoMachines, name: str) -> list[str]:
    return cluster.cli("run", "-t", name, "-q", "-c", LOGIN, "python").splitlines()


def numbers(cluster: TwoMachines) -> list[int]:
    """Of the networks that sessions have."""
    return cluster.column("SELECT vni FROM sessions WHERE vni IS NOT NULL")


def await_end(cluster: TwoMachines, session: dict[str, Any]) -> list[str]:
    """Why its kernels have ended. Nothing is left of its network."""
    wait_until(lambda: cluster.json("info", session["id"])["status"] == "TERMINATED", what="the end of the session")
    wait_until(lambda: not cluster.links() | cluster.guards(), what="the end of all devices and their guards")
    assert not numbers(cluster)
    which = "SELECT id FROM sessions WHERE name = ?"
    query = f"SELECT reason FROM kernels WHERE session_id = ({which})"
    return cluster.column(query, session["name"])


def test_kernels_on_two_machines_log_in_to_each_other(cluster: TwoMachines) -> None:
    cluster.cli("start", "-t", "wide", "--cluster-mode", "multi-node", "--cluster-size", "3", *SIZE, "python")
    assert all(len(machine.links()) == 1 for machine in cluster.machines), "both have a part of it"
    assert len(numbers(cluster)) == 1
    assert all("action block" in machine.ip("xfrm", "policy") for machine in cluster.machines)
    assert logins(cluster, "wide") == [f"['{host}', 'main1'] " for host in ("main1", "sub1", "sub2")]
    cluster.cli("rm", "wide")
    wait_until(lambda: not cluster.links() | cluster.guards(), what="the end of all devices and their guards")
    assert not numbers(cluster)


def test_where_one_machine_cannot_the_other_keeps_nothing(cluster: TwoMachines) -> None:
    taken = "import socket, sys; s = socket.socket(type=socket.SOCK_DGRAM); s.bind(('', 4789)); print(flush=True)"
    command = cluster.machines[1].inside([sys.executable, "-c", f"{taken}; sys.stdin.read()"])
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline()
        wanted = ("--cluster-mode", "multi-node", "--cluster-size", "2", *SIZE, "python")
        with pytest.raises(AssertionError, match="ERROR"):
            cluster.cli("start", "-t", "half", *wanted)
        other.communicate()
    (evidence,) = cluster.column("SELECT status_data FROM kernels WHERE status = 'ERROR'")
    assert "the session's network could not be made: Address already in use" in evidence
    wait_until(lambda: not cluster.links() | cluster.guards(), what="the end of all devices and their guards")
    assert not numbers(cluster)


def test_a_network_is_encrypted_or_refused(cluster: TwoMachines) -> None:
    wanted = ("--cluster-mode", "multi-node", "--cluster-size", "2", "--resource-opts", "encrypted_network=true")
    start = ("start", "-t", "secret", *wanted, *SIZE, "python")
    if why := ipsec.why_no_ipsec(1):
        with pytest.raises(AssertionError) as refused:
            cluster.cli(*start)
        assert "can take part in an encrypted network over several nodes: i-one: " + why in str(refused.value)
        return
    cluster.cli(*start)
    session = cluster.json("info", "secret")
    assert logins(cluster, "secret") == [f"['{host}', 'main1'] " for host in ("main1", "sub1")]
    states = [machine.ip("xfrm", "state") for machine in cluster.machines]
    assert all(said.count("rfc4106(gcm(aes))") == 2 for said in states), states
    cluster.cli("rm", "secret")
    await_end(cluster, session)
    wait_until(
        lambda: not any(m.ip("xfrm", what) for m in cluster.machines for what in ("state", "policy")),
        what="the end of the encryption",
    )


def test_an_agent_joins_again_and_a_kernel_that_is_cut_off_ends_the_session(cluster: TwoMachines) -> None:
    cluster.cli("start", "-t", "held", "--cluster-mode", "multi-node", "--cluster-size", "2", *SIZE, "python")
    session = cluster.json("info", "held")
    there = cluster.machines[1]
    (device,) = there.links()
    before = there.forwards()
    cluster.kill("i-two")
    there.ip("link", "set", device, "down")  # as a clumsy hand does; the kernel drops what the device knew
    for line in before:
        subprocess.run(["bridge", "-n", there.name, "fdb", "del", *line.split()[:-2]], check=True)
    cluster.start_agent(1, "i-two")
    wait_until(lambda: there.forwards() == before, what="the agent to join again")
    ends = [f"['{host}', 'main1'] " for host in ("main1", "sub1")]
    wait_until(lambda: logins(cluster, "held") == ends, what="the kernels to reach each other")
    there.ip("link", "delete", device)  # and the devices of its kernels with it, as nobody can mend
    assert await_end(cluster, session) == ["anomaly-detected"] * 2, "the cause of one is the reason of both"


def test_a_machine_that_starts_again_ends_the_session(cluster: TwoMachines) -> None:
    cluster.cli("start", "-t", "brief", "--cluster-mode", "multi-node", "--cluster-size", "2", *SIZE, "python")
    session = cluster.json("info", "brief")
    there = cluster.machines[1]
    shims = {int(k["container_id"]): parent_of(int(k["container_id"])) for k in session["containers"]}
    network = there.path.stat().st_ino
    ((leader, shim),) = ((p, s) for p, s in shims.items() if Path(f"/proc/{s}/ns/net").stat().st_ino == network)
    cluster.kill("i-two")
    for process in (shim, leader):
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    for device in there.links():
        there.ip("link", "delete", device)
    cluster.start_agent(1, "i-two")
    assert await_end(cluster, session) == ["self-terminated"] * 2


def parent_of(process: int) -> int:
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
