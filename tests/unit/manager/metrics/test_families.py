"""The metric families of agents: whatever agents report, the exposition can be parsed and stays bounded."""

from __future__ import annotations

from typing import Any, cast

from prometheus_client.parser import text_string_to_metric_families

from ai.backend.common.ids import AgentId
from ai.backend.common.wire.reports import MetricFamily, MetricSample, StatReport
from ai.backend.infra.telemetry import Metrics
from ai.backend.manager.metrics.families import SAMPLES_LIMIT, check_families
from ai.backend.manager.metrics.live import STALE_AFTER_S, LiveMetrics


def _family(name: str, kind: str = "gauge", *samples: tuple[float, dict[str, str]]) -> MetricFamily:
    return MetricFamily(
        name=name, kind=kind, help="Help.", samples=[MetricSample(labels=labels, value=v) for v, labels in samples]
    )


class Exposition:
    """Live metrics with a controlled clock, and what a scrape of them shows."""

    def __init__(self) -> None:
        self.now = 0.0
        self.live = LiveMetrics(cast("Any", None), clock=lambda: self.now)
        self.metrics = Metrics("manager")
        self.metrics.counter("requests", "Requests.").inc()
        self.metrics.expose(self.live.families)

    def report(self, agent: str, *families: MetricFamily) -> None:
        self.live.put(StatReport(agent_id=agent, at=0.0, node={"mem": {}}, families=list(families)), {})

    def scrape(self) -> dict[str, tuple[str, dict[tuple[tuple[str, str], ...], float]]]:
        """Returns the types and samples by name, without the manager's own."""
        families: dict[str, tuple[str, dict[tuple[tuple[str, str], ...], float]]] = {}
        for family in text_string_to_metric_families(self.metrics.exposition().decode()):
            for sample in family.samples:
                if not sample.name.startswith("backendai_manager_"):
                    _, samples = families.setdefault(sample.name, (family.type, {}))
                    key = tuple(sorted(sample.labels.items()))
                    assert key not in samples
                    samples[key] = sample.value
        return families


def test_agents_share_a_family_and_differ_by_label() -> None:
    exposition = Exposition()
    for agent in ("i-1", "i-2"):
        exposition.report(
            agent,
            _family("backendai_node_mem_bytes", "gauge", (5.0, {})),
            _family("backendai_node_net_rx_bytes_total", "counter", (7.0, {})),
            _family("DCGM_FI_DEV_FB_USED", "gauge", (1.0, {"device_name": "cuda", "device_id": "GPU-1"})),
            _family("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "unknown", (3.0, {"device_id": "GPU-1"})),
        )
    both = {(("agent", "i-1"),), (("agent", "i-2"),)}
    seen = exposition.scrape()
    assert seen["backendai_node_mem_bytes"] == ("gauge", dict.fromkeys(both, 5.0))
    assert seen["backendai_node_net_rx_bytes_total"] == ("counter", dict.fromkeys(both, 7.0))
    assert seen["DCGM_FI_DEV_FB_USED"][0] == "gauge"
    assert seen["DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"][0] == "unknown"
    text = exposition.metrics.exposition().decode()
    assert text.count("# TYPE backendai_node_mem_bytes gauge") == 1
    assert "# HELP backendai_node_net_rx_bytes_total Help." in text


def test_series_of_an_agent_that_is_silent_vanish() -> None:
    exposition = Exposition()
    exposition.report("i-1", _family("backendai_node_mem_bytes", "gauge", (5.0, {})))
    exposition.now = STALE_AFTER_S / 2
    exposition.report("i-2", _family("backendai_node_mem_bytes", "gauge", (6.0, {})))
    exposition.now = STALE_AFTER_S + 1
    assert exposition.scrape() == {"backendai_node_mem_bytes": ("gauge", {(("agent", "i-2"),): 6.0})}


def test_what_would_spoil_the_page_is_left_out() -> None:
    good = _family("good", "gauge", (1.0, {}))
    bad = [
        _family("has blanks", "gauge", (1.0, {})),
        _family("1st", "gauge", (1.0, {})),
        _family("backendai_manager_requests_total", "counter", (1.0, {})),
        _family("up", "gauge", (0.0, {})),
        _family("process_cpu_seconds", "gauge", (1.0, {})),
        _family("x_total", "gauge", (1.0, {})),
        _family("x", "counter", (1.0, {})),
        _family("x", "histogram", (1.0, {})),
        _family("x", "gauge", (float("nan"), {}), (float("inf"), {})),
        _family("x", "gauge", (1.0, {"kernel_id": "k"}), (1.0, {"agent": "i-9"}), (1.0, {"device_id": "d" * 257})),
    ]
    assert [f.name for f in check_families(AgentId("i-1"), [*bad, good])] == ["good"]
    twice = _family("twice", "gauge", (1.0, {"device_id": "0"}), (2.0, {"device_id": "0"}))
    (family,) = check_families(AgentId("i-1"), [twice])
    assert [(s.labels, s.value) for s in family.samples] == [({"agent": "i-1", "device_id": "0"}, 1.0)]


def test_one_agent_cannot_turn_anothers_gauge_into_a_counter() -> None:
    exposition = Exposition()
    exposition.report("i-1", _family("DCGM_X", "gauge", (1.0, {})))
    exposition.report("i-2", _family("DCGM_X", "unknown", (2.0, {})))
    assert exposition.scrape() == {"DCGM_X": ("gauge", {(("agent", "i-1"),): 1.0})}


def test_the_samples_of_an_agent_are_bounded() -> None:
    many = [(1.0, {"device_id": str(n)}) for n in range(SAMPLES_LIMIT + 10)]
    families = check_families(AgentId("i-1"), [_family("a", "gauge", *many), _family("b", "gauge", (1.0, {}))])
    assert [(f.name, len(f.samples)) for f in families] == [("a", SAMPLES_LIMIT)]


def test_a_hostile_label_is_quoted() -> None:
    exposition = Exposition()
    exposition.report("i-1", _family("a", "gauge", (1.0, {"device_id": 'x"} 5\nb 7\\'})))
    assert exposition.scrape() == {"a": ("gauge", {(("agent", "i-1"), ("device_id", 'x"} 5\nb 7\\')): 1.0})}
