"""Reads the idle rules of an installation, and combines them with a resource policy (peer facts 4.5 and 4.8, spec
03-07, 03-09).

The shared configuration, below ``config/idle``::

    enabled                                                     network_timeout,session_lifetime,utilization
    checkers/network_timeout/threshold                          a duration; 0 is none
    checkers/utilization/resource-thresholds/<metric>/average   percent
    checkers/utilization/thresholds-check-operator              and | or
    checkers/utilization/time-window                            a duration
    checkers/utilization/initial-grace-period                   a duration

A policy's own limits hold whether or not anything is enabled: ``idle_timeout`` replaces the threshold of the
configuration (less than zero: no limit), ``max_session_lifetime`` is the lifetime.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from ai.backend.common.errors import InvalidInput

NETWORK_TIMEOUT, SESSION_LIFETIME, UTILIZATION = "network_timeout", "session_lifetime", "utilization"
CHECKERS = (NETWORK_TIMEOUT, SESSION_LIFETIME, UTILIZATION)
_DURATION_PATTERN = re.compile(r"(?P<number>\d{1,9}(?:\.\d{1,6})?)\s*(?P<unit>s|m|h|d|w|)")
_SECONDS_BY_UNIT = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
DEFAULT_TIMEOUT_S = 600.0
DEFAULT_WINDOW_S = 43_200.0
DEFAULT_GRACE_S = 300.0


def duration_s(text: str) -> float:
    """Parses seconds from ``90``, ``90s``, ``10m``, ``1.5h``, ``7d`` or ``2w``. Raises InvalidInput."""
    match = _DURATION_PATTERN.fullmatch(text.strip().lower())
    if match is None:
        raise InvalidInput(f"{text[:64]!r} is not a duration", data={"duration": "malformed"})
    return float(match["number"]) * _SECONDS_BY_UNIT[match["unit"]]


class UtilizationRule(msgspec.Struct, frozen=True, kw_only=True):
    """Treats a session as idle if its utilization stays below the thresholds over a whole window. A threshold is metric
    -> percent of the resource that the session has.

    ``needs_all``: every threshold must be missed (operator ``and``), not one (``or``). Nothing is judged in the first
    ``grace_s`` of the session.
    """

    thresholds: Mapping[str, float]
    needs_all: bool = True
    window_s: float = DEFAULT_WINDOW_S
    grace_s: float = DEFAULT_GRACE_S


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the idle rules of the shared configuration. ``faults``: what was malformed and is left out."""

    network_timeout_s: float | None = None
    utilization: UtilizationRule | None = None
    faults: tuple[str, ...] = msgspec.field(default=())


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the idle limits of one session. None means that there is no such limit."""

    network_timeout_s: float | None = None
    lifetime_s: float | None = None
    utilization: UtilizationRule | None = None

    @classmethod
    def of(cls, rules: Rules, *, idle_timeout_s: float = 0, max_lifetime_s: float = 0) -> Limits:
        """Combines the idle rules of the installation with the limits of a resource policy."""
        timeout_s = rules.network_timeout_s if idle_timeout_s == 0 else idle_timeout_s
        return cls(
            network_timeout_s=timeout_s if timeout_s is not None and timeout_s > 0 else None,
            lifetime_s=max_lifetime_s if max_lifetime_s > 0 else None,
            utilization=rules.utilization,
        )


def read_rules(values: Mapping[str, str]) -> Rules:
    """Reads the idle rules from configuration values.

    The keys are relative to ``config/idle``. A malformed key is a fault and has no effect.
    """
    faults: list[str] = []

    def read_duration(config_key: str, default: float) -> float:
        if config_key not in values:
            return default
        try:
            return duration_s(values[config_key])
        except InvalidInput:
            faults.append(f"{config_key}: {values[config_key][:64]!r} is not a duration")
            return default

    enabled_checkers = {
        checker_name.strip()
        for checker_name in values.get("enabled", "").replace("-", "_").split(",")
        if checker_name.strip()
    }
    faults += [
        f"enabled: there is no checker {checker_name[:64]!r}"
        for checker_name in sorted(enabled_checkers - set(CHECKERS))
    ]
    timeout_s = read_duration("checkers/network_timeout/threshold", DEFAULT_TIMEOUT_S)
    thresholds = _read_thresholds(values, faults)
    combination = values.get("checkers/utilization/thresholds-check-operator", "and").strip().lower()
    if combination not in ("and", "or"):
        faults.append(f"checkers/utilization/thresholds-check-operator: {combination[:64]!r} is neither and nor or")
        combination = "and"
    window_s = read_duration("checkers/utilization/time-window", DEFAULT_WINDOW_S)
    if window_s <= 0:
        faults.append("checkers/utilization/time-window: must be positive")
        window_s = DEFAULT_WINDOW_S
    grace_s = read_duration("checkers/utilization/initial-grace-period", DEFAULT_GRACE_S)
    rule = UtilizationRule(thresholds=thresholds, needs_all=combination == "and", window_s=window_s, grace_s=grace_s)
    return Rules(
        network_timeout_s=timeout_s if NETWORK_TIMEOUT in enabled_checkers else None,
        utilization=rule if UTILIZATION in enabled_checkers and thresholds else None,
        faults=tuple(faults),
    )


def _read_thresholds(values: Mapping[str, str], faults: list[str]) -> dict[str, float]:
    thresholds: dict[str, float] = {}
    for key, value_text in values.items():
        parts = key.split("/")
        if parts[:3] != ["checkers", UTILIZATION, "resource-thresholds"] or parts[4:] != ["average"]:
            continue
        try:
            percent = float(value_text) if value_text.strip() else None
        except ValueError:
            percent = -1.0
        if percent is not None and 0 <= percent <= 1e6:
            thresholds[parts[3]] = percent
        elif percent is not None:
            faults.append(f"{key}: {value_text[:64]!r} is not a percentage")
    return thresholds
