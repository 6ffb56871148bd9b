"""Generates the configuration file of HAProxy, once for each start of HAProxy.

Circuits are added and removed by the runtime API of HAProxy.

No backend, server or listener is ever made or removed while HAProxy runs: 2.6 does not survive that under load.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from ai.backend.appproxy.worker.planes.embedded.limits import Limits
from ai.backend.common.wire.appproxy import SETUP_PATH, ProxyProtocol
from ai.backend.core.proxy.cookies import OUR_PREFIX

FRAMED = (ProxyProtocol.H2, ProxyProtocol.GRPC)
"""Protocols that only HAProxy speaks: nothing of them can be left to the embedded plane."""
FALLBACK = "worker"
"""The backend that leads to the embedded plane."""
_SPARE_BYTES = 1024
_MAX_HEAD_BYTES = 15 * 1024
"""Heads have to fit into one buffer; larger buffers halve the rate."""
_UNUSED_S = 1.0
"""Seconds after which half of the unused connections to an app are closed; apps close theirs after five and more."""
_BAD_TARGET = r"^[^/]|[^!-~]|[#\\]|%(?:00|(?![0-9a-f]{2}))"
"""The part of `core.proxy.headers.check_request` about targets."""
_ERRORS = {
    400: ("Bad Request", "The request is malformed."),
    408: ("Request Timeout", "The request did not come in time."),
    502: ("Bad Gateway", "The app does not answer."),
    503: ("Service Unavailable", "The app does not answer."),
    504: ("Gateway Timeout", "The app does not answer in time."),
}


class Pool(msgspec.Struct, frozen=True, kw_only=True):
    """Describes a group of HAProxy backends with the same shape.

    ``servers`` is how many routes each of them has room for; ``balance`` is HAProxy's word for how it picks one.
    """

    prefix: str
    backends: int
    servers: int
    balance: str

    def backend_names(self) -> list[str]:
        return [f"{self.prefix}{number}" for number in range(1, self.backends + 1)]


class Files(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the paths of HAProxy's files, in a folder that only the user of the worker may enter."""

    folder: Path

    @property
    def config(self) -> Path:
        return self.folder / "haproxy.cfg"

    @property
    def commands(self) -> Path:
        return self.folder / "admin.sock"

    @property
    def worker(self) -> Path:
        return self.folder / "worker.sock"

    @property
    def certificate(self) -> Path:
        """Returns the path of the frontend's certificate with its key."""
        return self.folder / "frontend.pem"

    @property
    def circuits(self) -> Path:
        """Returns the path of HAProxy's map file that has the circuit of each port or host name.

        The values are ``kind/backend/circuit``, with kind ``p`` for public circuits.
        """
        return self.folder / "circuits.map"

    @property
    def permits(self) -> Path:
        """Returns the path of the map of admitted cookies: ``digest/circuit``."""
        return self.folder / "permits.map"


class Bind(msgspec.Struct, frozen=True, kw_only=True):
    """Describes a listening socket that HAProxy inherits. ``certificate`` is a file of a certificate with its key."""

    fd: int
    certificate: Path | None = None


