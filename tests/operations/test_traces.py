"""Traces, metrics and logs of a whole cluster in a real collector, and clusters whose collector is of no use."""

from __future__ import annotations

import json
import secrets
import socket
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from tests.support.cluster import Cluster, running_cluster, wait_until
from tests.support.collector import Collector, running_collector

pytestmark = [pytest.mark.needs("collector"), pytest.mark.timeout(200)]
RESOURCES = ("-r", "cpu=1", "-r", "mem=256m")
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = f"00-{TRACE}-00f067aa0ba902b7-01"


@pytest.fixture(scope="module", params=["grpc", "http"])
def traced(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Cluster, Collector]]:
    folder = tmp_path_factory.mktemp(request.param)
    with running_collector(folder) as collector:
        environment = collector.environment(request.param)
        with running_cluster(folder / "data", "--separate", env=environment) as cluster:
            yield cluster, collector


def test_the_life_of_a_session_is_one_trace(traced: tuple[Cluster, Collector]) -> None:
    cluster, collector = traced
    collected = collector.collected
    mine = {**collector.environment("grpc"), "TRACEPARENT": PARENT}
    cluster.run("start", "-t", "traced", *RESOURCES, "python", env=mine, check=True)
    session_id = cluster.json("info", "traced")["id"]
    said = cluster.run("exec", "traced", "printenv", "TRACEPARENT", check=True)
    assert TRACE in said.stdout
    cluster.run("rm", "traced", env=collector.environment("grpc"), check=True)

    def ended() -> bool:
        return any(span.name == "session TERMINATING" for span in collected.trace(TRACE))

    wait_until(ended, what=f"the end of the session in {sorted({s.name for s in collected.spans})}")
    wait_until(lambda: any(s.name == "kernel terminate" for s in collected.trace(TRACE)), what="the end of the kernel")
    spans = collected.trace(TRACE)
    by_name = {span.name: span for span in spans}
    assert by_name["backend.ai start"].service == "backendai-client"
    assert by_name["session create"].service == "backendai-manager"
    assert {"session PENDING", "session RUNNING", "session TERMINATING", "session launch"} <= by_name.keys()
    assert {"kernel create", "acquire workload", "acquire bootstrap", "release workload"} <= by_name.keys()
    assert by_name["kernel create"].service == "backendai-agent"
    known = {span.span_id for span in spans} | {PARENT[36:52]}
    assert [span.name for span in spans if span.parent_id not in known] == []
    creation = by_name["POST /session"]
    assert by_name["session create"].parent_id == creation.span_id
    assert creation.parent_id == by_name["backend.ai start"].span_id
    # Who ended it did so in a trace of its own, with which the session's is linked.
    removal = next(span for span in collected.spans if span.name == "backend.ai rm")
    assert removal.trace_id != TRACE
    assert removal.trace_id in by_name["session RUNNING"].links
    assert by_name["session RUNNING"].attributes["backendai.session_id"] == session_id
    assert not any(span.failed for span in spans)


def test_a_run_is_part_of_the_trace_with_the_phases_that_its_runner_tells(
    traced: tuple[Cluster, Collector],
) -> None:
    cluster, collector = traced
    trace = secrets.token_hex(16)
    mine = {**collector.environment("grpc"), "TRACEPARENT": f"00-{trace}-00f067aa0ba902b7-01"}
    steps = ("--build", "sleep 0.3", "--exec", "printenv TRACEPARENT; exit 3")
    done = cluster.run("run", "--rm", "-q", *steps, *RESOURCES, "python", env=mine)
    collected = collector.collected
    wait_until(
        lambda: {"run build", "run exec"} <= {span.name for span in collected.trace(trace)},
        what=f"the phases in {sorted({span.name for span in collected.trace(trace)})}",
    )
    by_name = {span.name: span for span in collected.trace(trace)}
    run, build, executed = by_name["run"], by_name["run build"], by_name["run exec"]
    assert {span.service for span in (run, build, executed)} == {"backendai-agent"}
    assert {build.parent_id, executed.parent_id} == {run.span_id}
    requests = {span.span_id: span for span in collected.trace(trace) if span.name == "execute"}
    assert requests[run.parent_id].service == "backendai-agent"
    # A program of the run finds its trace, below the request that asked for it.
    assert f"{trace}-{run.parent_id}" in done.stdout
    assert run.started <= build.started < build.ended <= executed.started <= executed.ended <= run.ended
    assert build.ended - build.started >= 300_000_000
    assert run.attributes["process.exit.code"] == "3"
    assert run.attributes["backendai.session_id"]


def test_apps_are_part_of_the_trace_of_who_opens_them(traced: tuple[Cluster, Collector]) -> None:
    cluster, collector = traced
    trace = secrets.token_hex(16)
    mine = {**collector.environment("grpc"), "TRACEPARENT": f"00-{trace}-00f067aa0ba902b7-01"}
    cluster.run("start", "-t", "opened", *RESOURCES, "python", check=True)
    address = cluster.run("app", "opened", "ttyd", "--browser", env=mine, check=True).stdout.strip()
    services = {"backendai-client", "backendai-manager", "backendai-agent", "backendai-app-proxy"}
    wait_until(
        lambda: services <= {span.service for span in collector.collected.trace(trace)},
        what=f"{services}: {collector.collected.trace(trace)}",
    )
    # A request to the app is in the trace of its sender, if that names one.
    browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
    own = secrets.token_hex(16)
    browser.addheaders = [("traceparent", f"00-{own}-00f067aa0ba902b7-01")]
    with browser.open(address, timeout=10) as reply:
        own_address = json.load(reply)["url"]
    with browser.open(own_address, timeout=10) as reply:
        assert reply.status == 200
    wait_until(lambda: any(span.name == "app GET" for span in collector.collected.trace(own)), what="the app's request")
    (request,) = [span for span in collector.collected.trace(own) if span.name == "app GET"]
    assert request.parent_id == "00f067aa0ba902b7"
    assert request.attributes["http.response.status_code"] == "200"
    cluster.run("rm", "opened", check=True)


