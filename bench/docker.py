"""Measures sessions in containers against the same engine alone."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Barrier

from bench.cluster import Cluster, down, lift_rate_limits, temporary_folder, up
from bench.figures import Figure, benchmark, spread
from bench.processes import busy_seconds, command_of, tree
from bench.sessions import added_figure, creation_in_turns, execute_once
from tests.support.docker_engine import PYTHON_IMAGE, DockerEngine, shared_engine, why_not

ADDED_LIMIT_MS = 150.0
AT_ONCE = 50
IDLE_LIMIT = 0.05
IDLE_CONTAINERS = 200
CREATORS = 8
SETTLE_SECONDS = 20.0
IDLE_SECONDS = 60.0
SMALL_IMAGE, SMALL = "base/small:1", "LABEL ai.backend.resource.min.cpu=0 ai.backend.resource.min.mem=32m"
"""As the other one, but more sessions fit on a machine than it has cores."""


@contextmanager
def docker_cluster(*options: str) -> Iterator[tuple[Cluster, DockerEngine]]:
    """Yield a fresh cluster on an engine of its own.

    Raises:
        RuntimeError: no engine runs here.
    """
    if (reason := why_not()) is not None:
        raise RuntimeError(f"this benchmark needs a Docker engine: {reason}")
    with temporary_folder() as folder, shared_engine(folder / "docker") as engine:
        engine.ensure_image(PYTHON_IMAGE)
        engine.derive_image(PYTHON_IMAGE, SMALL_IMAGE, SMALL)
        cluster = up(folder / "data", "--runtime", "docker", *options, DOCKER_HOST=engine.host)
        lift_rate_limits(cluster)
        try:
            yield cluster, engine
        finally:
            down(folder / "data")


def run_bare(engine: DockerEngine) -> str:
    """`docker run -d` and ``python3 -c pass`` in it, by the engine's API, without its client program.

    Returns the container's id.

    Raises:
        RuntimeError: it does not run.
    """
    body = {"Image": PYTHON_IMAGE, "Entrypoint": ["sleep", "1000"], "HostConfig": {"NetworkMode": "none"}}
    program = {"Cmd": ["python3", "-c", "pass"], "AttachStdout": True}
    container = str(engine.call("POST", "/containers/create", json.dumps(body).encode())[1]["Id"])
    engine.call("POST", f"/containers/{container}/start")
    execution = engine.call("POST", f"/containers/{container}/exec", json.dumps(program).encode())[1]["Id"]
    status, _ = engine.call("POST", f"/exec/{execution}/start", b'{"Detach": false}')
    code = engine.call("GET", f"/exec/{execution}/json")[1]["ExitCode"] if status == 200 else None
    if code != 0:
        raise RuntimeError(f"the bare container does not execute: {status}, exit code {code}")
    return container


def remove_bare(engine: DockerEngine, container: str) -> None:
    engine.call("DELETE", f"/containers/{container}?force=1")


@benchmark("docker", "container session create -> RUNNING over `docker run -d` + `python3 -c pass` in it")
def docker() -> Sequence[Figure]:
    with docker_cluster() as (cluster, engine):

        def bare() -> float:
            started = time.perf_counter()
            container = run_bare(engine)
            taken = time.perf_counter() - started
            remove_bare(engine, container)
            return taken

        created, floors = creation_in_turns(cluster.user, bare, warm_up=2, rounds=15, image=PYTHON_IMAGE)
    reference_is = "docker run -d and python3 -c pass in it, by the engine's API"
    return [added_figure("docker-session-create-added", created, floors, reference_is, ADDED_LIMIT_MS)]


def at_once(count: int, work: Callable[[int], str]) -> tuple[list[float], float, list[str]]:
    """Begin all in the same instant, a thread each; the milliseconds of each, of all, and what each returned."""
    gate = Barrier(count + 1)

    def one(number: int) -> tuple[float, str]:
        gate.wait()
        started = time.perf_counter()
        result = work(number)
        return (time.perf_counter() - started) * 1000, result

    with ThreadPoolExecutor(count) as pool:
        waiting = [pool.submit(one, number) for number in range(count)]
        gate.wait()
        started = time.perf_counter()
        results = [future.result() for future in waiting]
        total = (time.perf_counter() - started) * 1000
    return [taken for taken, _ in results], total, [value for _, value in results]


@benchmark("docker-at-once", f"{AT_ONCE} container sessions created at once, over as many `docker run -d` at once")
def docker_at_once() -> Sequence[Figure]:
    with docker_cluster() as (cluster, engine):
        cluster.user.destroy(cluster.user.create(image=SMALL_IMAGE, cpu="0", mem="32m"))
        remove_bare(engine, run_bare(engine))

        def session(number: int) -> str:
            api = cluster.user
            name = api.create(f"at-once-{number:03}", image=SMALL_IMAGE, cpu="0", mem="32m")
            if execute_once(api, name, f"print({number})") != f"{number}\n":
                raise RuntimeError(f"the session {name} does not execute")
            return name

        bare, bare_total, containers = at_once(AT_ONCE, lambda _: run_bare(engine))
        for container in containers:
            remove_bare(engine, container)
        before = busy_seconds(tree(cluster.pid))
        ours, total, names = at_once(AT_ONCE, session)
        daemons = busy_seconds(tree(cluster.pid)) - before
        for name in names:
            cluster.user.destroy(name)
    limit = bare_total + AT_ONCE * ADDED_LIMIT_MS
    return [
        Figure(
            name="docker-at-once",
            value=total,
            unit="ms",
            reference=bare_total,
            reference_is=f"{AT_ONCE} docker run -d with python3 -c pass at once, by the engine's API",
            target=f"all run and execute, <= {ADDED_LIMIT_MS:g} ms added for each",
            holds=total <= limit,
            detail={
                **spread(ours),
                **{f"bare-{key}": value for key, value in spread(bare).items()},
                "daemons-cpu-ms-each": daemons * 1000 / AT_ONCE,
            },
        )
    ]


@benchmark("docker-idle", f"processor time of an agent with {IDLE_CONTAINERS} containers that do nothing")
def docker_idle() -> Sequence[Figure]:
    """The agent is a process of its own, and does everything that it does by default: statistics, comparisons ..."""
    with docker_cluster("--separate") as (cluster, _):

        def start(number: int) -> str:
            return cluster.user.create(f"idle-{number:03}", image=SMALL_IMAGE, cpu="0", mem="32m")

        def stop(name: str) -> None:
            cluster.user.destroy(name)

        (agent,) = [pid for pid in tree(cluster.pid) if " agent " in command_of(pid)]
        empty = _share_of(agent)
        started = time.perf_counter()
        with ThreadPoolExecutor(CREATORS) as pool:
            names = list(pool.map(start, range(IDLE_CONTAINERS)))
        creating = time.perf_counter() - started
        share = _share_of(agent)
        sys.stderr.write(f"  {len(names)} containers in {creating:.0f} s: {share:.4f} of a core\n")
        with ThreadPoolExecutor(CREATORS) as pool:
            list(pool.map(stop, names))
    return [
        Figure(
            name="docker-idle-agent",
            value=share,
            unit="cores",
            reference=empty,
            reference_is="the same agent without containers",
            target=f"<= {IDLE_LIMIT:g} of a core with {IDLE_CONTAINERS} containers",
            holds=share <= IDLE_LIMIT,
            detail={"containers": float(len(names)), "create_s": creating},
        )
    ]


def _share_of(pid: int) -> float:
    """Of one core, what a process and its children use while nothing happens."""
    time.sleep(SETTLE_SECONDS)
    before, began = busy_seconds(tree(pid)), time.monotonic()
    time.sleep(IDLE_SECONDS)
    return (busy_seconds(tree(pid)) - before) / (time.monotonic() - began)
