"""Entry point ``python -m ai.backend.web.server``, the same as the command ``start-server`` (spec 03-02:1543)."""

from __future__ import annotations

import sys


def main() -> None:
    from ai.backend.web.main import main as group

    group.main(args=["start-server", *sys.argv[1:]], prog_name="python -m ai.backend.web.server")


if __name__ == "__main__":
    main()
