"""Collects the checks of every accelerator plugin, which ComputePluginContract and ``backend.ai accelerator check``
run.

A check is an async function of a :class:`Subject`. It returns, raises :class:`CheckFailed` with one sentence, or raises
:class:`NotApplicable` where the plugin does not claim what is checked. None needs pytest.
"""

from ai.backend.plugin.testing.accelerator.checks import allocation, devices, hooks, metrics, powers
from ai.backend.plugin.testing.accelerator.checks.registry import (
    Check,
    CheckFailed,
    NotApplicable,
    Outcome,
    Result,
    run_all,
    run_check,
)
from ai.backend.plugin.testing.accelerator.checks.subject import Subject

__all__ = ["CHECKS", "Check", "CheckFailed", "NotApplicable", "Outcome", "Result", "Subject", "run_all", "run_check"]

CHECKS: tuple[Check, ...] = (*devices.CHECKS, *allocation.CHECKS, *hooks.CHECKS, *metrics.CHECKS, *powers.CHECKS)
"""All checks in the order of their execution: the first ones have the clearest messages."""
