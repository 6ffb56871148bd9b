"""``python -m ai.backend.agent.watcher``: the same as ``backend.ai ag watcher`` (spec 03-02)."""

from __future__ import annotations

import sys


def main() -> None:
    from ai.backend.agent.main import watcher

    arguments = ["--config" if argument == "--config-path" else argument for argument in sys.argv[1:]]
    watcher.main(args=arguments, prog_name="python -m ai.backend.agent.watcher")


if __name__ == "__main__":
    main()
