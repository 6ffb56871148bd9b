"""Checks of what every accelerator plugin promises.

A check is an async function of a :class:`Subject`. It returns, raises :class:`CheckFailed` with one sentence, or raises
:class:`NotApplicable` where the plugin does not claim what is checked. Both :class:`ComputePluginContract` and
``backend.ai accelerator check`` run what :data:`CHECKS` lists, so neither knows more than the other. None needs pytest.
"""

from ai.backend.plugin.testing.accelerator.checks import (
    allocation,
    calls,
    devices,
    hooks,
    identity,
    metrics,
    partitions,
    powers,
)
from ai.backend.plugin.testing.accelerator.checks.registry import Check
from ai.backend.plugin.testing.accelerator.checks.results import CheckFailed, NotApplicable
from ai.backend.plugin.testing.accelerator.checks.running import Outcome, Result, run_all, run_check
from ai.backend.plugin.testing.accelerator.checks.subject import Subject

__all__ = ["CHECKS", "Check", "CheckFailed", "NotApplicable", "Outcome", "Result", "Subject", "run_all", "run_check"]

CHECKS: tuple[Check, ...] = tuple(
    check
    for module in (identity, devices, allocation, hooks, calls, metrics, powers, partitions)
    for check in module.CHECKS
)
"""In the order in which they are run: the first say most plainly what is wrong."""
