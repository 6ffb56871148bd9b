"""`backend.ai` with two differences: host images ask for no processor and for little memory, and statistics are
gathered every BENCH_STATISTICS_S seconds where that is set.

With the real minimum (one processor, 64 MiB) a machine would need 500 processors for 500 sessions. What is measured
with this, memory and leaks, does not depend on the minimum.

Usage: python -m bench.small_images up --data-dir DIR ...    (in the foreground)
"""

from __future__ import annotations

import os
from typing import Any

from ai.backend.cli.main import main
from ai.backend.runtime.process import images
from ai.backend.standalone import agent_daemon

_standard_labels = images.standard_labels
_agent_settings = agent_daemon.agent_settings


def _small_labels(runtime: str, runtime_path: str) -> dict[str, str]:
    small = {"ai.backend.resource.min.cpu": "0", "ai.backend.resource.min.mem": "16m"}
    return _standard_labels(runtime, runtime_path) | small


def _settings(*args: Any, **kw: Any) -> dict[str, Any]:
    return _agent_settings(*args, **kw) | {"intervals": {"statistics": os.environ["BENCH_STATISTICS_S"]}}


if __name__ == "__main__":
    images.standard_labels = _small_labels
    if "BENCH_STATISTICS_S" in os.environ:
        agent_daemon.agent_settings = _settings
    main()
