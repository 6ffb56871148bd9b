"""Serves metrics of the devices of this node, and of the pods that hold them, in the text format of Prometheus."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from operator import methodcaller

from ai.backend.common.devices import DeviceHealth
from ai.backend.common.errors import BackendError, InvalidInput
from ai.backend.common.wire.reports import MetricFamily, MetricSample
from ai.backend.infra.http.health import HealthApi
from ai.backend.infra.http.routes import endpoints_of
from ai.backend.infra.http.server import HttpServer, make_runner, serve_on
from ai.backend.infra.settings.tables import HostPort
from ai.backend.infra.telemetry import Metrics
from ai.backend.infra.telemetry.exposition import Exposition
from ai.backend.kubeacc.node_plugin.devices import DeviceTracker
from ai.backend.kubeacc.node_plugin.holders import Holders
from ai.backend.plugin.accelerator import Measurement, StatContext, responses

log = logging.getLogger(__name__)
_FRESH_S = 5.0
"""Plugins are asked at most so often, however often and by however many the metrics are read."""


class DeviceMetrics:
    """Measures devices by their plugins, and labels them with the containers that hold them (PodResources).

    Names are those of an agent (docs/reference/metrics.md): ``backendai_device_*`` of each device, labelled by
    ``device_name`` (the plugin) and ``device_id``. ``backendai_pod_device`` has a sample of value 1 for each container
    and device that it holds, so a query joins both by these two labels.
    """

    def __init__(self, tracker: DeviceTracker, holders: Holders) -> None:
        self._tracker, self._holders = tracker, holders
        self._filters: dict[str, responses.MeasurementFilter] = {}
        self._measurements: dict[str, Sequence[Measurement]] = {}
        self._measured_at = float("-inf")
        self._measuring = asyncio.Lock()

    async def measure(self) -> Mapping[str, float]:
        """Asks the plugins unless the last answers are fresh, and returns the gauges of the node plugin itself."""
        async with self._measuring:
            now = asyncio.get_running_loop().time()
            if now - self._measured_at >= _FRESH_S:
                self._measured_at = now
                keys = self._tracker.plugin_keys()
                answers = await asyncio.gather(*(self._ask(key) for key in keys))
                self._measurements = dict(zip(keys, answers, strict=True))
        devices = [device for key in self._tracker.plugin_keys() for device in self._tracker.devices(key)]
        healthy = sum(1 for device in devices if device.health is DeviceHealth.HEALTHY)
        return {"devices": len(devices), "healthy_devices": healthy, "held_devices": len(self._holders.holders)}

    async def _ask(self, key: str) -> Sequence[Measurement]:
        handle = self._tracker.handle(key)
        if handle is None:
            return ()
        usable = self._filters.setdefault(key, responses.MeasurementFilter())
        usable.begin()
        context = StatContext(at=time.time())
        try:
            answer = await handle.call("gather_node_metrics", methodcaller("gather_node_metrics", context))
        except BackendError as e:
            log.warning("the devices of %s are not measured: %s", key, e.message)
            return ()
        measurements = usable.passed(answer, {device.device_id for device in self._tracker.devices(key)})
        handle.complain("statistics", usable.reason and f"statistics: {usable.reason}")
        return [measurement for measurement in measurements if measurement.device_id is not None]

    def families(self) -> list[MetricFamily]:
        """Returns the last measurements, and who holds what."""
        exposition = Exposition()
        for key, measurements in self._measurements.items():
            indexes = {str(device.device_id): index for index, device in enumerate(self._tracker.devices(key))}
            exposition.devices(key, indexes, measurements)
        held = [
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
        text = "1 for each device that a container holds, as the kubelet tells."
        return [
            *exposition.families(),
            MetricFamily(name="backendai_pod_device", kind="gauge", help=text, samples=held),
        ]


async def serve_metrics(address: HostPort, tracker: DeviceTracker, holders: Holders) -> None:
    """Serves ``/metrics``, ``/livez`` and ``/readyz`` until cancelled. Raises InvalidInput for an unusable address."""
    source, metrics = DeviceMetrics(tracker, holders), Metrics("kube-acc-node")
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
