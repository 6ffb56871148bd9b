"""Signs users on at an OpenID provider, to which their browsers are redirected.

Uses the code flow with PKCE (OpenID Connect Core 1.0, 3.1; RFC 7636; RFC 9700).

PyJWT verifies tokens; this module compares what the flow binds together: state, nonce, code verifier, issuer, client.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import logging
import secrets
from collections.abc import Mapping
from typing import Any

import jwt
import msgspec
from yarl import URL

from ai.backend.hook.mapping import site_user
from ai.backend.hook.oidc.client import ProviderClient, ProviderFailed
from ai.backend.hook.oidc.settings import OidcSettings
from ai.backend.plugin.hooks import AbstractHook, HookDenied, RedirectStart, SiteUser

log = logging.getLogger(__name__)
LEEWAY_S = 30
_REQUIRED_CLAIMS = ["exp", "iat", "iss", "aud", "sub", "nonce"]


class _Flow(msgspec.Struct, frozen=True, kw_only=True):
    """Holds random values that bind the steps of one sign-in. Only the manager and the provider see them."""

    state: str
    nonce: str
    verifier: str


class OidcSignOn(AbstractHook):
    """Signs users on by an OpenID provider."""

    settings_model = OidcSettings

    def __init__(self, settings: Any) -> None:
        super().__init__(settings)
        self._options: OidcSettings = settings
        self._provider = ProviderClient(settings)

    async def start(self) -> None:
        await self._provider.start()

    async def stop(self) -> None:
        await self._provider.stop()

    async def begin_redirect(self, return_url: str) -> RedirectStart | None:
        """Returns the URL of the OpenID provider to which the browser is sent for a sign-in.

        The URL has a challenge for a secret of this sign-in. Raises HookDenied for a return URL that the settings do
        not name.
        """
        if return_url not in self._options.return_urls:
            raise HookDenied("The settings of the plugin do not name the URL that you would come back to.")
        flow = _Flow(
            state=secrets.token_urlsafe(32), nonce=secrets.token_urlsafe(32), verifier=secrets.token_urlsafe(48)
        )
        challenge = base64.urlsafe_b64encode(hashlib.sha256(flow.verifier.encode()).digest()).rstrip(b"=").decode()
        url = URL(await self._provider.endpoint("authorization_endpoint")).extend_query(
            response_type="code",
            client_id=self._options.client_id,
            redirect_uri=return_url,
            scope=" ".join(self._options.scopes),
            state=flow.state,
            nonce=flow.nonce,
            code_challenge=challenge,
            code_challenge_method="S256",
        )
        return RedirectStart(url=str(url), secret=msgspec.json.encode(flow).decode())

    async def finish_redirect(self, secret: str, return_url: str, parameters: Mapping[str, str]) -> SiteUser:
        """Returns the user who signed in at the provider. Raises HookDenied."""
        flow = msgspec.json.decode(secret, type=_Flow)
        if not _is_same_text(parameters.get("state", ""), flow.state):
            raise HookDenied("This sign-in began in another browser: begin anew.")
        if not _is_same_text(parameters.get("iss", self._options.issuer), self._options.issuer):  # RFC 9207
            raise HookDenied("The answer is of another sign-in service.")
        code = parameters.get("code", "")
        if not code:
            log.info("the provider refused a sign-in: %s", parameters.get("error", "")[:64])
            raise HookDenied("The sign-in service did not let you in.")
        try:
            tokens = await self._provider.exchange(code, flow.verifier, return_url)
            claims = await self._verify_id_token(str(tokens.get("id_token") or ""), flow.nonce)
            claims = await self._complete_claims(claims, str(tokens.get("access_token") or ""))
        except ProviderFailed as e:
            log.warning("a sign-in at %s failed: %s", self._options.issuer, e)
            raise HookDenied("The sign-in service did not confirm who you are: begin anew.") from None
        return self._site_user(claims)

    async def _verify_id_token(self, id_token: str, nonce: str) -> Mapping[str, Any]:
        """Returns the claims of an ID token (Core 1.0, 3.1.3.7). Raises ProviderFailed."""
        options = self._options
        try:
            header = jwt.get_unverified_header(id_token)
            if header.get("alg") not in options.algorithms:
                raise ProviderFailed("an ID token has another signature than the settings accept")
            key = await self._provider.key(str(header.get("kid") or ""))
            claims: dict[str, Any] = jwt.decode(
                id_token,
                key.key,
                algorithms=list(options.algorithms),
                audience=options.client_id,
                issuer=options.issuer,
                leeway=LEEWAY_S,
                options={"require": _REQUIRED_CLAIMS},
            )
        except (jwt.PyJWTError, UnicodeError, TypeError) as e:
            raise ProviderFailed(f"an ID token is not valid: {e}") from None
        audiences = claims["aud"] if isinstance(claims["aud"], list) else [claims["aud"]]
        if claims.get("azp", options.client_id) != options.client_id or (len(audiences) > 1 and "azp" not in claims):
            raise ProviderFailed("an ID token was issued to another client")
        if not _is_same_text(str(claims["nonce"]), nonce):
            raise ProviderFailed("an ID token is of another sign-in")
        return claims

    async def _complete_claims(self, claims: Mapping[str, Any], access_token: str) -> Mapping[str, Any]:
        """Returns the claims of an ID token. If the token lacks the e-mail address or the groups, the claims of the
        provider's userinfo endpoint are added.
        """
        options = self._options
        is_complete = options.email_claim in claims and (not options.groups or options.groups_claim in claims)
        if is_complete or not access_token:
            return claims
        userinfo_claims = await self._provider.claims(access_token)
        if userinfo_claims.get("sub") != claims["sub"]:  # Core 1.0, 5.3.2
            raise ProviderFailed("the claims are of another user")
        return {**userinfo_claims, **claims}

    def _site_user(self, claims: Mapping[str, Any]) -> SiteUser:
        options = self._options
        email = claims.get(options.email_claim)
        if not isinstance(email, str) or not email:
            raise HookDenied("The sign-in service does not tell your e-mail address.")
        if options.requires_verified_email and claims.get("email_verified") is not True:
            raise HookDenied("The sign-in service has not verified your e-mail address.")
        groups = claims.get(options.groups_claim)
        return site_user(
            options,
            email=email,
            username=str(claims.get(options.username_claim) or ""),
            full_name=str(claims.get("name") or ""),
            groups=[name for name in groups if isinstance(name, str)] if isinstance(groups, list) else [],
        )


def _is_same_text(given_text: str, expected_text: str) -> bool:
    return hmac.compare_digest(given_text.encode(errors="replace"), expected_text.encode())
