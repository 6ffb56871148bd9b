"""Runs a zygote, which forks plugin hosts on request: python -m ai.backend.pluginhost REQUESTS (see .zygote)."""

from __future__ import annotations

import socket
import sys


def main() -> int:
    if len(sys.argv) != 2:
        sys.stderr.write(f"{__doc__}\n")
        return 2
    from ai.backend.pluginhost.zygote import Zygote

    Zygote(socket.socket(fileno=int(sys.argv[1]))).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
