"""Draws what tokens used as a picture, by Matplotlib, which the extra ``plots`` brings."""

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
    tokens, requests = figure.subplots(2, 1, sharex=True)
    for axes, what, series in ((tokens, "tokens", _SERIES), (requests, "requests", _ANSWERS)):
        _draw_bars(axes, groups, series)
        axes.set_ylabel(what)
        axes.legend(loc="upper left", fontsize="small")
    labels = [_label(group, report["by"]) for group in groups]
    requests.set_xticks(range(len(groups)), labels, rotation=90 if len(groups) > 6 else 0, fontsize="small")
    try:
        figure.savefig(path, dpi=120)
    except (OSError, ValueError) as e:
        raise click.ClickException(f"{path} cannot be written: {e}") from None


def _draw_bars(axes: Any, groups: Sequence[Mapping[str, Any]], series: Sequence[tuple[str, str, Any]]) -> None:
    bottoms = [0] * len(groups)
    for name, colour, value_of in series:
        values = [max(0, value_of(group)) for group in groups]
        axes.bar(range(len(groups)), values, bottom=bottoms, label=name, color=colour)
        bottoms = [low + value for low, value in zip(bottoms, values, strict=True)]
    axes.margins(x=0.01)


def _label(group: Mapping[str, Any], by: str) -> str:
    text = str(group["name"] or group["key"] or "-")
    if by == "day":
        return text[:10]
    return text[:16].replace("T", " ") if by == "hour" else text[:12]
