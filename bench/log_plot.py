"""A line plot with two logarithmic axes, as SVG text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil, floor, log10

WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT = 720, 400, 70, 50, 40, 210
COLOURS = ("#0b6e99", "#b3541e", "#4c9f70", "#8a2be2")


def log_plot(title: str, x_name: str, y_name: str, xs: Sequence[float], lines: Mapping[str, Sequence[float]]) -> str:
    """Return the picture; every value must be positive."""
    low = floor(log10(min(min(ys) for ys in lines.values())))
    high = ceil(log10(max(max(ys) for ys in lines.values())))
    first, last = log10(xs[0]), log10(xs[-1])

    def x(value: float) -> float:
        return LEFT + (log10(value) - first) / (last - first) * (WIDTH - LEFT - RIGHT)

    def y(value: float) -> float:
        return HEIGHT - BOTTOM - (log10(value) - low) / (high - low) * (HEIGHT - BOTTOM - TOP)

    def text(at_x: float, at_y: float, words: str, anchor: str = "middle", colour: str = "#222") -> str:
        return f'<text x="{at_x:.0f}" y="{at_y:.0f}" text-anchor="{anchor}" fill="{colour}">{words}</text>'

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}"',
        ' font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
        text((LEFT + WIDTH - RIGHT) / 2, 22, f"{title}, {y_name}"),
        text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 12, x_name),
    ]
    for power in range(low, high + 1):
        at = y(10.0**power)
        parts.append(f'<path d="M{LEFT} {at:.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>')
        parts.append(text(LEFT - 8, at + 4, f"{10.0**power:,g}", "end"))
    parts += [text(x(value), HEIGHT - BOTTOM + 18, f"{value:g}") for value in xs]
    free = float(HEIGHT)
    for (name, ys), colour in sorted(zip(lines.items(), COLOURS, strict=False), key=lambda line: line[0][1][-1]):
        points = " ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in zip(xs, ys, strict=True))
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        at = min(y(ys[-1]) + 4, free)
        free = at - 15
        parts.append(text(WIDTH - RIGHT + 8, at, f"{name}: {ys[-1]:,.0f} {y_name}", "start", colour))
    return "\n".join([*parts, "</svg>", ""])
