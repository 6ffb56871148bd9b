"""The collector of OpenTelemetry, built from `tools/collector`, and what it passes on."""

from __future__ import annotations

import fcntl
import gzip
import hashlib
import json
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.support.cluster import free_port, wait_until

_SOURCE = Path(__file__).parents[2] / "tools" / "collector"


def why_not() -> str | None:
    """Says what the machine lacks to have a collector; None if nothing."""
    if _program().exists() or shutil.which("go") is not None:
        return None
    return "machine: go is not installed, from which the collector is built"


@cache
def _program() -> Path:
    """The program of these sources, outside of the tree: a build takes a minute."""
    digest = hashlib.sha256()
    for name in ("go.mod", "go.sum", "main.go"):
        digest.update((_SOURCE / name).read_bytes())
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return folder / "backend.ai" / "collector" / digest.hexdigest()[:16] / "collector"


def _built() -> Path:
    program = _program()
    program.parent.mkdir(parents=True, exist_ok=True)
    with (program.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not program.exists():
            unfinished = program.with_suffix(".unfinished")
            options = ["-mod=readonly", "-buildvcs=false", "-trimpath", "-ldflags=-s -w", "-o", str(unfinished)]
            environment = {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": ""}
            subprocess.run(["go", "build", *options, "."], cwd=_SOURCE, env=environment, check=True)
            unfinished.rename(program)
    return program


@dataclass(frozen=True)
class CollectedSpan:
    """A span as the collector passed it on."""

    service: str
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    attributes: Mapping[str, Any]
    links: tuple[str, ...]
    failed: bool
    started: int
    ended: int


@dataclass
class Collected:
    """What the collector has passed on so far."""

    spans: list[CollectedSpan] = field(default_factory=list)
    logs: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    metrics: dict[str, set[str]] = field(default_factory=dict)
    """The names of metrics by service."""

    def take(self, document: Mapping[str, Any]) -> None:
        for one in document.get("resourceSpans", ()):
            service = _attributes(one["resource"])["service.name"]
            self.spans += [_span(service, span) for scope in one["scopeSpans"] for span in scope["spans"]]
        for one in document.get("resourceLogs", ()):
            service = _attributes(one["resource"])["service.name"]
            self.logs += [(service, log) for scope in one["scopeLogs"] for log in scope["logRecords"]]
        for one in document.get("resourceMetrics", ()):
            service = _attributes(one["resource"])["service.name"]
            names = {metric["name"] for scope in one["scopeMetrics"] for metric in scope["metrics"]}
            self.metrics.setdefault(service, set()).update(names)

    def trace(self, trace_id: str) -> list[CollectedSpan]:
        return [span for span in self.spans if span.trace_id == trace_id]


def _attributes(owner: Mapping[str, Any]) -> dict[str, Any]:
    return {one["key"]: next(iter(one["value"].values()), None) for one in owner.get("attributes", ())}


def _span(service: str, span: Mapping[str, Any]) -> CollectedSpan:
    return CollectedSpan(
        service=service,
        name=span["name"],
        trace_id=span["traceId"],
        span_id=span["spanId"],
        parent_id=span.get("parentSpanId", ""),
        attributes=_attributes(span),
        links=tuple(link["traceId"] for link in span.get("links", ())),
        failed=span.get("status", {}).get("code") == 2,
        started=int(span["startTimeUnixNano"]),
        ended=int(span["endTimeUnixNano"]),
    )


@dataclass(frozen=True)
class Collector:
    """A collector that runs, with its ports."""

    grpc_port: int
    http_port: int
    collected: Collected

    def environment(self, protocol: str) -> dict[str, str]:
        """The variables with which a program sends to it."""
        port = self.http_port if protocol == "http" else self.grpc_port
        return {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}",
            "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf" if protocol == "http" else "grpc",
            "OTEL_METRIC_EXPORT_INTERVAL": "1000",
        }


@contextmanager
def running_collector(folder: Path) -> Iterator[Collector]:
    """A collector that passes everything on to this process."""
    collected = Collected()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            collected.take(json.loads(body))
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *_: object) -> None:
            pass

    receiver = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    receiver.daemon_threads = True
    thread = threading.Thread(target=receiver.serve_forever, daemon=True)
    thread.start()
    collector = Collector(free_port(), free_port(), collected)
    settings = {
        "receivers": {
            "otlp": {
                "protocols": {
                    "grpc": {"endpoint": f"127.0.0.1:{collector.grpc_port}"},
                    "http": {"endpoint": f"127.0.0.1:{collector.http_port}"},
                }
            }
        },
        "exporters": {
            "otlp_http": {
                "endpoint": f"http://127.0.0.1:{receiver.server_address[1]}",
                "encoding": "json",
                "compression": "none",
            }
        },
        "service": {
            "telemetry": {"metrics": {"level": "none"}},
            "pipelines": {
                kind: {"receivers": ["otlp"], "exporters": ["otlp_http"]} for kind in ("traces", "metrics", "logs")
            },
        },
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "collector.yaml").write_text(json.dumps(settings))
    with (folder / "collector.log").open("ab") as output:
        process = subprocess.Popen(
            [_built(), "--config", f"file:{folder}/collector.yaml"],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    try:
        wait_until(lambda: _listens(collector, process), what=f"the collector ({folder}/collector.log)")
        yield collector
    finally:
        process.terminate()
        process.wait(10)
        receiver.shutdown()
        receiver.server_close()


def _listens(collector: Collector, process: subprocess.Popen[bytes]) -> bool:
    import socket

    assert process.poll() is None, "the collector has ended"
    for port in (collector.grpc_port, collector.http_port):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) != 0:
                return False
    return True
