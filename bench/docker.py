"""What sessions cost that are containers, against the same engine without us."""

from __future__ import annotations

import json
import statistics
import time
import urllib.parse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bench.cluster import Cluster, down, temporary_folder, up
from bench.figures import Figure, benchmark, spread
from bench.processes import tree
from tests.support.docker_engine import PYTHON_IMAGE, DockerEngine, shared_engine, why_not

ADDED_LIMIT_MS = 150.0
IDLE_LIMIT = 0.05
IDLE_CONTAINERS = 15
IDLE_SECONDS = 60.0
SMALL_IMAGE = "base/small:1"
"""As the other one, but more sessions fit on a machine than it has cores."""


@contextmanager
def docker_cluster() -> Iterator[tuple[Cluster, DockerEngine]]:
    """Yield a fresh cluster on an engine of its own.

    Raises:
        RuntimeError: no engine runs here.
    """
    if (reason := why_not()) is not None:
        raise RuntimeError(f"this benchmark needs a Docker engine: {reason}")
    with temporary_folder() as folder, shared_engine(folder / "docker") as engine:
        engine.ensure_image(PYTHON_IMAGE)
        _make_small_image(engine)
        cluster = up(folder / "data", "--runtime", "docker", DOCKER_HOST=engine.host)
        try:
            yield cluster, engine
        finally:
            down(folder / "data")


def _make_small_image(engine: DockerEngine) -> None:
    body = json.dumps({"Image": PYTHON_IMAGE, "Cmd": ["true"]}).encode()
    container = engine.call("POST", "/containers/create", body)[1]["Id"]
    label = urllib.parse.quote("LABEL ai.backend.resource.min.cpu=0 ai.backend.resource.min.mem=32m")
    repository, _, tag = SMALL_IMAGE.partition(":")
    query = f"container={container}&repo={repository}&tag={tag}&changes={label}"
    status, answer = engine.call("POST", f"/commit?{query}", b"{}")
    if status != 201:
        raise RuntimeError(f"the image cannot be made: {answer}")
    engine.call("DELETE", f"/containers/{container}")


def bare_container(engine: DockerEngine) -> float:
    """Seconds for ``docker run -d`` and ``python3 -c pass`` in it, by the engine's API, without its client program."""
    body = {"Image": PYTHON_IMAGE, "Entrypoint": ["sleep", "1000"], "HostConfig": {"NetworkMode": "none"}}
    program = {"Cmd": ["python3", "-c", "pass"], "AttachStdout": True}
    started = time.perf_counter()
    container = engine.call("POST", "/containers/create", json.dumps(body).encode())[1]["Id"]
    engine.call("POST", f"/containers/{container}/start")
    execution = engine.call("POST", f"/containers/{container}/exec", json.dumps(program).encode())[1]["Id"]
    status, _ = engine.call("POST", f"/exec/{execution}/start", b'{"Detach": false}')
    taken = time.perf_counter() - started
    if status != 200:
        raise RuntimeError(f"the bare container does not execute: {status}")
    engine.call("DELETE", f"/containers/{container}?force=1")
    return taken


@benchmark("docker", "container session create -> RUNNING over `docker run -d` + `python3 -c pass` in it; idle agent")
def docker() -> Sequence[Figure]:
    created: list[float] = []
    bare: list[float] = []
    with docker_cluster() as (cluster, engine):
        api = cluster.user
        for _ in range(2):
            api.destroy(api.create(image=PYTHON_IMAGE))
            bare_container(engine)
        for _ in range(15):
            bare.append(bare_container(engine) * 1000)
            started = time.perf_counter()
            name = api.create(image=PYTHON_IMAGE)
            created.append((time.perf_counter() - started) * 1000)
            api.destroy(name)
        names = [api.create(image=SMALL_IMAGE, cpu="0", mem="32m") for _ in range(IDLE_CONTAINERS)]
        time.sleep(5.0)
        before, began = _cpu_of(tree(cluster.pid)), time.monotonic()
        time.sleep(IDLE_SECONDS)
        share = (_cpu_of(tree(cluster.pid)) - before) / (time.monotonic() - began)
        for name in names:
            api.destroy(name)
    floor = statistics.median(bare)
    value = statistics.median(created) - floor
    return [
        Figure(
            name="docker-session-create-added",
            value=value,
            unit="ms",
            reference=floor,
            reference_is="docker run -d and python3 -c pass in it, by the engine's API",
            target=f"<= {ADDED_LIMIT_MS:g} ms added",
            holds=value <= ADDED_LIMIT_MS,
            detail=spread(created),
        ),
        Figure(
            name="docker-idle-cluster",
            value=share,
            unit="cores",
            target=f"<= {IDLE_LIMIT:g} of a core, manager and agent with {IDLE_CONTAINERS} containers",
            holds=share <= IDLE_LIMIT,
            detail={"containers": float(IDLE_CONTAINERS)},
        ),
    ]


def _cpu_of(pids: Sequence[int]) -> float:
    """Seconds of processor time of these processes and of those that they have waited for."""
    total = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        total += sum(map(int, fields[11:15]))
    return total / 100
