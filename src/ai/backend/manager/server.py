"""Starts the manager by ``python -m ai.backend.manager.server``, like ``backend.ai mgr start-server`` (spec 03-02)."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def with_command_last(arguments: Sequence[str]) -> list[str]:
    """Returns the command-line arguments with the daemon's options moved before the name of its command."""
    return [*("--config" if argument == "--config-path" else argument for argument in arguments), "start-server"]


def main() -> None:
    from ai.backend.manager.main import main as group

    group.main(args=with_command_last(sys.argv[1:]), prog_name="python -m ai.backend.manager.server")


if __name__ == "__main__":
    main()
