"""Builds and runs Kubernetes clusters of this machine.

Usage: python -m tools.kube (list | build [FAMILY ...] | run [node] [kwok] [services] [gvisor] | sweep)

  list   name the families of programs, their folders, and what is built
  build  build the named families, or all, where they are missing, and say how long each took
  run    start a cluster with these parts, and end it at Ctrl-C
  sweep  remove what clusters have left whose owners were killed

KUBE_VERSION=1.34 selects another release of Kubernetes.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress

from tools.kube.build import BuildFailed, build
from tools.kube.cluster import ClusterOptions, running_cluster
from tools.kube.daemon import DaemonFailed
from tools.kube.families import UnknownRelease, families
from tools.kube.place import PlaceFailed, sweep


def main(arguments: Sequence[str]) -> int:
    """Run one command; 1 with a line that says why if it fails."""
    try:
        match arguments:
            case ["list"]:
                for family in families().values():
                    print(f"{family.name:18} {'built  ' if family.is_built() else 'missing'} {family.place()}")
            case ["build", *names]:
                return _build(names)
            case ["run", *parts] if set(parts) <= {"node", "kwok", "services", "gvisor"}:
                _run(frozenset(parts))
            case ["sweep"]:
                sweep()
            case _:
                print(__doc__)
                return 2
    except (BuildFailed, DaemonFailed, PlaceFailed, UnknownRelease) as e:
        print(e, file=sys.stderr)
        return 1
    return 0


def _build(names: Sequence[str]) -> int:
    available = families()
    if unknown := [name for name in names if name not in available]:
        print(f"no family {', '.join(unknown)}; the families are {', '.join(available)}", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # the compiler ends with this process
    started = time.monotonic()
    build([available[name] for name in names] if names else available.values())
    print(f"everything is built, in {time.monotonic() - started:.0f} s")
    return 0


def _run(parts: frozenset[str]) -> None:
    options = ClusterOptions(
        has_node="node" in parts,
        has_kwok="kwok" in parts,
        has_services="services" in parts,
        has_gvisor="gvisor" in parts,
    )
    with running_cluster(options) as cluster:
        print(f"The cluster runs; its logs are in {cluster.folder}. Ctrl-C ends it.")
        print(f"  kubectl: {cluster.program('kubectl')} --kubeconfig={cluster.kubeconfig}")
        print(f"  node and API server: {cluster.address}; this machine, for pods: {cluster.host_address}", flush=True)
        with suppress(KeyboardInterrupt):
            signal.pause()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