def configuration(
    files: Files,
    binds: list[Bind],
    pools: list[Pool],
    limits: Limits,
    *,
    protocol: ProxyProtocol,
    domain: str | None,
    is_secure: bool,
    threads: int,
    connections_per_address: int,
    token_key: bytes = b"",
) -> str:
    """Returns HAProxy's configuration of a plane for circuits of one protocol.

    ``token_key`` verifies tokens of endpoints, where HAProxy decides alone.
    """
    is_tcp = protocol is ProxyProtocol.TCP
    lines = _global_lines(files, limits, threads) + _default_lines(limits, is_tcp=is_tcp)
    if protocol in FRAMED:
        lines += [f"  timeout client {_format_ms(limits.stream_gap_s)}"]
    app_lines = _tcp_app_lines() if is_tcp else _http_app_lines(is_secure=is_secure, is_framed=protocol in FRAMED)
    lines += ["defaults app from base", *_indent(app_lines)]
    lines += ["frontend apps from base", *_indent(_bind_line(bind, protocol) for bind in binds)]
    if connections_per_address:
        lines += _indent(
            [
                "stick-table type ipv6 size 100k expire 1h store conn_cur",
                "tcp-request connection track-sc0 src",
                f"tcp-request connection reject if {{ sc0_conn_cur gt {connections_per_address} }}",
            ]
        )
    if protocol in FRAMED:
        lines += _indent(_framed_rules(files, domain=domain, token_key=token_key))
    else:
        lines += _indent(_tcp_rules(files) if is_tcp else _http_rules(files, limits, domain=domain))
    lines += [f"backend {FALLBACK} from base"]
    lines += _indent(["http-reuse never"] if not is_tcp else [])
    lines += _indent([f"server worker unix@{files.worker} send-proxy-v2"])
    framing = " proto h2" if protocol in FRAMED else ""
    for pool in pools:
        for name in pool.backend_names():
            lines += [f"backend {name} from app"]
            lines += _indent(
                [
                    f"balance {pool.balance}",
                    (
                        f"default-server check inter 2s fall 3 rise 1 maxconn {limits.circuit_connections}"
                        f" pool-purge-delay {_format_ms(_UNUSED_S)}{framing}"
                    ),
                    f"server-template s 1-{pool.servers} 127.0.0.1:1 disabled",
                ]
            )
    return "\n".join(lines) + "\n"


def _indent(lines: Iterable[str]) -> list[str]:
    return [f"  {line}" for line in lines]


def _global_lines(files: Files, limits: Limits, threads: int) -> list[str]:
    return [
        "global",
        f"  stats socket {files.commands} mode 600 level admin",
        f"  nbthread {threads}",
        f"  tune.bufsize {min(limits.head_bytes, _MAX_HEAD_BYTES) + _SPARE_BYTES}",
        f"  tune.http.maxhdr {min(limits.header_fields, 32_767)}",
        "  ssl-default-bind-options ssl-min-ver TLSv1.2 no-tls-tickets",
    ]


def _default_lines(limits: Limits, *, is_tcp: bool) -> list[str]:
    lines = [
        "defaults base",
        f"  timeout connect {_format_ms(limits.connect_s)}",
        "  retries 2",
        "  option redispatch 1",
    ]
    lines += ["  option contstats", f"  timeout tunnel {_format_ms(limits.tunnel_gap_s)}"]
    if is_tcp:
        return [
            *lines,
            "  mode tcp",
            f"  timeout client {_format_ms(limits.tunnel_gap_s)}",
            f"  timeout server {_format_ms(limits.tunnel_gap_s)}",
        ]
    lines += [
        "  mode http",
        f"  timeout client {_format_ms(max(limits.body_gap_s, limits.unread_s))}",
        f"  timeout server {_format_ms(max(limits.first_byte_s, limits.stream_gap_s))}",
        f"  timeout http-request {_format_ms(limits.head_s)}",
        f"  timeout http-keep-alive {_format_ms(limits.keep_alive_s)}",
        "  option http-no-delay",
        "  option abortonclose",
        "  option http-restrict-req-hdr-names delete",
    ]
    for status, (title, detail) in _ERRORS.items():
        problem_document = f'{{"type":"about:blank","title":"{title}","status":{status},"detail":"{detail}"}}'
        lines.append(
            f"  http-error status {status} content-type application/problem+json string '{problem_document}'"
            " hdr Cache-Control no-store hdr X-Content-Type-Options nosniff"
        )
    return lines


def _bind_line(bind: Bind, protocol: ProxyProtocol) -> str:
    if bind.certificate is None:
        framing = " proto h2" if protocol in FRAMED else ""
        return f"bind fd@{bind.fd}{framing}"
    alpn = "" if protocol is ProxyProtocol.TCP else " alpn h2,http/1.1"
    return f"bind fd@{bind.fd} ssl crt {bind.certificate}{alpn}"


def _tcp_app_lines() -> list[str]:
    return ["option tcpka"]


def _tcp_rules(files: Files) -> list[str]:
    return [
        f"tcp-request content set-var(txn.circuit) dst_port,map_str({files.circuits})",
        "tcp-request content set-var(txn.backend) var(txn.circuit),field(2,/)",
        f"use_backend {FALLBACK} unless {{ var(txn.circuit) -m beg p/ }}",
        "use_backend %[var(txn.backend)]",
    ]


