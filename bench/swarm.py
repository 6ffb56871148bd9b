"""Drives many agents over the real wire: the managers of `deploy/` on PostgreSQL with fsync, Redis and etcd, and agents
with nodes in memory, each with its own keys and its own CURVE link to every manager process.

SWARM_AGENTS (200) agents and SWARM_SESSIONS (2,000) live sessions; the full size is 5,000 and 50,000. Slurm runs jobs
in the same run where it can be installed. Nothing may be lost or doubled while agents vanish and the leader is killed.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

from ai.backend.infra.rpc.zmq.keys import AgentKeyDirectory, generate_keypair
from bench.cluster import Api
from bench.figures import Figure, benchmark, spread
from bench.jobs import JOBS as SLURM_JOBS
from bench.jobs import submit_to_slurm
from bench.processes import busy_seconds, proportional_mib, tree
from bench.slurm import running_slurm
from tests.support.deployment import Deployment
from tests.support.postgres import PostgresServer

AGENTS = int(os.environ.get("SWARM_AGENTS", "200"))
SESSIONS = int(os.environ.get("SWARM_SESSIONS", "2000"))
BATCH = int(os.environ.get("SWARM_BATCH", "1000"))
AGENTS_OF_A_PROCESS = 1_000
AT_ONCE = 16
REST_S = 20.0
MAX_MIB, MAX_CORES = 1536.0, 0.3
RATE_OF_SLURM = 5.0
MAX_P99_S, MAX_START_P99_S, MAX_TAKEOVER_S = 1.0, 5.0, 5.0
_LIVE = "status NOT IN ('TERMINATED', 'ERROR', 'CANCELLED')"
_WAIT_S = 1_800.0


class Swarm:
    """A running installation with its agents."""

    def __init__(self, deployment: Deployment, user: Mapping[str, str], agents: int) -> None:
        self.deployment = deployment
        self.agents = agents
        self.user = user
        self.processes: list[subprocess.Popen[str]] = []
        self._numbers = count()
        self._local = threading.local()
        self._apis: list[Api] = []

    def api(self) -> Api:
        """Returns the connection of this thread to the second manager, which is not killed."""
        if not hasattr(self._local, "api"):
            endpoint = f"http://127.0.0.1:{self.deployment.ports[18081]}"
            keys = self.user["BACKEND_ACCESS_KEY"], self.user["BACKEND_SECRET_KEY"]
            self._local.api = Api(endpoint, *keys)
            self._apis.append(self._local.api)
        api: Api = self._local.api
        return api

    def close(self) -> None:
        """Ends the agents and closes all connections."""
        for process in self.processes:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()
        for api in self._apis:
            api.close()

    def create(self, **more: Any) -> str:
        """Enqueues a session and returns its name."""
        return self.api().create(f"swarm-{next(self._numbers)}", cpu="1", mem="64m", enqueueOnly=True, **more)

    def count(self, condition: str) -> int:
        """Returns the number of sessions for which a condition in SQL holds."""
        return int(self.deployment.query(f"SELECT count(*) AS number FROM sessions WHERE {condition}")[0]["number"])

    def wait_for(self, condition: str, number: int) -> None:
        """Waits until as many sessions fulfil a condition. Raises TimeoutError, with the log's end."""
        deadline = time.monotonic() + _WAIT_S
        while self.count(condition) != number:
            if time.monotonic() > deadline:
                states = self.deployment.query("SELECT status, status_info, count(*) FROM sessions GROUP BY 1, 2")
                raise TimeoutError(f"{self.count(condition)} of {number} sessions: {condition}\n{states}")
            time.sleep(0.2)

    def manager_pids(self) -> list[int]:
        names = ("manager", "manager2")
        return [
            pid for name in names if name in self.deployment.daemons for pid in tree(self.deployment.daemons[name].pid)
        ]


