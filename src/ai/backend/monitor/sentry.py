"""Reports errors to Sentry with its own client (spec 03-02, "Install Raven"). Needs the extra ``sentry``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sentry_sdk
from pydantic import BaseModel, Field, SecretStr

from ai.backend.plugin.monitors import AbstractErrorMonitor, ErrorReport, Failure
from ai.backend.plugin.settings import PluginSettings


class SentrySettings(PluginSettings):
    """Settings of the monitor ``sentry``."""

    dsn: SecretStr = Field(description="The address of the project, as Sentry shows it: https://KEY@HOST/NUMBER.")
    environment: str = Field("production", description="The name of the installation.")
    sample_rate: float = Field(1.0, gt=0, le=1, description="Which part of the errors is sent.")


class SentryMonitor(AbstractErrorMonitor):
    """Sends events to Sentry by a client of its own. Nothing is installed into the process, and nothing is collected
    but what the daemon reports.
    """

    settings_model = SentrySettings

    def __init__(self, settings: BaseModel | None, *, daemon: str, version: str) -> None:
        super().__init__(settings, daemon=daemon, version=version)
        assert isinstance(settings, SentrySettings)
        self._client = sentry_sdk.Client(
            dsn=settings.dsn.get_secret_value(),
            environment=settings.environment,
            sample_rate=settings.sample_rate,
            release=f"backendai@{version}",
            default_integrations=False,
            auto_enabling_integrations=False,
            auto_session_tracking=False,
            send_client_reports=False,
            include_local_variables=False,
            include_source_context=False,
            max_breadcrumbs=0,
            spotlight=False,
        )

    def report(self, error: ErrorReport) -> None:
        self._client.capture_event(_event_of(error))  # type: ignore[arg-type]  # the fields of the documented payload

    def close(self, timeout_s: float) -> None:
        self._client.close(timeout=timeout_s)


def _event_of(error: ErrorReport) -> dict[str, Any]:
    """Returns an event of Sentry. Events of one template and type of exception are one issue there."""
    exception_types = [failure.type for failure in error.failures]
    return {
        "timestamp": error.at,
        "level": "fatal" if error.level == "critical" else "error",
        "logger": error.logger,
        "logentry": {"message": error.template, "formatted": error.message},
        "tags": {"daemon": error.daemon, **error.ids},
        "exception": {"values": [_exception_of(failure) for failure in error.failures]},
        "fingerprint": [error.logger, error.template, *exception_types],
    }


def _exception_of(failure: Failure) -> Mapping[str, Any]:
    frames = [
        {
            "filename": frame.file,
            "module": frame.module,
            "function": frame.function,
            "lineno": frame.line,
            "in_app": frame.module.startswith("ai.backend"),
        }
        for frame in failure.frames
    ]
    return {
        "type": failure.type,
        "module": failure.module,
        "value": failure.text,
        "stacktrace": {"frames": frames},
    }
