"""Defines benchmarks and their figures, which either hold their target or do not."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A measured number with its reference and target.

    `reference` is what the same run measured for the floor (bare bubblewrap, a bare handler ...), or what was
    published for the peer, in the same unit as `value`; `ratio` is value over reference. `holds` says whether
    `target` is met.
    """

    name: str
    value: float
    unit: str
    target: str
    holds: bool
    reference: float | None = None
    reference_is: str = ""
    detail: dict[str, float] = field(default_factory=dict)

    def as_json(self) -> str:
        """Return the figure as one line of JSON, with the keys that `bench/run` promises."""
        ratio = self.value / self.reference if self.reference else None
        return json.dumps(
            {
                "name": self.name,
                "value": round(self.value, 4),
                "unit": self.unit,
                "reference": None if self.reference is None else round(self.reference, 4),
                "reference_is": self.reference_is,
                "ratio": None if ratio is None else round(ratio, 4),
                "target": self.target,
                "holds": self.holds,
                "detail": {key: round(value, 4) for key, value in self.detail.items()},
            }
        )


@dataclass(frozen=True, slots=True)
class Benchmark:
    """An entry of `bench/run --list`."""

    name: str
    summary: str
    measure: Callable[[], Sequence[Figure]]
    needs: str = ""

    def line(self, width: int) -> str:
        """Returns its line of the list, with the option that it cannot do without."""
        return f"{self.name:{width}} {self.summary}" + (f" [needs --{self.needs}]" if self.needs else "")


REGISTRY: dict[str, Benchmark] = {}
OPTIONS: dict[str, str] = {}
"""What was given on the command line as ``--name value``."""


def option(name: str) -> str:
    """Raises LookupError: it was not given."""
    if name not in OPTIONS:
        raise LookupError(f"this benchmark needs --{name}")
    return OPTIONS[name]


def benchmark(
    name: str, summary: str, *, needs: str = ""
) -> Callable[[Callable[[], Sequence[Figure]]], Callable[[], Sequence[Figure]]]:
    """Register a function under the name by which `bench/run` knows it."""

    def register(measure: Callable[[], Sequence[Figure]]) -> Callable[[], Sequence[Figure]]:
        if name in REGISTRY:
            raise ValueError(f"two benchmarks are named {name!r}")
        REGISTRY[name] = Benchmark(name, summary, measure, needs)
        return measure

    return register


def spread(samples: Sequence[float]) -> dict[str, float]:
    """Describe samples beside their median: how many, the smallest, the ninth decile, the largest."""
    ordered = sorted(samples)
    return {
        "samples": float(len(ordered)),
        "min": ordered[0],
        "p50": statistics.median(ordered),
        "p90": ordered[min(len(ordered) - 1, int(len(ordered) * 0.9))],
        "max": ordered[-1],
    }