@contextmanager
def running_swarm(agents: int) -> Iterator[Swarm]:
    """Yields two managers, of three processes, and as many agents, connected to each of them."""
    with tempfile.TemporaryDirectory(prefix="swarm-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        folder.chmod(0o755)
        deployment = Deployment(folder / "here", folder)
        deployment.postgres = PostgresServer(folder / "pg", port=deployment.ports[8100], durable=True)
        swarm: Swarm | None = None
        try:
            deployment.start_servers()
            swarm = Swarm(deployment, deployment.set_up()["user"], agents)
            deployment.postgres.sql("backend", "UPDATE keypairs SET rate_limit = 1000000000")
            limits = "max_concurrent_sessions = 1000000, total_resource_slots = '{}'"
            deployment.postgres.sql("backend", f"UPDATE keypair_resource_policies SET {limits}")
            deployment.start_one("manager")
            _wait_for_leader(deployment)
            deployment.start_one("manager2")
            swarm.processes = _start_agents(deployment, folder / "swarm", agents)
            wait_for_agents(swarm)
            yield swarm
        finally:
            if swarm is not None:
                swarm.close()
            deployment.stop()


def _wait_for_leader(deployment: Deployment) -> None:
    query = "SELECT 1 FROM leases WHERE name = 'leader' AND holder <> '' AND expires_at > now()"
    _wait_until(lambda: bool(deployment.query(query)), "no manager leads", deployment)


def wait_for_agents(swarm: Swarm) -> None:
    """Waits until all agents are alive."""
    query, deployment = "SELECT count(*) AS number FROM agents WHERE status = 'ALIVE'", swarm.deployment
    _wait_until(lambda: deployment.query(query)[0]["number"] == swarm.agents, "agents are missing", deployment)


def _wait_until(condition: Any, problem: str, deployment: Deployment) -> None:
    deadline = time.monotonic() + _WAIT_S
    while True:
        with suppress(OSError):
            if condition():
                return
        if time.monotonic() > deadline:
            raise TimeoutError(f"{problem}\n{deployment.log()}")
        time.sleep(0.5)


def _start_agents(deployment: Deployment, folder: Path, agents: int) -> list[subprocess.Popen[str]]:
    etc = deployment.root / "etc"
    keys, manager_key = AgentKeyDirectory(etc / "agents"), (etc / "manager.key").read_text().split()[0]
    first, second = deployment.ports[6011], deployment.ports[16011]
    folder.mkdir()
    addresses = {f"tcp://127.0.0.1:{port}": manager_key for port in (first, second, second + 1)}
    (folder / "managers.json").write_text(json.dumps(addresses))
    for number in range(agents):
        agent_id = f"s-{number}"
        keys.allow(agent_id, generate_keypair(folder / "agents" / agent_id / "key").public)
    processes = []
    for begin in range(0, agents, AGENTS_OF_A_PROCESS):
        number = min(AGENTS_OF_A_PROCESS, agents - begin)
        command = [sys.executable, "-m", "bench.swarm_agents", str(begin), str(number), str(folder)]
        with (folder / f"agents-{begin}.log").open("w") as log:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, stdin=subprocess.DEVNULL, text=True)
        processes.append(process)
    for process in processes:
        assert process.stdout is not None
        if process.stdout.readline() != "ready\n":
            raise RuntimeError("the agents do not start; see the log:\n" + log_end(folder))
    return processes


def log_end(folder: Path) -> str:
    return "\n".join(path.read_text()[-2000:] for path in folder.glob("agents-*.log"))


@contextmanager
def requests_in_background(swarm: Swarm) -> Iterator[list[float]]:
    """Yields the seconds of signed requests, ten a second, that another thread sends meanwhile."""
    times: list[float] = []
    stop = threading.Event()

    def send() -> None:
        while not stop.wait(0.1):
            began = time.perf_counter()
            swarm.api().call("GET", "/resource/presets")
            times.append(time.perf_counter() - began)

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield times
    finally:
        stop.set()
        thread.join()


def run_batch(swarm: Swarm, number: int) -> float:
    """Returns how many batch sessions a second were created, run and ended."""
    began = time.monotonic()
    before = swarm.count("status = 'TERMINATED'")
    with ThreadPoolExecutor(AT_ONCE) as pool:
        options = {"sessionType": "batch", "startupCommand": "exit 0"}
        list(pool.map(lambda _: swarm.create(**options), range(number)))
    swarm.wait_for("status = 'TERMINATED'", before + number)
    return number / (time.monotonic() - began)


def fill(swarm: Swarm, number: int) -> float:
    """Returns how many interactive sessions a second were created until all ran."""
    began = time.monotonic()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(lambda _: swarm.create(), range(number)))
    swarm.wait_for("status = 'RUNNING'", number)
    return number / (time.monotonic() - began)


def start_times(swarm: Swarm) -> list[float]:
    """Returns the seconds from the creation to the start of each batch session."""
    query = "SELECT extract(epoch FROM started_at - created_at) AS s FROM sessions WHERE type = 'batch'"
    return [float(row["s"]) for row in swarm.deployment.query(f"{query} AND started_at IS NOT NULL")]


def kill_leader(swarm: Swarm) -> float:
    """Kills the leading manager, and returns the seconds until a session was placed that was enqueued afterwards."""
    swarm.deployment.kill("manager")
    began = time.monotonic()
    name = swarm.create()
    swarm.wait_for(f"name = '{name}' AND status NOT IN ('PENDING', 'ERROR', 'CANCELLED')", 1)
    took_s = time.monotonic() - began
    swarm.deployment.start_one("manager")
    return took_s


