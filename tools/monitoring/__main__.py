"""Writes `deploy/prometheus` and `deploy/grafana`; with `--check` says whether they are up to date."""

from __future__ import annotations

import sys

from tools.monitoring.files import generated, stale

if __name__ == "__main__":
    if "--check" in sys.argv[1:]:
        names = stale()
        print("\n".join(f"{name} is not up to date: python -m tools.monitoring" for name in names))
        sys.exit(bool(names))
    for path, text in generated().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