def _slot_expression(domain: str | None) -> str:
    return "dst_port" if domain is None else 'req.hdr(host),lower,regsub(:[0-9]+$,"")'


def _framed_rules(files: Files, *, domain: str | None, token_key: bytes) -> list[str]:
    """Returns HAProxy's rules for HTTP/2 requests: find the circuit, and verify the endpoint token.

    HAProxy verifies the tokens itself, by the same rules as `access.tokens.Tokens`.
    """
    encoded_key = "".join(f"%{byte:02x}" for byte in token_key)
    token_payload = "var(txn.token),jwt_payload_query"
    return [
        f"http-request set-var(txn.circuit) {_slot_expression(domain)},map_str({files.circuits})",
        "http-request set-var(txn.backend) var(txn.circuit),field(2,/)",
        "http-request set-var(txn.endpoint) var(txn.circuit),field(3,/)",
        "http-request set-var(txn.host) req.hdr(host)",
        "http-request deny deny_status 404 unless { var(txn.circuit) -m found } { req.hdr_cnt(host) eq 1 }",
        f"http-request deny deny_status 400 if {{ pathq -m reg -i '{_BAD_TARGET}' }}",
        "acl public var(txn.circuit) -m beg p/",
        "acl known_scheme req.fhdr(authorization) -m reg -i '^(?:backendai|bearer) '",
        "acl one_token req.fhdr_cnt(authorization) eq 1",
        "http-request set-var(txn.token) req.fhdr(authorization),word(2,' ') if !public",
        f"http-request set-var(txn.key) str({encoded_key}),url_dec if !public",
        "http-request set-var(txn.now) date if !public",
        "acl signed var(txn.token),jwt_verify(HS256,txn.key) 1",
        f"acl of_endpoint {token_payload}('$.aud'),strcmp(txn.endpoint) eq 0",
        f"acl of_type {token_payload}('$.typ') -m str inference",
        f"acl lasts {token_payload}('$.exp','int'),add(5),sub(txn.now) gt 0",
        f"acl limited {token_payload}('$.limits.requests[0].amount') -m found",
        f"acl limited {token_payload}('$.limits.tokens[0].amount') -m found",
        f"acl limited {token_payload}('$.limits.concurrent') -m found",
        "http-request deny deny_status 401 unless public || known_scheme one_token signed of_endpoint of_type lasts",
        "http-request deny deny_status 403 if !public limited",
        "http-request del-header authorization if !public",
        "use_backend %[var(txn.backend)]",
    ]


