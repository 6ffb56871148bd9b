"""Measures requests through the service gateway on both planes, beside HAProxies in the fewest lines.

Every way begins with a bare HAProxy, as workers of the app proxy have one; what differs is how it reaches the app.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from ai.backend.infra.tls.certificates import (
    TlsIdentity,
    create_authority,
    create_request,
    create_server_identity,
    issue_client_certificate,
)
from bench.figures import Figure
from bench.gateway import way
from bench.http_load import closed_loop
from bench.proxy import ROUNDS, haproxy, measure_rates, server

MIN_HAPROXY, MIN_EMBEDDED = 0.8, 0.4


class Certificates:
    """The files that HAProxy reads: those of the client, of its authority, and of a server."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = create_authority()
        key, request = create_request("worker")
        self.client = self.write("client.pem", key + issue_client_certificate(self.authority, request, "worker"))
        self.verifies = self.write("authority.pem", self.authority.certificate)
        server_identity = create_server_identity()
        self.server = self.write("server.pem", server_identity.key + server_identity.certificate)

    def write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.write_text(text)
        return path

    def to(self, name: str) -> str:
        """Returns how HAProxy speaks to a route. It verifies nothing, since it would look for the name of SNI in the
        certificate; connections are kept, so that a handshake costs nothing here."""
        return f"ssl crt {self.client} verify none sni str({name})"


@contextmanager
def through_gateway(kind: str, target: int, files: Certificates) -> Iterator[tuple[int, int]]:
    authority = TlsIdentity(files.authority.key, files.authority.certificate)
    with way(kind, str(target), authority) as gateway, haproxy(gateway.port, upstream=files.to(gateway.name)) as first:
        yield first


@contextmanager
def through_two(target: int, files: Certificates) -> Iterator[tuple[int, int]]:
    tls = f"ssl crt {files.server} ca-file {files.verifies} verify required"
    with (
        haproxy(target, mode="tcp", tls=tls) as (_, port),
        haproxy(port, upstream=files.to("two")) as first,
    ):
        yield first


def http_figures() -> Sequence[Figure]:
    """Returns the rates of all ways in the same run."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        files = Certificates(Path(folder))
        _, target = stack.enter_context(server("engine"))
        servers = {
            "direct": stack.enter_context(haproxy(target)),
            "two": stack.enter_context(through_two(target, files)),
            "haproxy": stack.enter_context(through_gateway("gateway-haproxy", target, files)),
            "embedded": stack.enter_context(through_gateway("gateway", target, files)),
        }
        medians = measure_rates(closed_loop, servers)
    rates = {name: medians[f"{name}-wall"] for name in servers}
    return [
        _figure("haproxy", MIN_HAPROXY, rates),
        _figure("embedded", MIN_EMBEDDED, rates),
    ]


def _figure(plane: str, minimum: float, rates: dict[str, float]) -> Figure:
    ratio = rates[plane] / rates["two"]
    return Figure(
        name=f"gateway-http-{plane}",
        value=rates[plane],
        unit="requests/s",
        reference=rates["two"],
        reference_is=f"two bare HAProxies with TLS between them, in the same run, {ROUNDS} rounds in turns, medians",
        target=f">= {minimum} of the reference",
        holds=ratio >= minimum,
        detail={**rates, "ratio": ratio, "ratio-to-direct": rates[plane] / rates["direct"]},
    )
