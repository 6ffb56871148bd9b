"""Measures how long nobody serves a session after the SIGKILL of its shard: real processes on a real kubelet."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tools.kube.cluster import NODE_NAME, ClusterOptions, running_cluster

from bench.cluster import Api
from bench.figures import Figure, benchmark
from bench.sessions import execute_once
from tests.kubernetes.runtime.sites import PYTHON_IMAGE, Site
from tests.kubernetes.shard.installation import Installation

FAILOVER_S = 20.0
ROUNDS = 3
_NUMBERS = 1500
_CODE = f"import time\nfor i in range({_NUMBERS}):\n    print(i, flush=True)\n    time.sleep(0.01)"
_RUNS_BEFORE_S, _RETRY_S = 1.0, 0.1
_SHARDS = ("first", "second")


@benchmark("kubernetes-failover", "SIGKILL of a shard -> the first command served by the other one, on a real kubelet")
def kubernetes_failover() -> Sequence[Figure]:
    with tempfile.TemporaryDirectory() as folder, running_cluster(ClusterOptions(has_services=True)) as cluster:
        site = Site(cluster)
        site.prepare(Path(folder))
        root = Path(folder) / "installation"
        root.mkdir()
        installation = Installation(root, site)
        try:
            installation.start()
            for name in _SHARDS:
                installation.start_shard(name)
            is_there = "SELECT count(*) FROM agents WHERE status = 'ALIVE' AND images LIKE '%base/python%'"
            installation.until(lambda: installation.rows(is_there) == [(1,)], f"the agent of {NODE_NAME}", 120)
            return _measure(installation)
        except RuntimeError as e:
            raise RuntimeError(f"{e}\n{installation.log()}") from e
        finally:
            installation.stop()


def _measure(installation: Installation) -> Sequence[Figure]:
    env = installation.users["user"]
    api = Api(env["BACKEND_ENDPOINT"], env["BACKEND_ACCESS_KEY"], env["BACKEND_SECRET_KEY"])
    busy, other = (api.create(image=PYTHON_IMAGE, mem="128m", cpu="1") for _ in range(2))
    silences: list[float] = []
    lost = 0
    for _ in range(ROUNDS):
        answer = api.call("POST", f"/session/{busy}", {"mode": "query", "code": _CODE})["result"]
        time.sleep(_RUNS_BEFORE_S)
        leading = _leader(installation)
        installation.kill(leading)
        killed_at = time.monotonic()
        _serve(api, other)
        silences.append(time.monotonic() - killed_at)
        installation.start_shard(leading)
        printed = ""
        while answer["status"] != "finished":
            printed += "".join(part[1] for part in answer["console"] if part[0] == "stdout")
            step = {"mode": "continue", "code": "", "runId": answer["runId"]}
            answer = api.call("POST", f"/session/{busy}", step)["result"]
        printed += "".join(part[1] for part in answer["console"] if part[0] == "stdout")
        lost += abs(_NUMBERS - len(printed.split())) + (printed.split() != [str(i) for i in range(_NUMBERS)])
    ended = installation.rows("SELECT count(*) FROM sessions WHERE status != 'RUNNING'")[0][0]
    for name in (busy, other):
        api.destroy(name)
    return [
        Figure(
            name="kubernetes-failover",
            value=max(silences),
            unit="s",
            target=f"<= {FAILOVER_S:g} s, with no session ended and no line lost or doubled; a real kubelet",
            holds=max(silences) <= FAILOVER_S and not lost and not ended,
            detail={"least_s": min(silences), "sessions_ended": float(ended), "lines_lost": float(lost)},
        )
    ]


def _leader(installation: Installation) -> str:
    """Returns the process that holds the Lease: the log of each says so, in a line with its process id."""
    for name in _SHARDS:
        lines = (installation.root / f"{name}.log").read_text().splitlines()
        pid = str(installation.daemons[name].pid)
        if any(" leads by the lease" in line and line.split()[1:2] == [pid] for line in lines):
            return name
    raise RuntimeError("no shard leads")


def _serve(api: Api, session: str) -> None:
    """Returns once a command is served."""
    while True:
        try:
            if execute_once(api, session, "print(6 * 7)") == "42\n":
                return
        except (RuntimeError, OSError):
            time.sleep(_RETRY_S)
