"""`backend.ai` with one difference: host images ask for no processor and for little memory.

With the real minimum (one processor, 64 MiB) a machine would need 500 processors for 500 sessions. What is measured
with this, memory and leaks, does not depend on the minimum.

Usage: python -m bench.small_images up --data-dir DIR ...    (in the foreground)
"""

from __future__ import annotations

from ai.backend.cli.main import main
from ai.backend.runtime.process import images

_standard_labels = images.standard_labels


def _small_labels(runtime: str, runtime_path: str) -> dict[str, str]:
    small = {"ai.backend.resource.min.cpu": "0", "ai.backend.resource.min.mem": "16m"}
    return _standard_labels(runtime, runtime_path) | small


if __name__ == "__main__":
    images.standard_labels = _small_labels
    main()
