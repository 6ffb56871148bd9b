"""Histograms of requests to models have the names, labels and values of OpenTelemetry's conventions."""

from __future__ import annotations

from ai.backend.appproxy.worker.inference.endpoint import ServedRequest
from ai.backend.appproxy.worker.metrics import InferenceMetrics
from ai.backend.core.serving.usage import Cost
from ai.backend.infra.telemetry import Metrics


def exported(*served: ServedRequest) -> dict[str, float]:
    """Returns the samples of the families ``gen_ai_*``, by name and labels as a scrape has them."""
    metrics = Metrics("appproxy-worker")
    observer = InferenceMetrics(metrics)
    for each in served:
        observer.observe(each)
    lines = (line.rpartition(" ") for line in metrics.exposition().decode().splitlines() if line.startswith("gen_ai_"))
    return {name: float(value) for name, _, value in lines}


def test_a_request_is_a_duration_a_first_token_a_pace_and_its_tokens() -> None:
    samples = exported(ServedRequest(cost=Cost(prompt=500, output=5), is_error=False, busy_s=1.5, first_byte_s=0.5))
    assert samples['gen_ai_server_request_duration_seconds_sum{error_type=""}'] == 1.5
    assert samples['gen_ai_server_time_to_first_token_seconds_bucket{le="0.5"}'] == 1.0
    assert samples['gen_ai_server_time_to_first_token_seconds_bucket{le="0.25"}'] == 0.0
    assert samples["gen_ai_server_time_per_output_token_seconds_sum"] == 0.25
    assert samples['gen_ai_client_token_usage_sum{gen_ai_token_type="input"}'] == 500
    assert samples['gen_ai_client_token_usage_sum{gen_ai_token_type="output"}'] == 5


def test_a_request_without_an_answer_is_an_error_and_nothing_else() -> None:
    samples = exported(ServedRequest(cost=Cost(), is_error=True, busy_s=0.0, first_byte_s=None))
    assert samples['gen_ai_server_request_duration_seconds_count{error_type="error"}'] == 1
    assert samples["gen_ai_server_time_to_first_token_seconds_count"] == 0
    assert samples["gen_ai_server_time_per_output_token_seconds_count"] == 0
    assert not any("token_type" in name for name in samples)


def test_one_token_has_no_pace() -> None:
    samples = exported(ServedRequest(cost=Cost(prompt=1, output=1), is_error=False, busy_s=1.0, first_byte_s=0.5))
    assert samples["gen_ai_server_time_per_output_token_seconds_count"] == 0
