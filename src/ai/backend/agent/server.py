"""``python -m ai.backend.agent.server``: the same as its command ``start-server`` (spec 03-02)."""

from __future__ import annotations

import sys


def main() -> None:
    from ai.backend.agent.main import main as group

    arguments = ["--config" if argument == "--config-path" else argument for argument in sys.argv[1:]]
    group.main(args=["start-server", *arguments], prog_name="python -m ai.backend.agent.server")


if __name__ == "__main__":
    main()
