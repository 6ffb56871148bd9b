"""Metrics of the data plane, ``backendai_appproxy_*``. No label has an address, a user, a token or a circuit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ai.backend.appproxy.worker.link.link import CoordinatorLink
from ai.backend.appproxy.worker.planes.plane import DataPlane
from ai.backend.common.wire.reports import MetricFamily, MetricSample

_PREFIX = "backendai_appproxy_"


def families_of(plane: DataPlane, link: CoordinatorLink) -> Iterable[MetricFamily]:
    """Returns the metrics at this moment."""
    counts, observations = plane.counts, plane.observe().values()
    yield _family(
        "requests_total",
        "Responses, by the kind of circuit and the status.",
        {(("code", str(code)), ("mode", mode)): number for (mode, code), number in counts.responses.items()},
    )
    yield _family(
        "refused_total",
        "Requests and connections that no app got, by the reason.",
        {(("reason", reason),): number for reason, number in counts.refused.items()},
    )
    for name, help_, value in (
        ("upgrades_total", "WebSockets.", counts.upgrades),
        ("retries_total", "Requests that were sent to another route, or on another connection.", counts.retries),
        ("received_bytes_total", "Bytes of clients, of present circuits.", sum(o.received for o in observations)),
        ("sent_bytes_total", "Bytes to clients, of present circuits.", sum(o.sent for o in observations)),
        ("open_connections", "Open requests and connections.", sum(o.open for o in observations)),
        ("queued_requests", "Requests that wait for a replica.", sum(o.queued for o in observations)),
        ("circuits", "Circuits that are served.", len(observations)),
        ("linked", "1 while the link with the coordinator is there.", int(link.is_linked)),
        ("config_version", "The version of the circuits that is served.", link.version),
    ):
        yield _family(name, help_, {(): value})


def _family(name: str, help_: str, values: Mapping[tuple[tuple[str, str], ...], float]) -> MetricFamily:
    kind = "counter" if name.endswith("_total") else "gauge"
    samples = [MetricSample(labels=dict(labels), value=value) for labels, value in values.items()]
    return MetricFamily(name=_PREFIX + name, kind=kind, help=help_, samples=samples)
