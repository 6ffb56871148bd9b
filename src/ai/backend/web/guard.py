"""Checks every request of a browser, and adds headers to every response.

Sources: OWASP ASVS 5.0 chapters 3.3 to 3.5 (cookies, browser security headers, origin separation); Fetch Metadata.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable

from aiohttp import web
from aiohttp.typedefs import Middleware

from ai.backend.common.errors import Forbidden, InvalidInput
from ai.backend.infra.http.errors import problem_response
from ai.backend.infra.http.routes import SAFE_METHODS, RequestHandler

ResponseSignal = Callable[[web.Request, web.StreamResponse], Awaitable[None]]
_HOST_PATTERN = re.compile(r"(?:[A-Za-z0-9_.-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(?::[0-9]{1,5})?")
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Frame-Options": "DENY",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
}
POLICY = "Content-Security-Policy"
_HSTS = "max-age=31536000"
_API_CSP = "default-src 'none'; frame-ancestors 'none'"


def is_websocket(request: web.BaseRequest) -> bool:
    """Returns True for a request that asks for a WebSocket."""
    return request.headers.get("Upgrade", "").lower() == "websocket"


def public_origin(request: web.BaseRequest, *, scheme: str) -> str:
    """Returns ``scheme://host[:port]`` as the client wrote it. Raises InvalidInput for a malformed Host header."""
    host = request.headers.get("Host", "")
    if _HOST_PATTERN.fullmatch(host) is None:
        raise InvalidInput("The Host header is malformed.", data={"Host": "malformed"})
    return f"{scheme}://{host}"


def check_origin(request: web.BaseRequest, *, scheme: str) -> None:
    """Raises Forbidden for a request that a page of another origin makes, if it changes something or is a WebSocket.

    Programs that are no browsers send neither ``Origin`` nor ``Sec-Fetch-Site``, and have no cookies but their own.
    """
    if request.method in SAFE_METHODS and not is_websocket(request):
        return
    origin = request.headers.get("Origin")
    fetch_site = request.headers.get("Sec-Fetch-Site")
    is_foreign = origin is not None and origin.lower() != public_origin(request, scheme=scheme).lower()
    if is_foreign or fetch_site in ("cross-site", "same-site"):
        raise Forbidden("Pages of other sites may not do that.")


def guard_handlers(scheme: str, *, hsts_subdomains: bool = False) -> tuple[Middleware, ResponseSignal]:
    """Returns the middleware that checks requests, and the signal handler that adds headers to responses."""
    hsts_header = f"{_HSTS}; includeSubDomains" if hsts_subdomains else _HSTS

    @web.middleware
    async def check_middleware(request: web.Request, handler: RequestHandler) -> web.StreamResponse:
        try:
            check_origin(request, scheme=scheme)
        except (Forbidden, InvalidInput) as error:
            return problem_response(error)
        return await handler(request)

    async def add_headers(request: web.Request, response: web.StreamResponse) -> None:
        for name, value in _HEADERS.items():
            response.headers.setdefault(name, value)
        if POLICY not in response.headers or is_api(request.path):
            response.headers[POLICY] = _API_CSP
        if is_api(request.path):
            response.headers.setdefault("Cache-Control", "no-store")
        if scheme == "https":
            response.headers["Strict-Transport-Security"] = hsts_header

    return check_middleware, add_headers


def is_api(path: str) -> bool:
    """Returns True for paths whose responses are not files of the console."""
    return path.startswith(("/func", "/server/"))
