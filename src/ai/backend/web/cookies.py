"""The cookie of login sessions."""

from __future__ import annotations

import msgspec
from aiohttp import web

UNATTENDED_HEADER = "X-BackendAI-Unattended"
_PLACEHOLDER = "none"
_PLACEHOLDER_AGE_S = 400 * 86_400
"""The longest life that browsers give a cookie (RFC 6265bis)."""


class CookiePolicy(msgspec.Struct, frozen=True, kw_only=True):
    """The cookie of login sessions: ``__Host-`` binds it to this host and to TLS where browsers use TLS.

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
        """Returns the token that a request carries."""
        return _only(request, self.name)

    def is_ambiguous(self, request: web.BaseRequest) -> bool:
        """Returns True for a request that carries the cookie more than once: others have set one."""
        return _count(request, self.name) > 1

    def occupy(self, request: web.BaseRequest, response: web.StreamResponse) -> None:
        """Gives a browser that has none of these cookies placeholders. ``request`` is one of a page of this origin, as
        browsers send no cookies with links of other sites."""
        if "Origin" not in request.headers:  # no page
            return
        if not _count(request, self.name):
            self.clear(response)
        if not _count(request, self.ticket_name):
            self.clear_ticket(response)

    @staticmethod
    def is_attended(request: web.BaseRequest) -> bool:
        """Returns False for a request that a page made by itself, without input of the user for some time. Only the end
        by inactivity depends on it: a browser that claims to be unattended shortens its own session."""
        return request.headers.get(UNATTENDED_HEADER) != "1"

    def set(self, response: web.StreamResponse, token: str) -> None:
        """Gives the browser the token of its login session."""
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
        """Returns the ticket that a request carries of a sign-in at another service."""
        return _only(request, self.ticket_name)

    def set_ticket(self, response: web.StreamResponse, ticket: str, *, max_age_s: int) -> None:
        """Gives the browser the ticket that it brings back from a sign-in service. It is ``Lax``, as it comes back from
        another site."""
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
        """Replaces the ticket by a placeholder."""
        self._set_placeholder(response, self.ticket_name, samesite="Lax")

    @property
    def proof_name(self) -> str:
        return f"{self.name}-proof"

    def proof_of(self, request: web.BaseRequest) -> str | None:
        """Returns the proof of who asks that a request carries, for the manager."""
        return _only(request, self.proof_name)

    def set_proof(self, response: web.StreamResponse, proof: str, *, max_age_s: int) -> None:
        """Gives the browser a proof, which no script reads."""
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
        """Makes the browser forget the proof."""
        response.del_cookie(self.proof_name, path="/", httponly=True, samesite="Strict", secure=self.scheme == "https")

    def clear(self, response: web.StreamResponse) -> None:
        """Replaces the token by a placeholder."""
        self._set_placeholder(response, self.name, samesite="Strict")

    def _set_placeholder(self, response: web.StreamResponse, name: str, *, samesite: str) -> None:
        response.set_cookie(
            name,
            _PLACEHOLDER,
            max_age=_PLACEHOLDER_AGE_S,
            path="/",
            httponly=True,
            samesite=samesite,
            secure=self.scheme == "https",
        )


def _count(request: web.BaseRequest, name: str) -> int:
    """Returns how often a request carries a cookie; a dictionary of cookies has only the last."""
    pairs = ";".join(request.headers.getall("Cookie", ())).split(";")
    return sum(pair.partition("=")[0].strip() == name for pair in pairs)


def _only(request: web.BaseRequest, name: str) -> str | None:
    """Returns the value of a cookie that a request carries exactly once, and that is no placeholder."""
    value = request.cookies.get(name) if _count(request, name) == 1 else None
    return value if value != _PLACEHOLDER else None
