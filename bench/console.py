"""Measures the web console in Chromium, on a cluster of its own: first paint, keystrokes and a long list."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import sqlalchemy
from tools.webui import WEBUI, ensure_packages, node_environment

from ai.backend.infra.console.build import build_bundle
from ai.backend.infra.console.places import cache_folder
from ai.backend.manager.sessions.tables import kernels, sessions
from bench.cluster import Cluster, down, temporary_folder, up
from bench.figures import Figure, benchmark
from bench.history import copy_rows

CHROMIUM = "/usr/bin/chromium"
SESSIONS = int(os.environ.get("CONSOLE_SESSIONS", "10000"))
SLOWED = 4
PAINT_LIMIT_MS, ECHO_LIMIT_MS, ROWS_LIMIT_MS, LEAST_FRAMES = 2_500.0, 30.0, 500.0, 55.0
_TIMEOUT_S = 300.0
_CONSENT = "[services]\nshared-network = true\n"


def _measure(folder: Path, what: str, **facts: Any) -> dict[str, float]:
    """Returns what `webui/e2e/measure.mjs` measures at the cluster of a folder. Raises RuntimeError."""
    ports = json.loads((folder / "cluster.json").read_text())
    site = {
        "url": f"http://127.0.0.1:{ports['web_port']}",
        "storage": f"http://127.0.0.1:{ports['storage_port']}",
        "chromium": CHROMIUM,
        "measure": what,
        "user": {"email": "user@local", "password": (folder / "keys" / "user.password").read_text()},
        **facts,
    }
    done = subprocess.run(
        ["node", str(WEBUI / "e2e" / "measure.mjs")],
        env={**node_environment(), "BACKENDAI_SITE": json.dumps(site)},
        capture_output=True, text=True, timeout=_TIMEOUT_S, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        raise RuntimeError(f"the browser ended with {done.returncode}: {done.stderr}")
    measured: dict[str, float] = json.loads(done.stdout)
    return measured


def _build() -> None:
    ensure_packages()
    build_bundle(WEBUI, cache_folder(), report=print)


def _figure(
    name: str, value: float, unit: str, limit: float, *, detail: dict[str, float], least: bool = False
) -> Figure:
    holds = value >= limit if least else value <= limit
    sign = ">=" if least else "<="
    return Figure(name=name, value=value, unit=unit, target=f"{sign} {limit:g} {unit}", holds=holds, detail=detail)


@benchmark("console-paint", "from an empty cache by the login form to the first page, on a processor slowed 4 times")
def paint() -> Sequence[Figure]:
    _build()
    with temporary_folder() as folder:
        up(folder)
        try:
            measured = _measure(folder, "paint", slowed=SLOWED)
        finally:
            down(folder)
    form, first = measured["form"], measured["first"]
    detail = {"form-ms": form, "log-in-to-first-page-ms": first}
    return [_figure("console-paint", form + first, "ms", PAINT_LIMIT_MS, detail=detail)]


@benchmark("console-keystroke", "a key typed into the terminal of the console until the frame that shows its echo")
def keystroke() -> Sequence[Figure]:
    _build()
    with temporary_folder() as folder:
        (folder / "agent.toml").write_text(_CONSENT)
        cluster = up(folder, "--agent-config", str(folder / "agent.toml"))
        try:
            name = cluster.user.create(mem="256m")
            measured = _measure(folder, "keystroke", session=_id_of(cluster, name))
        finally:
            down(folder)
    return [_figure("console-keystroke", measured["p50"], "ms", ECHO_LIMIT_MS, detail={"p90-ms": measured["p90"]})]


def _id_of(cluster: Cluster, name: str) -> str:
    (match,) = cluster.user.call("GET", f"/session/_/match?id={name}")["matches"]
    return str(match["id"])


def _fill(folder: Path, template_id: str) -> None:
    """Copies an ended session so that there are SESSIONS of them; the cluster must be down."""
    engine = sqlalchemy.create_engine(f"sqlite:///{folder / 'manager' / 'backendai.db'}")
    with engine.begin() as connection:
        for table in (sessions, kernels):
            copy_rows(connection, table, template_id, SESSIONS - 1)
    engine.dispose()


@benchmark("console-list", f"first rows of {SESSIONS:,} sessions, and frames per second while they are scrolled")
def session_list() -> Sequence[Figure]:
    _build()
    with temporary_folder() as folder:
        cluster = up(folder)
        name = cluster.user.create(mem="256m")
        template = _id_of(cluster, name)
        cluster.user.destroy(name)
        down(folder)
        _fill(folder, template)
        up(folder)
        try:
            measured = _measure(folder, "list")
        finally:
            down(folder)
    detail = {"opened-anew-ms": measured["opened"], "nodes": measured["nodes"]}
    return [
        _figure("console-list-rows", measured["changed"], "ms", ROWS_LIMIT_MS, detail=detail),
        _figure("console-list-scrolling", measured["rate"], "frames/s", LEAST_FRAMES, detail={}, least=True),
    ]
