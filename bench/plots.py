"""Plots as PNG under docs/, drawn by matplotlib in an environment of its own: nothing else here needs it.

python -m bench.plots scheduler FIGURES    # again, from lines that `bench/run scheduler` has printed
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.environments import ensure

DOCS = Path(__file__).parents[1] / "docs"
MATPLOTLIB = "matplotlib==3.10.7"
RATES = "scheduler-rates.png"


def draw(name: str, panels: Sequence[Mapping[str, Any]]) -> bool:
    """Draw panels, as bench/plot_worker.py describes them, into `docs/NAME`. What was measured is worth more than its
    picture: where matplotlib cannot be installed, that is told, and False returned."""
    try:
        python = ensure("bench-plot-venv", (MATPLOTLIB,))
        command = [str(python), str(Path(__file__).parent / "plot_worker.py"), str(DOCS / name)]
        subprocess.run(command, input=json.dumps(panels), text=True, check=True)
    except (subprocess.CalledProcessError, OSError) as e:
        sys.stderr.write(f"docs/{name} is not drawn: {e}\n")
        return False
    sys.stderr.write(f"  docs/{name} is drawn\n")
    return True


def draw_rates(figures: Sequence[Mapping[str, Any]]) -> bool:
    """The decisions in a second of each load, from figures as `bench/run` prints them."""
    bars = [
        {
            "name": f["name"].replace("the same ", "5,000 agents ").replace(", fifo, ", "\n"),
            "value": f["value"],
            "mark": float(f["target"].split()[1].rstrip(",").replace(",", "")),
        }
        for f in figures
        if f["unit"].startswith("decisions")
    ]
    title = "Decisions in a second of CPU (line: the target)"
    return draw(RATES, [{"kind": "bars", "title": title, "bars": bars}])


def main(argv: Sequence[str]) -> int:
    if len(argv) != 2 or argv[0] != "scheduler":
        sys.stderr.write("usage: python -m bench.plots scheduler FIGURES\n")
        return 2
    lines = Path(argv[1]).read_text().splitlines()
    return 0 if draw_rates([json.loads(line) for line in lines if line.startswith("{")]) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
