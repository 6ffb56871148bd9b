"""Produces logs, metrics and traces of daemons."""

from ai.backend.infra.telemetry.logs import (
    bind_log_context,
    change_levels,
    configure_logging,
    configure_logging_by_settings,
    log_context,
)
from ai.backend.infra.telemetry.metrics import Metrics, count_together
from ai.backend.infra.telemetry.sending import (
    settings_of_environment,
    start_monitors,
    start_telemetry,
    telemetry_sending,
)

__all__ = [
    "Metrics",
    "bind_log_context",
    "change_levels",
    "configure_logging",
    "configure_logging_by_settings",
    "count_together",
    "log_context",
    "settings_of_environment",
    "start_monitors",
    "start_telemetry",
    "telemetry_sending",
]