def _http_rules(files: Files, limits: Limits, *, domain: str | None) -> list[str]:
    """Returns HAProxy's rules that send a request to its app if it is surely permitted, and otherwise to the worker.

    The rules never permit more than the gate permits.
    """
    too_long_condition = f" || {{ req.hdr(content-length),add(0) gt {limits.body_bytes} }}" if limits.body_bytes else ""
    rules = [
        f"http-request set-var(txn.circuit) {_slot_expression(domain)},map_str({files.circuits})",
        f"use_backend {FALLBACK} unless {{ var(txn.circuit) -m found }}",
        "http-request set-var(txn.backend) var(txn.circuit),field(2,/)",
        "http-request set-var(txn.host) req.hdr(host)",
        "acl public var(txn.circuit) -m beg p/",
        "acl has_ours req.hdrs -m sub -i " + OUR_PREFIX,
        "http-request set-var(txn.id) var(txn.circuit),field(3,/) if !public",
        (
            f"http-request set-var(txn.permit) req.fhdr(cookie),sha2(256),hex,lower,concat(/,txn.id),"
            f"map_str({files.permits}) if !public"
        ),
        "http-request set-var(txn.cookies) 'req.fhdr(cookie),"
        'regsub("(^|;)[ \\t]*(?:__Host-)?' + OUR_PREFIX + '[^;]*","",gi),regsub("^;[ \\t]*","")\' if has_ours',
        f"use_backend {FALLBACK} unless public || {{ var(txn.permit) -m found }}",
        f"use_backend {FALLBACK} if has_ours {{ var(txn.cookies),lower -m sub {OUR_PREFIX} }}",
        f"use_backend {FALLBACK} if {{ path -m str {SETUP_PATH} }} || {{ method CONNECT TRACE }}{too_long_condition}",
        f"use_backend {FALLBACK} if {{ url -m reg -i '{_BAD_TARGET}' }}",
        r"acl odd_fields req.hdrs -m reg '[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]'",
        "acl odd_fields req.hdr_cnt(host) eq 0",
        "acl odd_fields req.hdr_cnt(host) gt 1",
        "acl odd_fields req.fhdr_cnt(cookie) gt 1",
        # HAProxy would pass trailers on, which an app may take for fields.
        "acl odd_fields req.hdr(transfer-encoding) -m found",
        # 2.6.12 reads 18446744073709551617 as 1, and passes on the field as it came.
        "acl odd_fields req.fhdr(content-length) -m len gt 15",
        "acl odd_fields req.hdr(connection) -m reg -i '^(?!(?:close|keep-alive|upgrade)$)'",
        f"use_backend {FALLBACK} if odd_fields",
        "acl has_upgrade req.hdr(upgrade) -m found",
        "acl own_origin req.fhdr_cnt(origin) eq 0",
        "acl own_origin req.fhdr(origin),strcmp(txn.origin) eq 0",
        "acl own_origin req.fhdr(origin),strcmp(txn.secure_origin) eq 0",
        "http-request set-var(txn.origin) str(http://),concat(,txn.host) if has_upgrade",
        "http-request set-var(txn.secure_origin) str(https://),concat(,txn.host) if has_upgrade",
        f"use_backend {FALLBACK} if has_upgrade !{{ req.fhdr(upgrade) -m str -i websocket }}",
        f"use_backend {FALLBACK} if has_upgrade !own_origin",
        "use_backend %[var(txn.backend)]",
    ]
    # HAProxy evaluates them in this order however they are written.
    return sorted(rules, key=lambda rule: rule.startswith("use_backend"))


def _http_app_lines(*, is_secure: bool, is_framed: bool) -> list[str]:
    """Returns HAProxy's rules that remove and set header fields of requests and responses.

    They do what `core.proxy.headers` does, but a cookie that has a name of the platform is emptied instead of removed.
    """
    removed_fields = "forwarded|x-forwarded-.*|x-real-ip|x-backendai-token|keep-alive|proxy-.*|http2-settings|.*_.*"
    if not is_framed:  # gRPC has its status in trailers
        removed_fields += "|te|trailer"
    return [
        f"http-request del-header '^(?:{removed_fields})$' -m reg",
        "http-request set-header X-Forwarded-For %[src]",
        f"http-request set-header X-Forwarded-Proto {'https' if is_secure else 'http'}",
        "http-request set-header X-Forwarded-Host %[var(txn.host)]",
        "http-request set-header Cookie %[var(txn.cookies)] if { var(txn.cookies) -m found }",
        "http-request del-header Cookie if { var(txn.cookies) -m found } { var(txn.cookies) -m len 0 }",
        # HAProxy cannot remove one of several fields: a cookie with a name of ours becomes empty, which browsers pass
        # over, and one for a domain becomes one of this host.
        f"http-response replace-header Set-Cookie '(?i)^[ \\t=]*(?:__Host-)?{OUR_PREFIX}.*' %[var(txn.nothing)]",
        r"http-response replace-header Set-Cookie '(?i)^(.*?);[ \t]*domain[ \t]*=[^;]*(.*)$' '\1\2'",
        r"http-response replace-header Set-Cookie '(?i)^.*;[ \t]*domain[ \t]*=.*' %[var(txn.nothing)]",
    ]


def _format_ms(seconds: float) -> str:
    return f"{max(1, round(1000 * seconds))}ms"


def weights_of(ratios: Mapping[str, float], max_weight: int = 256) -> dict[str, int]:
    """Converts traffic ratios to HAProxy's server weights, which are integers up to ``max_weight``.

    Small integer ratios are kept as they are, and other ratios are scaled.
    """
    if not ratios:
        return {}
    highest_ratio = max(ratios.values())
    if all(ratio == int(ratio) for ratio in ratios.values()) and highest_ratio <= max_weight:
        return {route: int(ratio) for route, ratio in ratios.items()}
    return {
        route: max(1, round(max_weight * ratio / highest_ratio)) if ratio > 0 else 0 for route, ratio in ratios.items()
    }
