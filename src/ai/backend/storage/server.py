"""Entry point ``python -m ai.backend.storage.server``, the same as the command ``start-server`` (spec 03-02)."""

from __future__ import annotations

import sys


def main() -> None:
    from ai.backend.storage.main import main as group

    arguments = ["--config" if argument == "--config-path" else argument for argument in sys.argv[1:]]
    group.main(args=["start-server", *arguments], prog_name="python -m ai.backend.storage.server")


if __name__ == "__main__":
    main()
