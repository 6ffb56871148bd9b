"""Makes the worker's own replies: errors with the codes of spec 03-15, and redirects.

Nothing of the request is in them.
"""

from __future__ import annotations

import json
from http import HTTPStatus

import msgspec

from ai.backend.common.errors import BackendError

_PAGE_HEADERS = (
    b"Cache-Control: no-store\r\n"
    b"Content-Security-Policy: default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'\r\n"
    b"X-Content-Type-Options: nosniff\r\n"
    b"Referrer-Policy: no-referrer\r\n"
)
_PAGE = (
    "<!doctype html><html lang=en><meta charset=utf-8><title>{title}</title>"
    "<style>body{{font:16px sans-serif;margin:4em auto;max-width:36em}}</style><h1>{title}</h1><p>{detail}</p></html>\n"
)


class Response(msgspec.Struct, frozen=True):
    """Holds a reply that the worker itself makes.

    ``fields`` are complete header lines; ``reason`` is a bounded word for metrics.
    """

    status: int
    fields: bytes
    body: bytes
    reason: str

    def head(self, *, keep_alive: bool) -> bytes:
        connection_header = b"" if keep_alive else b"Connection: close\r\n"
        reason_phrase = HTTPStatus(self.status).phrase.encode()
        return b"HTTP/1.1 %d %b\r\n%bContent-Length: %d\r\n%b\r\n" % (
            self.status,
            reason_phrase,
            self.fields,
            len(self.body),
            connection_header,
        )


def error(
    status: int,
    detail: str,
    kind: type[BackendError] | None = None,
    *,
    as_page: bool = False,
    fields: bytes = b"",
    model_code: str | None = None,
) -> Response:
    """Returns an error reply: an HTML page for browsers, or a problem document in JSON for other clients.

    The title of the error and its code come from ``kind``.

    With ``model_code`` it is for a client of a model: the problem has also the member that clients of OpenAI's
    interface read.
    """
    title = kind.title if kind else HTTPStatus(status).phrase
    code = kind.code if kind else None
    if as_page:
        media_type, body = b"text/html; charset=utf-8", _PAGE.format(title=title, detail=detail).encode()
    else:
        media_type = b"application/problem+json" if model_code is None else b"application/json"
        problem: dict[str, object] = {"type": "about:blank", "title": title, "status": status, "detail": detail}
        if model_code is not None:
            problem["error"] = {
                "message": detail,
                "type": _openai_error_type(status),
                "param": None,
                "code": model_code,
            }
        body = json.dumps({**problem, **({"error_code": code} if code else {})}).encode()
    header_lines = b"Content-Type: %b\r\n%b%b" % (media_type, _PAGE_HEADERS, fields)
    return Response(status, header_lines, body, code or HTTPStatus(status).name.lower())


def _openai_error_type(status: int) -> str:
    """Returns the error type of OpenAI's interface for an error."""
    if status == HTTPStatus.TOO_MANY_REQUESTS:
        return "rate_limit_error"
    return "server_error" if status >= HTTPStatus.INTERNAL_SERVER_ERROR else "invalid_request_error"


def json_response(value: object) -> Response:
    """Returns a reply with a value as JSON."""
    header_lines = b"Content-Type: application/json\r\n%b" % _PAGE_HEADERS
    return Response(200, header_lines, json.dumps(value).encode(), "models")


def redirect(location: str, cookie: str | None) -> Response:
    """Returns the reply that redirects a browser to the app at the end of a set-up, and sets its permit cookie.

    ``location`` is a path that was checked. Without ``cookie`` no cookie is set.
    """
    header_lines = b"Location: %b\r\n%b" % (location.encode("ascii"), _PAGE_HEADERS)
    if cookie is not None:
        header_lines += b"Set-Cookie: %b\r\n" % cookie.encode("ascii")
    return Response(303, header_lines, b"", "setup")