def test_folders_are_part_of_the_trace_of_their_request(traced: tuple[Cluster, Collector]) -> None:
    cluster, collector = traced
    cluster.run("vfolder", "create", "kept", env=collector.environment("grpc"), check=True)
    spans = collector.collected.spans
    wait_until(lambda: any(span.name == "POST /folder/create" for span in spans), what="a span of the storage proxy")
    stored = next(span for span in spans if span.name == "POST /folder/create")
    assert stored.service == "backendai-storage"
    services = {"backendai-storage", "backendai-manager", "backendai-client"}
    wait_until(
        lambda: services <= {span.service for span in collector.collected.trace(stored.trace_id)}, what=f"{services}"
    )


def test_the_web_server_passes_the_trace_on(traced: tuple[Cluster, Collector]) -> None:
    cluster, collector = traced
    port = json.loads((cluster.data_dir / "cluster.json").read_text())["web_port"]
    trace = secrets.token_hex(16)
    request = urllib.request.Request(f"http://127.0.0.1:{port}/func/")
    request.add_header("traceparent", f"00-{trace}-00f067aa0ba902b7-01")
    with urllib.request.urlopen(request, timeout=10) as reply:
        assert reply.status == 200
    services = {"backendai-web", "backendai-manager"}
    wait_until(
        lambda: services <= {span.service for span in collector.collected.trace(trace)}, what="spans of both servers"
    )


def test_logs_and_metrics_arrive_and_logs_have_the_trace(traced: tuple[Cluster, Collector]) -> None:
    cluster, collector = traced
    collected = collector.collected
    cluster.run("run", "--rm", "-c", "print(1)", *RESOURCES, "python", env=collector.environment("grpc"), check=True)
    wait_until(lambda: {"backendai-manager"} <= collected.metrics.keys(), what="metrics")
    wait_until(lambda: "backendai_manager_http_requests" in collected.metrics["backendai-manager"], what="a counter")
    wait_until(lambda: {"backendai-manager"} <= {service for service, _ in collected.logs}, what="logs")
    assert all("opentelemetry" not in json.dumps(log) for _, log in collected.logs)


def test_a_scrape_has_traces_as_exemplars(traced: tuple[Cluster, Collector]) -> None:
    cluster, collector = traced
    cluster.run("ps", env={**collector.environment("grpc"), "TRACEPARENT": PARENT}, check=True)
    request = urllib.request.Request(f"http://127.0.0.1:{cluster.port}/metrics")
    request.add_header("Accept", "application/openmetrics-text; version=1.0.0")
    with urllib.request.urlopen(request, timeout=10) as reply:
        families = list(text_string_to_metric_families(reply.read().decode()))  # type: ignore[no-untyped-call]  # theirs
    samples = [sample for family in families for sample in family.samples if sample.exemplar is not None]
    assert TRACE in {sample.exemplar.labels["trace_id"] for sample in samples if sample.exemplar is not None}
    assert {sample.name for sample in samples} == {"backendai_manager_http_request_seconds_bucket"}


class _Silent:
    """Accepts connections and never answers."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        self._kept: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                self._kept.append(self._socket.accept()[0])
            except OSError:
                return

    def close(self) -> None:
        self._socket.close()
        for one in self._kept:
            one.close()


class _Refusing(_Silent):
    """Answers each connection with a refusal, which no retry would change; it is no HTTP/2 either."""

    def _accept(self) -> None:
        body = b"the token is wrong"
        head = b"HTTP/1.1 403 Forbidden\r\nContent-Type: text/plain\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
        while True:
            try:
                connection = self._socket.accept()[0]
            except OSError:
                return
            with connection, suppress(OSError):
                connection.recv(65_536)
                connection.sendall(head % len(body) + body)


@pytest.mark.parametrize(
    ("fault", "protocol"),
    [
        ("away", "grpc"),
        ("silent", "http/protobuf"),
        ("silent", "grpc"),
        ("refuses", "http/protobuf"),
        ("refuses", "grpc"),
    ],
)
def test_a_collector_of_no_use_disturbs_nobody(tmp_path: Path, fault: str, protocol: str) -> None:
    with closing(_Refusing() if fault == "refuses" else _Silent()) as server:
        environment = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{server.port if fault != 'away' else 9}",
            "OTEL_EXPORTER_OTLP_PROTOCOL": protocol,
            "OTEL_METRIC_EXPORT_INTERVAL": "1000",
        }
        cluster = Cluster(tmp_path / "data", env=environment)
        cluster.start()
        try:
            # Only what waits for the collector would take this long.
            cluster.run(
                "run", "--rm", "-c", "print(1)", *RESOURCES, "python", env=environment, check=True, timeout_s=30
            )
        finally:
            assert cluster.stop(timeout_s=30) == 0
        assert cluster.log().count("opentelemetry") <= 10
