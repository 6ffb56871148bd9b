"""The cookie of login sessions."""

from __future__ import annotations

from dataclasses import dataclass

from aiohttp import web

UNATTENDED_HEADER = "X-BackendAI-Unattended"


@dataclass(frozen=True, slots=True, kw_only=True)
class CookiePolicy:
    """The cookie of login sessions: ``__Host-`` binds it to this host and to TLS where browsers use TLS."""

    scheme: str
    base_name: str = "backendai"
    max_age_s: int

    @property
    def name(self) -> str:
        return f"__Host-{self.base_name}" if self.scheme == "https" else self.base_name

    def token_of(self, request: web.BaseRequest) -> str | None:
        """Returns the token that a request carries."""
        return request.cookies.get(self.name)

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
        return request.cookies.get(self.ticket_name)

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
        """Makes the browser forget the ticket."""
        response.del_cookie(self.ticket_name, path="/", httponly=True, samesite="Lax", secure=self.scheme == "https")

    @property
    def proof_name(self) -> str:
        return f"{self.name}-proof"

    def proof_of(self, request: web.BaseRequest) -> str | None:
        """Returns the proof of who asks that a request carries, for the manager."""
        return request.cookies.get(self.proof_name)

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
        """Makes the browser forget the token."""
        response.del_cookie(self.name, path="/", httponly=True, samesite="Strict", secure=self.scheme == "https")
