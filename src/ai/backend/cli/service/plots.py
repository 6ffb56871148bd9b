"""Draws the usage of tokens as a picture by Matplotlib, which the extra ``plots`` installs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

_MAX_BARS = 400
_SERIES = (
    ("prompt", "#2a6f97", lambda group: group["prompt_tokens"] - group["cached_tokens"]),
    ("cached", "#a9d6e5", lambda group: group["cached_tokens"]),
    ("output", "#e07a5f", lambda group: group["output_tokens"]),
)
_ANSWERS = (
    ("answered", "#81b29a", lambda group: group["requests"] - group["errors"]),
    ("failed", "#bc4749", lambda group: group["errors"]),
)


def draw_usage(report: Mapping[str, Any], path: Path, *, title: str) -> None:
    """Writes the use by group as a picture of two panels, tokens and requests, in the format of the file's name. Raises
    ClickException without Matplotlib, for a format that it does not have, and for a file that cannot be written."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise click.ClickException("Plots need Matplotlib: pip install 'backendai[plots]'") from None
    groups = report["groups"][-_MAX_BARS:]
    figure = Figure(figsize=(max(6.0, min(24.0, 0.35 * len(groups) + 3)), 6.0), layout="constrained")
    figure.suptitle(title)
    token_axes, request_axes = figure.subplots(2, 1, sharex=True)
    for axes, quantity_name, series in ((token_axes, "tokens", _SERIES), (request_axes, "requests", _ANSWERS)):
        _draw_bars(axes, groups, series)
        axes.set_ylabel(quantity_name)
        axes.legend(loc="upper left", fontsize="small")
    labels = [_group_label(group, report["by"]) for group in groups]
    request_axes.set_xticks(range(len(groups)), labels, rotation=90 if len(groups) > 6 else 0, fontsize="small")
    try:
        figure.savefig(path, dpi=120)
    except (OSError, ValueError) as e:
        raise click.ClickException(f"{path} cannot be written: {e}") from None


def _draw_bars(axes: Any, groups: Sequence[Mapping[str, Any]], series: Sequence[tuple[str, str, Any]]) -> None:
    bar_bottoms = [0] * len(groups)
    for name, colour, value_of in series:
        values = [max(0, value_of(group)) for group in groups]
        axes.bar(range(len(groups)), values, bottom=bar_bottoms, label=name, color=colour)
        bar_bottoms = [bottom + value for bottom, value in zip(bar_bottoms, values, strict=True)]
    axes.margins(x=0.01)


def _group_label(group: Mapping[str, Any], grouping: str) -> str:
    group_name = str(group["name"] or group["key"] or "-")
    if grouping == "day":
        return group_name[:10]
    return group_name[:16].replace("T", " ") if grouping == "hour" else group_name[:12]
