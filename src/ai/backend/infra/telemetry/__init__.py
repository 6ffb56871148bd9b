"""Logs and metrics of daemons."""

from ai.backend.infra.telemetry.logs import bind_log_context, configure_logging, log_as_configured, log_context
from ai.backend.infra.telemetry.metrics import Metrics, count_together

__all__ = ["Metrics", "bind_log_context", "configure_logging", "count_together", "log_as_configured", "log_context"]
