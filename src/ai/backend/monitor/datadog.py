"""Reports figures to the agent of Datadog with its own client (spec 03-02, "Install Datadog agent"). Needs the extra
``datadog``."""

from __future__ import annotations

from collections.abc import Sequence

from datadog.dogstatsd.base import DogStatsd
from pydantic import BaseModel, Field

from ai.backend.plugin.monitors import AbstractStatsMonitor, Statistic
from ai.backend.plugin.settings import PluginSettings


class DatadogSettings(PluginSettings):
    """Settings of the monitor ``datadog``."""

    host: str = Field("127.0.0.1", description="Where the agent of Datadog listens for DogStatsD.")
    port: int = Field(8125, ge=1, le=65535, description="Its UDP port.")
    tags: list[str] = Field([], description="Tags of each figure, as `site:one`.")


class DatadogMonitor(AbstractStatsMonitor):
    """Sends gauges and counts as datagrams of DogStatsD, several in each.

    The client replaces the characters of its protocol in labels.
    """

    settings_model = DatadogSettings

    def __init__(self, settings: BaseModel | None, *, daemon: str, version: str) -> None:
        super().__init__(settings, daemon=daemon, version=version)
        assert isinstance(settings, DatadogSettings)
        self._client = DogStatsd(
            host=settings.host,
            port=settings.port,
            constant_tags=settings.tags,
            disable_telemetry=True,
            disable_background_sender=True,
            disable_aggregation=True,
            origin_detection_enabled=False,
        )

    def report(self, statistics: Sequence[Statistic]) -> None:
        with self._client as batch:
            for statistic in statistics:
                tags = [f"{name}:{value}" for name, value in statistic.labels.items()]
                send_metric = batch.increment if statistic.kind == "counter" else batch.gauge
                send_metric(statistic.name, statistic.value, tags=tags)

    def close(self, timeout_s: float) -> None:
        self._client.close_socket()
