"""Runs a command on Debian's kernel with the unified hierarchy of control groups (version 2), in a virtual machine.

Usage: python -m tools.unified [--pods] [COMMAND [ARGUMENT ...]]

Without a command it runs the contract suites of the process runtime and of Docker.

With --pods the machine has the node of a Kubernetes cluster, whose control plane runs on this machine; without a
command it runs the contract suite of pods. That needs the programs that `python -m tools.kube build` makes. By
translation, so without KVM, it takes forty minutes to an hour.

It needs root, and Debian's packages qemu-system-x86, cpio, kmod and busybox-static.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tools.kube.build import BuildFailed
from tools.kube.daemon import DaemonFailed
from tools.kube.place import PlaceFailed
from tools.unified.control_plane import running_control_plane
from tools.unified.kernel import MachineFailed
from tools.unified.machine import SHARED, run

_REPOSITORY = Path(__file__).resolve().parents[2]
_PYTEST = (sys.executable, "-m", "pytest")


def main(arguments: Sequence[str]) -> int:
    """Run one command; its exit status is ours."""
    if arguments[:1] in (["-h"], ["--help"]):
        print(__doc__)
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # which ends the machine and removes its disk
    try:
        if arguments[:1] == ["--pods"]:
            return _run_with_node(arguments[1:] or [*_PYTEST, "-v", "tests/kubernetes/runtime/test_contract.py"])
        return run(arguments or [*_PYTEST, "-q", "-n", "2", "tests/contract/runtime"], directory=_REPOSITORY)
    except (BuildFailed, DaemonFailed, MachineFailed, PlaceFailed) as e:
        print(e, file=sys.stderr)
        return 1


def _run_with_node(command: Sequence[str]) -> int:
    """Run a command in a machine that has a cluster's control plane, and images made here, where that is quicker."""
    with running_control_plane() as connection, tempfile.TemporaryDirectory(prefix="bai-images-") as folder:
        subprocess.run([sys.executable, "-m", "tests.kubernetes.runtime.sites", folder], cwd=_REPOSITORY, check=True)
        return run(
            command,
            directory=_REPOSITORY,
            environment={"BACKENDAI_KUBE_IMAGES": str(SHARED / "images")},
            connection=connection,
            shared={"images": Path(folder)},
            timeout_s=3 * 3600.0,
        )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
