"""`bench/run`: name the benchmarks, run the chosen ones, print their figures last."""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Sequence

from bench.figures import OPTIONS, REGISTRY, Figure

# Every module that registers benchmarks, in the order of the table in docs/benchmarks.md.
MODULES = (
    "sessions",
    "path",
    "life",
    "history",
    "migrations",
    "operations",
    "scrape",
    "jobs",
    "docker",
    "gvisor",
    "server",
    "web",
    "terminal",
    "console",
    "tunnel",
    "proxy",
    "proxy_haproxy",
    "proxy_streams",
    "proxy_traefik",
    "serving",
    "serving_path",
    "gateway",
    "command_line",
    "session_rates",
    "sleepers",
    "gathering",
    "allocation",
    "slots",
    "transfers",
    "storage",
    "fragmentation",
    "partitions",
    "scheduler",
    "device_requests",
    "enqueue",
    "swarm",
    "explain",
    "kubernetes",
    "shard",
    "kubernetes_pods",
    "kubernetes_rate",
    "kubernetes_shard",
    "kubernetes_failover",
    "kubeacc_node",
    "kubeacc_taint",
    "kube_acc",
)

USAGE = "usage: bench/run --list | bench/run NAME... [--data FOLDER]\n"


def main(argv: Sequence[str]) -> int:
    for module in MODULES:
        importlib.import_module(f"bench.{module}")
    if list(argv) == ["--list"]:
        width = max(map(len, REGISTRY))
        for entry in REGISTRY.values():
            sys.stdout.write(f"{entry.line(width)}\n")
        return 0
    argv = list(argv)
    if "--data" in argv[:-1]:
        place = argv.index("--data")
        OPTIONS["data"] = argv[place + 1]
        del argv[place : place + 2]
    unknown = [name for name in argv if name not in REGISTRY]
    if unknown or not argv:
        sys.stderr.write(USAGE)
        if unknown:
            sys.stderr.write(f"no benchmark {', '.join(unknown)}; there are {', '.join(REGISTRY)}\n")
        return 2
    figures: list[Figure] = []
    broken = False
    for name in argv:
        sys.stderr.write(f"{name}: {REGISTRY[name].summary}\n")
        try:
            figures += REGISTRY[name].measure()
        except Exception:  # noqa: BLE001  # one that cannot be measured must not hide the others; it fails the run
            traceback.print_exc()
            broken = True
    for figure in figures:
        sys.stdout.write(figure.as_json() + "\n")
    return 0 if not broken and all(figure.holds for figure in figures) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
