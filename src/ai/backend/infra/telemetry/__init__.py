"""Produces logs, metrics and traces of daemons."""

from ai.backend.infra.telemetry.logs import (
    bind_log_context,
    change_levels,
    configure_logging,
    log_as_configured,
    log_context,
)
from ai.backend.infra.telemetry.metrics import Metrics, count_together
from ai.backend.infra.telemetry.sending import (
    sent_telemetry,
    settings_of_environment,
    start_monitors,
    start_telemetry,
)

__all__ = [
    "Metrics",
    "bind_log_context",
    "change_levels",
    "configure_logging",
    "count_together",
    "log_as_configured",
    "log_context",
    "sent_telemetry",
    "settings_of_environment",
    "start_monitors",
    "start_telemetry",
]
