"""Defines the metrics of a worker: ``backendai_appproxy_*`` for its circuits, and ``gen_ai_*`` for models.

No label contains an address, a user, a token, a model or a circuit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ai.backend.appproxy.worker.inference.endpoint import ServedRequest
from ai.backend.appproxy.worker.link.link import CoordinatorLink
from ai.backend.appproxy.worker.planes.plane import DataPlane
from ai.backend.common.wire.appproxy import FIRST_BYTE_BOUNDS_S
from ai.backend.common.wire.reports import MetricFamily, MetricSample
from ai.backend.infra.telemetry import Metrics

_PREFIX = "backendai_appproxy_"


def families_of(plane: DataPlane, link: CoordinatorLink) -> Iterable[MetricFamily]:
    """Returns the metric families of a data plane at this moment."""
    counts, observations = plane.counts, plane.observe().values()
    yield _family(
        "requests_total",
        "Responses, by the kind of circuit and the status.",
        {
            (("code", str(http_status)), ("mode", app_mode)): count
            for (app_mode, http_status), count in counts.responses.items()
        },
    )
    yield _family(
        "refused_total",
        "Requests and connections that no app got, by the reason.",
        {(("reason", reason),): count for reason, count in counts.refused.items()},
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


class InferenceMetrics:
    """Holds histograms of requests to models, with names and buckets of OpenTelemetry's conventions for generative AI.

    No label names a model: users choose those names.
    """

    def __init__(self, metrics: Metrics) -> None:
        self._duration = metrics.histogram(
            "gen_ai_server_request_duration_seconds",
            "Time of a request to a model.",
            ("error_type",),
            buckets=[0.01 * 2**exponent for exponent in range(14)],
            is_prefixed=False,
        )
        self._first_token = metrics.histogram(
            "gen_ai_server_time_to_first_token_seconds",
            "Time until the first byte of an answer.",
            buckets=FIRST_BYTE_BOUNDS_S,
            is_prefixed=False,
        )
        self._output_token = metrics.histogram(
            "gen_ai_server_time_per_output_token_seconds",
            "Time of each token after the first.",
            buckets=(*(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5),),
            is_prefixed=False,
        )
        self._tokens = metrics.histogram(
            "gen_ai_client_token_usage",
            "Tokens of a request and of its answer.",
            ("gen_ai_token_type",),
            buckets=[4**exponent for exponent in range(14)],
            is_prefixed=False,
        )

    def observe(self, request: ServedRequest) -> None:
        cost, first_byte_s = request.cost, request.first_byte_s
        self._duration.labels("error" if request.is_error else "").observe(request.busy_s)
        if first_byte_s is not None:
            self._first_token.observe(first_byte_s)
            if cost.output > 1:
                self._output_token.observe((request.busy_s - first_byte_s) / (cost.output - 1))
        for token_kind, tokens in (("input", cost.prompt), ("output", cost.output)):
            if tokens:
                self._tokens.labels(token_kind).observe(tokens)


def _family(name: str, help_: str, values: Mapping[tuple[tuple[str, str], ...], float]) -> MetricFamily:
    metric_kind = "counter" if name.endswith("_total") else "gauge"
    samples = [MetricSample(labels=dict(labels), value=value) for labels, value in values.items()]
    return MetricFamily(name=_PREFIX + name, kind=metric_kind, help=help_, samples=samples)
