"""Builds and runs Kubernetes clusters of this machine.

Usage: python -m tools.kube (list | build [FAMILY ...])

  list   name the families of programs, their folders, and what is built
  build  build the named families, or all, where they are missing, and say how long each took

KUBE_VERSION=1.34 selects another release of Kubernetes.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

from tools.kube.build import BuildFailed, build
from tools.kube.families import UnknownRelease, families


def main(arguments: Sequence[str]) -> int:
    """Run one command; 1 with a line that says why if it fails."""
    try:
        match arguments:
            case ["list"]:
                for family in families().values():
                    print(f"{family.name:18} {'built  ' if family.is_built() else 'missing'} {family.place()}")
            case ["build", *names]:
                return _build(names)
            case _:
                print(__doc__)
                return 2
    except (BuildFailed, UnknownRelease) as e:
        print(e, file=sys.stderr)
        return 1
    return 0


def _build(names: Sequence[str]) -> int:
    known = families()
    if unknown := [name for name in names if name not in known]:
        print(f"no family {', '.join(unknown)}; the families are {', '.join(known)}", file=sys.stderr)
        return 2
    started = time.monotonic()
    build([known[name] for name in names] if names else known.values())
    print(f"everything is built, in {time.monotonic() - started:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
