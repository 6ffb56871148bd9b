"""Settings of sign-in by OpenID Connect."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, SecretStr, field_validator
from yarl import URL

from ai.backend.hook.mapping import MappingSettings

Algorithm = Literal["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]
"""Signatures by a key of the provider. Neither ``none`` nor a secret that is shared with clients is one."""


class OidcSettings(MappingSettings):
    """Settings of the provider, and of the scopes and claims that are requested."""

    issuer: str = Field(..., description="The URL of the provider, exactly as its tokens name it.")
    client_id: str = Field(..., min_length=1, description="How the provider knows this installation.")
    client_secret: SecretStr = Field(SecretStr(""), description="The secret of the client; empty for a public client.")
    return_urls: list[str] = Field(
        ...,
        min_length=1,
        description="URLs that browsers come back to, as registered with the provider: "
        "https://console.example.org/server/sso/NAME/callback for a web server, NAME being this plugin's.",
    )
    scopes: list[str] = Field(["openid", "email", "profile"], description="What is asked for.")
    algorithms: list[Algorithm] = Field(["RS256", "ES256"], min_length=1, description="Signatures that are accepted.")
    email_claim: str = Field("email", min_length=1, description="The claim that names the account here.")
    requires_verified_email: bool = Field(
        True, description="Whether the provider must have verified that address (claim `email_verified`)."
    )
    username_claim: str = Field("preferred_username", min_length=1, description="The name of new users.")
    groups_claim: str = Field("groups", min_length=1, description="The claim with the names of the user's groups.")
    allows_http: bool = Field(False, description="Whether the provider may be reached without TLS; for tests only.")
    timeout_s: float = Field(5.0, gt=0, description="How long the provider has for each answer, in seconds.")

    @property
    def schemes(self) -> tuple[str, ...]:
        """The schemes of URLs that may be used."""
        return ("https", "http") if self.allows_http else ("https",)

    @field_validator("issuer")
    @classmethod
    def _is_url(cls, issuer: str) -> str:
        url = URL(issuer)
        if url.scheme not in ("https", "http") or not url.host or url.query_string or url.fragment:
            raise ValueError("an issuer is an https URL without query")
        return issuer

    @field_validator("scopes")
    @classmethod
    def _has_openid(cls, scopes: list[str]) -> list[str]:
        if "openid" not in scopes:
            raise ValueError("the scope openid is needed")
        return scopes