def agents_vanish(swarm: Swarm, batch: int) -> None:
    """Lets a tenth of the agents vanish, runs batch sessions meanwhile, and waits until all agents are alive again."""
    for process in swarm.processes:
        process.send_signal(signal.SIGUSR1)
    time.sleep(1.0)
    run_batch(swarm, batch)
    wait_for_agents(swarm)


def end_all(swarm: Swarm) -> tuple[int, int, int]:
    """Ends every session. Returns how many sessions failed, how many workloads were created twice, and how many agents
    hold slots all the same."""
    names = [row["name"] for row in swarm.deployment.query(f"SELECT name FROM sessions WHERE {_LIVE}")]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(lambda name: swarm.api().destroy(name), names))
    swarm.wait_for(_LIVE, 0)
    held = swarm.deployment.query("SELECT occupied_slots AS slots FROM agents")
    leaking = sum(any(float(amount) for amount in json.loads(row["slots"]).values()) for row in held)
    doubled = 0
    for process in swarm.processes:
        process.terminate()
        assert process.stdout is not None
        doubled += len(json.loads(process.stdout.readline())["doubled"])
    lost = swarm.count("status IN ('ERROR', 'CANCELLED') OR (type = 'batch' AND result <> 'SUCCESS')")
    return lost, doubled, leaking


def slurm_rate() -> float | None:
    """Returns the jobs a second of Slurm; None where it cannot be installed."""
    try:
        with running_slurm() as environ:
            submit_to_slurm(environ)
            _, ended_s = submit_to_slurm(environ)
            return SLURM_JOBS / ended_s
    except (FileNotFoundError, subprocess.CalledProcessError):
        return None


@benchmark(
    "swarm", "SWARM_AGENTS agents in memory over the real wire, SWARM_SESSIONS sessions, agents and leader killed"
)
def swarm() -> Sequence[Figure]:
    slurm = slurm_rate()
    with running_swarm(AGENTS) as running:
        filled = fill(running, SESSIONS)
        pids = running.manager_pids()
        used_s, at = busy_seconds(pids), time.monotonic()
        time.sleep(REST_S)
        cores = (busy_seconds(pids) - used_s) / (time.monotonic() - at)
        mib = proportional_mib(pids)
        with requests_in_background(running) as times:
            used_s = busy_seconds(pids)
            rate = run_batch(running, BATCH)
            cpu_s = (busy_seconds(pids) - used_s) / BATCH
        starts = start_times(running)
        agents_vanish(running, BATCH // 10)
        takeover_s = kill_leader(running)
        wait_for_agents(running)
        lost, doubled, leaking = end_all(running)
    p99_s = statistics.quantiles(times, n=100)[98] if len(times) > 1 else times[0]
    start_p99_s = statistics.quantiles(starts, n=100)[98]
    size = f"{AGENTS} agents, {SESSIONS} live sessions"
    return [
        Figure(name="swarm-memory", value=mib, unit="MiB", target=f"<= {MAX_MIB:g}", holds=mib <= MAX_MIB),
        Figure(name="swarm-rest", value=cores, unit="cores", target=f"<= {MAX_CORES:g}", holds=cores <= MAX_CORES),
        Figure(
            name="swarm-rate",
            value=rate,
            unit="sessions/s",
            reference=slurm,
            reference_is="Slurm's jobs in the same run, which start processes",
            target=f">= {RATE_OF_SLURM:g} of Slurm's",
            holds=slurm is not None and rate >= RATE_OF_SLURM * slurm,
            detail={"interactive_per_s": filled, "managers_cpu_ms_per_session": 1000 * cpu_s},
        ),
        Figure(
            name="swarm-request",
            value=p99_s,
            unit="s",
            target=f"p99 <= {MAX_P99_S:g} s under that load, {size}",
            holds=p99_s <= MAX_P99_S,
            detail=spread(times),
        ),
        Figure(
            name="swarm-start",
            value=start_p99_s,
            unit="s",
            target=f"PENDING to RUNNING, p99 <= {MAX_START_P99_S:g} s at half of that load",
            holds=start_p99_s <= MAX_START_P99_S,
            detail=spread(starts),
        ),
        Figure(
            name="swarm-takeover",
            value=takeover_s,
            unit="s",
            target=f"<= {MAX_TAKEOVER_S:g} s from the leader's death to a session placed",
            holds=takeover_s <= MAX_TAKEOVER_S,
        ),
        Figure(
            name="swarm-lost",
            value=float(lost + doubled + leaking),
            unit="sessions",
            target="0 lost, doubled, or with slots left",
            holds=not (lost or doubled or leaking),
            detail={"lost": float(lost), "doubled": float(doubled), "agents_with_slots": float(leaking)},
        ),
    ]
