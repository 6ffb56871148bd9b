"""Runs a command on Debian's kernel with the unified hierarchy of control groups (version 2), in a virtual machine.

Usage: python -m tools.unified [COMMAND [ARGUMENT ...]]

Without a command it runs the contract suites of the process runtime and of Docker.
It needs root, and Debian's packages qemu-system-x86, cpio, kmod and busybox-static.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from tools.unified.kernel import MachineFailed
from tools.unified.machine import run

_REPOSITORY = Path(__file__).resolve().parents[2]


def main(arguments: Sequence[str]) -> int:
    """Run one command; its exit status is ours."""
    if arguments[:1] in (["-h"], ["--help"]):
        print(__doc__)
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # which ends the machine and removes its disk
    try:
        return run(arguments or _suites(), directory=_REPOSITORY)
    except MachineFailed as e:
        print(e, file=sys.stderr)
        return 1


def _suites() -> list[str]:
    return [sys.executable, "-m", "pytest", "-q", "-n", "2", "tests/contract/runtime"]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
