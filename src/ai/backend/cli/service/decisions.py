"""Decisions of autoscaling as lines of a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ai.backend.cli.framework.values import readable_time


def decision_facts(decision: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Returns the last decision of autoscaling with its inputs as facts to print."""
    inputs = ", ".join(f"{name}={value}" for name, value in decision["inputs"].items() if value is not None)
    change = f"{decision['before']} to {decision['desired']} replicas ({decision['reason']})"
    return [
        ("autoscaling", f"{change} at {readable_time(decision['at'])}"),
        ("because", decision["explanation"]),
        ("from", inputs),
    ]
