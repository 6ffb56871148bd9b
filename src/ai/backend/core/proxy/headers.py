"""Defines rules for heads of HTTP messages: which requests are refused, and which header fields are passed on."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from ai.backend.core.proxy.cookies import accepts_app_cookie
from ai.backend.core.proxy.hosts import split_host

Header = tuple[bytes, bytes]

HOP_BY_HOP = frozenset(
    (
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
        b"http2-settings",
    )
)
OURS = frozenset(
    (
        b"forwarded",
        b"x-forwarded-for",
        b"x-forwarded-host",
        b"x-forwarded-port",
        b"x-forwarded-proto",
        b"x-forwarded-server",
        b"x-real-ip",
        b"x-backendai-token",
    )
)
"""Fields that apps receive from the proxy only, never from clients."""
_NEVER_PASSED = HOP_BY_HOP | OURS | {b"host", b"content-length", b"expect", b"cookie"}
_NOTHING: frozenset[bytes] = frozenset()
_FORBIDDEN_CHARACTERS = re.compile(rb"[^!-~]|[#\\]")
"""Anything but visible ASCII, fragments, and backslashes, which some servers read as slashes."""
_BAD_ESCAPE = re.compile(rb"%(?:00|(?![0-9A-Fa-f]{2}))")


class BadRequest(Exception):
    """Raised for an HTTP request that the proxy refuses.

    The connection of the request ends. ``status`` is the status code of the reply.
    """

    def __init__(self, reason: str, status: int = 400) -> None:
        super().__init__(reason)
        self.status = status


def check_request(method: bytes, target: bytes, version: str, headers: Sequence[Header]) -> bytes:
    """Returns the Host of a request. Refuses a request whose framing or target is ambiguous. Raises BadRequest.

    Names in ``headers`` are in lower case.
    """
    if method in (b"CONNECT", b"TRACE"):
        raise BadRequest("method not allowed", 405)
    if not target.startswith(b"/") and not (target == b"*" and method == b"OPTIONS"):
        raise BadRequest("the target is not a path")
    if _FORBIDDEN_CHARACTERS.search(target):
        raise BadRequest("the target has a forbidden character")
    if b"%" in target and _BAD_ESCAPE.search(target):
        raise BadRequest("the target has a malformed escape")
    hosts = [value for name, value in headers if name == b"host"]
    encodings = [value for name, value in headers if name == b"transfer-encoding"]
    if len(hosts) != 1 or not hosts[0]:
        raise BadRequest("there must be one Host")
    if encodings:
        if len(encodings) > 1 or encodings[0].lower() != b"chunked":
            raise BadRequest("transfer encoding not supported", 501)
        if version != "1.1" or any(name == b"content-length" for name, _ in headers):
            raise BadRequest("ambiguous length")
    return hosts[0]


def _connection_fields(headers: Iterable[Header]) -> frozenset[bytes]:
    """Returns the fields that the ``Connection`` header names."""
    connection_values = [value for name, value in headers if name == b"connection"]
    return (
        frozenset(token.strip().lower() for value in connection_values for token in value.split(b","))
        if connection_values
        else _NOTHING
    )


def request_fields(headers: Sequence[Header], *, hidden: frozenset[bytes] = frozenset()) -> list[bytes]:
    """Returns those header lines of a client's request that are passed to the app.

    ``hidden``: further names that are not passed.

    Fields that Connection names go, so do names with underscores, which some servers read as hyphens.
    """
    dropped_names = _NEVER_PASSED
    if further_names := hidden | _connection_fields(headers):
        dropped_names = dropped_names | further_names
    return [b"%b: %b\r\n" % header for header in headers if header[0] not in dropped_names and b"_" not in header[0]]


def response_fields(headers: Sequence[Header], host: bytes) -> list[bytes]:
    """Returns the lines of the app's header fields that are passed to the client.

    ``host`` is the Host of the request.
    """
    dropped_names = HOP_BY_HOP
    if connection_names := _connection_fields(headers):
        dropped_names = dropped_names | connection_names
    return [
        b"%b: %b\r\n" % (name, value)
        for name, value in headers
        if name not in dropped_names and (name != b"set-cookie" or _accepts_cookie(value, host))
    ]


def _accepts_cookie(value: bytes, host: bytes) -> bool:
    host_and_port = split_host(host.decode("latin-1"))
    return accepts_app_cookie(value.decode("latin-1"), host_and_port[0] if host_and_port else "")


def forwarded_fields(address: str, scheme: str, host: bytes) -> bytes:
    """Returns the ``X-Forwarded-*`` header lines with the address, scheme and host of the client's request.

    Such lines from the client itself were dropped.
    """
    return b"X-Forwarded-For: %b\r\nX-Forwarded-Proto: %b\r\nX-Forwarded-Host: %b\r\n" % (
        address.encode(),
        scheme.encode(),
        host,
    )


def values_of(headers: Iterable[Header], name: bytes) -> list[str]:
    """Returns the values of a header field in their order."""
    return [value.decode("latin-1") for field_name, value in headers if field_name == name]
