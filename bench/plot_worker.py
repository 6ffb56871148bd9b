"""Runs in the environment of bench/plots.py: draws the panels that come as JSON into the PNG file that is named.

A panel has a `title` and is of `kind`:

* `lines`: `x`, `y` (names of the axes), `lines`: [{name, xs, ys, spread (optional, around ys)}], `log` for both axes;
* `bars`: `bars`: [{name, value, mark (a line at the target)}].
"""

from __future__ import annotations

import io
import json
import sys
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt  # after the choice of what draws
from matplotlib.ticker import FuncFormatter, NullFormatter
from PIL import Image

COLOURS = ("#0b6e99", "#b3541e", "#4c9f70", "#8a5fb0", "#888888", "#c4a000")
_PLAIN = FuncFormatter(lambda value, _: f"{value:,g}")


def lines(axes: Any, panel: dict[str, Any]) -> None:
    for colour, line in zip(COLOURS, panel["lines"], strict=False):
        xs, ys = line["xs"], line["ys"]
        axes.plot(xs, ys, color=colour, label=line["name"], linewidth=1.8, marker="o", markersize=3)
        if spread := line.get("spread"):
            low = [y - s for y, s in zip(ys, spread, strict=True)]
            high = [y + s for y, s in zip(ys, spread, strict=True)]
            axes.fill_between(xs, low, high, color=colour, alpha=0.25, linewidth=0)
    axes.set_xlabel(panel["x"])
    axes.set_ylabel(panel["y"])
    if panel.get("log"):
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xticks(panel["lines"][0]["xs"])
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.yaxis.set_major_formatter(_PLAIN)
    axes.xaxis.set_major_formatter(_PLAIN)
    axes.grid(visible=True, color="#e4e4e4")
    axes.legend(frameon=False, fontsize=8)


def bars(axes: Any, panel: dict[str, Any]) -> None:
    rows = panel["bars"][::-1]
    axes.barh([b["name"] for b in rows], [b["value"] for b in rows], color=COLOURS[0], height=0.55)
    for at, bar in enumerate(rows):
        axes.text(bar["value"], at, f" {bar['value']:,.0f}", va="center", fontsize=8)
        axes.plot([bar["mark"]] * 2, [at - 0.4, at + 0.4], color=COLOURS[1], linewidth=2)
    axes.set_xlim(0, 1.12 * max(b["value"] for b in rows))
    axes.xaxis.set_major_formatter(_PLAIN)
    axes.tick_params(axis="y", labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)


def main() -> None:
    panels = json.load(sys.stdin)
    rows = -(-len(panels) // 2)
    size = (7.6, 4.2) if len(panels) == 1 else (9.0, 3.4 * rows)
    figure, axes = plt.subplots(rows, min(2, len(panels)), figsize=size, squeeze=False)
    for panel, one in zip(panels, axes.flat, strict=False):
        {"lines": lines, "bars": bars}[panel["kind"]](one, panel)
        one.set_title(panel["title"], fontsize=10)
    figure.tight_layout()
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=100)
    Image.open(drawn).convert("RGB").quantize(64).save(sys.argv[1], optimize=True)


if __name__ == "__main__":
    main()
