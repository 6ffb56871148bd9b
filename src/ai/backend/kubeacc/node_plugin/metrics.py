"""Serves metrics of the devices of this node, and of the pods that hold them, in the text format of Prometheus."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from ai.backend.common.devices import DeviceHealth
from ai.backend.common.errors import InvalidInput
from ai.backend.common.wire.reports import MetricFamily, MetricSample
from ai.backend.infra.http.health import HealthApi
from ai.backend.infra.http.routes import endpoints_of
from ai.backend.infra.http.server import HttpServer, make_runner, serve_on
from ai.backend.infra.settings.tables import HostPort
from ai.backend.infra.telemetry import Metrics
from ai.backend.infra.telemetry.exposition import Exposition
from ai.backend.kubeacc.node_plugin.devices import DeviceTracker
from ai.backend.kubeacc.node_plugin.holders import Holders
from ai.backend.kubeacc.node_plugin.measurements import DeviceMeasurements

log = logging.getLogger(__name__)


class DeviceMetrics:
    """Measures devices through their plugins, and labels the values with the containers that hold the devices
    (PodResources).

    Names are those of an agent (docs/reference/metrics.md): ``backendai_device_*`` of each device, labelled by
    ``device_name`` (the plugin) and ``device_id``. ``backendai_pod_device`` has a sample of value 1 for each container
    and device that it holds, so a query joins both by these two labels.
    """

    def __init__(self, tracker: DeviceTracker, holders: Holders, measurements: DeviceMeasurements) -> None:
        self._tracker, self._holders, self._measurements = tracker, holders, measurements

    async def measure(self) -> Mapping[str, float]:
        """Measures the devices unless this was just done, and returns the numbers of all, healthy and held devices."""
        await self._measurements.current()
        devices = [device for key in self._tracker.plugin_keys() for device in self._tracker.devices(key)]
        healthy = sum(1 for device in devices if device.health is DeviceHealth.HEALTHY)
        return {"devices": len(devices), "healthy_devices": healthy, "held_devices": len(self._holders.holders)}

    def families(self) -> list[MetricFamily]:
        """Returns the last measurements, and which containers hold which devices."""
        exposition = Exposition()
        for key, measurements in self._measurements.last.items():
            indexes = {str(device.device_id): index for index, device in enumerate(self._tracker.devices(key))}
            exposition.add_devices(key, indexes, measurements)
        holder_samples = [
            MetricSample(
                labels={
                    "namespace": holder.namespace,
                    "pod": holder.pod,
                    "container": holder.container,
                    "claim": holder.claim,
                    "device_name": key,
                    "device_id": str(device_id),
                },
                value=1.0,
            )
            for (key, device_id), holders in sorted(self._holders.holders.items())
            for holder in holders
        ]
        help_text = "1 for each device that a container holds, as the kubelet tells."
        return [
            *exposition.families(),
            MetricFamily(name="backendai_pod_device", kind="gauge", help=help_text, samples=holder_samples),
        ]


async def serve_metrics(
    address: HostPort, tracker: DeviceTracker, holders: Holders, measurements: DeviceMeasurements
) -> None:
    """Serves ``/metrics``, ``/livez`` and ``/readyz`` until cancelled. Raises InvalidInput for an unusable address."""
    source, metrics = DeviceMetrics(tracker, holders, measurements), Metrics("kube-acc-node")
    metrics.expose(source.families)

    async def readiness() -> Mapping[str, bool]:
        return {"devices": tracker.is_complete.is_set()}

    server = HttpServer(endpoints_of(HealthApi(metrics, readiness, source.measure)), metrics=metrics)
    runner = make_runner(server.application())
    try:
        host, port = await serve_on(runner, (address.host, address.port))
        log.info("metrics are served on %s:%d", host, port)
        await asyncio.Event().wait()
    except OSError as e:
        raise InvalidInput(f"cannot listen on {address.host}:{address.port}: {e.strerror}") from None
    finally:
        await runner.cleanup()
