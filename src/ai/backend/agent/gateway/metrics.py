"""Exports metrics of the service gateway for Prometheus (docs/reference/metrics.md)."""

from __future__ import annotations

from collections.abc import Mapping

from ai.backend.agent.gateway.server import ServiceGateway
from ai.backend.common.wire.reports import MetricFamily, MetricSample


def gateway_families(gateway: ServiceGateway) -> list[MetricFamily]:
    """Returns the metrics of a gateway for Prometheus. The list is empty before the gateway's first route."""
    traffic = gateway.traffic
    if not (gateway.routes.all() or traffic.accepted or any(traffic.refused.values())):
        return []
    return [
        _family("routes", "gauge", "Routes to services.", {"": len(gateway.routes.all())}),
        _family("connections", "gauge", "Open connections to services.", {"": gateway.open_count}),
        _family("accepted_total", "counter", "Connections that reached a service.", {"": traffic.accepted}),
        _family("refused_total", "counter", "Connections that were refused.", traffic.refused, "reason"),
        _family(
            "bytes_total",
            "counter",
            "Bytes that were copied.",
            {"to-service": traffic.to_service, "to-client": traffic.to_client},
            "direction",
        ),
    ]


def _family(name: str, kind: str, help_: str, values: Mapping[str, int], label: str = "") -> MetricFamily:
    samples = [
        MetricSample(labels={label: label_value} if label else {}, value=float(value))
        for label_value, value in values.items()
    ]
    return MetricFamily(name=f"backendai_gateway_{name}", kind=kind, help=help_, samples=samples)
