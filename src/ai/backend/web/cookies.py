"""Reads and writes the cookies of login sessions."""

from __future__ import annotations

import msgspec
from aiohttp import web

UNATTENDED_HEADER = "X-BackendAI-Unattended"
_PLACEHOLDER_VALUE = "none"
_PLACEHOLDER_AGE_S = 400 * 86_400
"""The longest life that browsers give a cookie (RFC 6265bis)."""


class CookiePolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Defines the names and attributes of the web server's cookies, and reads and sets the cookies.

    ``__Host-`` binds the cookie of login sessions to this host, and to TLS if browsers use TLS.

    Cookies do not know ports, so that scripts of an app at another port of this host may set some. Where nobody is
    signed in, a placeholder that scripts cannot replace has the cookie's place; and a cookie that comes twice, as one
    that was set for a path, counts for nobody.
    """

    scheme: str
    base_name: str = "backendai"
    max_age_s: int

    @property
    def name(self) -> str:
        return f"__Host-{self.base_name}" if self.scheme == "https" else self.base_name

    def token_of(self, request: web.BaseRequest) -> str | None:
        """Returns the login token in a request's cookie."""
        return _only_value(request, self.name)

    def is_ambiguous(self, request: web.BaseRequest) -> bool:
        """Returns True if a request carries the login cookie more than once, because another site has set one too."""
        return _count(request, self.name) > 1

    def occupy(self, request: web.BaseRequest, response: web.StreamResponse) -> None:
        """Sets placeholders for the login cookie and the ticket cookie in a browser that does not have them.

        ``request`` is one of a page of this origin, as browsers send no cookies with links of other sites.
        """
        if "Origin" not in request.headers:  # no page
            return
        if not _count(request, self.name):
            self.clear(response)
        if not _count(request, self.ticket_name):
            self.clear_ticket(response)

    @staticmethod
    def is_attended(request: web.BaseRequest) -> bool:
        """Returns True unless a page made the request by itself, after some time without input of the user.

        Only the end by inactivity depends on it: a browser that claims to be unattended shortens its own session.
        """
        return request.headers.get(UNATTENDED_HEADER) != "1"

    def set(self, response: web.StreamResponse, token: str) -> None:
        """Sets the cookie with the token of a login session."""
        response.set_cookie(
            self.name,
            token,
            max_age=self.max_age_s,
            path="/",
            httponly=True,
            samesite="Strict",
            secure=self.scheme == "https",
        )

    @property
    def ticket_name(self) -> str:
        return f"{self.name}-ticket"

    def ticket_of(self, request: web.BaseRequest) -> str | None:
        """Returns the ticket of a sign-in at another service from a request's cookie."""
        return _only_value(request, self.ticket_name)

    def set_ticket(self, response: web.StreamResponse, ticket: str, *, max_age_s: int) -> None:
        """Sets the cookie with the ticket that the browser brings back from a sign-in service.

        It is ``Lax``, as it comes back from another site.
        """
        response.set_cookie(
            self.ticket_name,
            ticket,
            max_age=max_age_s,
            path="/",
            httponly=True,
            samesite="Lax",
            secure=self.scheme == "https",
        )

    def clear_ticket(self, response: web.StreamResponse) -> None:
        """Replaces the ticket cookie by a placeholder."""
        self._set_placeholder(response, self.ticket_name, samesite="Lax")

    @property
    def proof_name(self) -> str:
        return f"{self.name}-proof"

    def proof_of(self, request: web.BaseRequest) -> str | None:
        """Returns the proof cookie's value: the manager's token that the user gave the password or code lately."""
        return _only_value(request, self.proof_name)

    def set_proof(self, response: web.StreamResponse, proof: str, *, max_age_s: int) -> None:
        """Sets the proof cookie, which holds the manager's token that the user gave the password or code lately.

        No script can read the cookie.
        """
        response.set_cookie(
            self.proof_name,
            proof,
            max_age=max_age_s,
            path="/",
            httponly=True,
            samesite="Strict",
            secure=self.scheme == "https",
        )

    def clear_proof(self, response: web.StreamResponse) -> None:
        """Deletes the proof cookie in the browser."""
        response.del_cookie(self.proof_name, path="/", httponly=True, samesite="Strict", secure=self.scheme == "https")

    def clear(self, response: web.StreamResponse) -> None:
        """Replaces the token cookie by a placeholder."""
        self._set_placeholder(response, self.name, samesite="Strict")

    def _set_placeholder(self, response: web.StreamResponse, name: str, *, samesite: str) -> None:
        response.set_cookie(
            name,
            _PLACEHOLDER_VALUE,
            max_age=_PLACEHOLDER_AGE_S,
            path="/",
            httponly=True,
            samesite=samesite,
            secure=self.scheme == "https",
        )


def _count(request: web.BaseRequest, name: str) -> int:
    """Returns how many times a request carries the cookie of this name.

    A dictionary of cookies would hold only the last one.
    """
    cookie_pairs = ";".join(request.headers.getall("Cookie", ())).split(";")
    return sum(pair.partition("=")[0].strip() == name for pair in cookie_pairs)


def _only_value(request: web.BaseRequest, name: str) -> str | None:
    """Returns the value of a cookie that a request carries exactly once and that is no placeholder."""
    value = request.cookies.get(name) if _count(request, name) == 1 else None
    return value if value != _PLACEHOLDER_VALUE else None
