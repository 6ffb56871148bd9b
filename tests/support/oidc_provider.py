"""An OpenID provider of our own, on authlib: it demands PKCE, a nonce, the secret of the client and its URL."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import flask
from authlib.integrations.flask_oauth2 import AuthorizationServer, ResourceProtector, current_token
from authlib.integrations.flask_oauth2.requests import FlaskOAuth2Request
from authlib.oauth2.rfc6749 import AuthorizationCodeGrant, ClientMixin
from authlib.oauth2.rfc6750 import BearerTokenValidator
from authlib.oauth2.rfc7636 import CodeChallenge
from authlib.oidc.core import AuthorizationCodeMixin, OpenIDCode
from joserfc import jwt as jose
from joserfc.jwk import RSAKey
from werkzeug.serving import make_server

CLIENT_ID, CLIENT_SECRET = "backendai", "the-secret-of-the-client"


class _Client(ClientMixin):
    def __init__(self, return_urls: list[str]) -> None:
        self.return_urls = return_urls

    def get_client_id(self) -> str:
        return CLIENT_ID

    def get_default_redirect_uri(self) -> str:
        return self.return_urls[0]

    def get_allowed_scope(self, scope: str) -> str:
        return scope

    def check_redirect_uri(self, redirect_uri: str) -> bool:
        return redirect_uri in self.return_urls

    def check_client_secret(self, client_secret: str) -> bool:
        return client_secret == CLIENT_SECRET

    def check_endpoint_auth_method(self, method: str, endpoint: str) -> bool:
        return method == "client_secret_basic"

    def check_response_type(self, response_type: str) -> bool:
        return response_type == "code"

    def check_grant_type(self, grant_type: str) -> bool:
        return grant_type == "authorization_code"


@dataclass
class _Code(AuthorizationCodeMixin):
    code: str
    redirect_uri: str
    scope: str
    nonce: str
    code_challenge: str
    code_challenge_method: str

    def get_redirect_uri(self) -> str:
        return self.redirect_uri

    def get_scope(self) -> str:
        return self.scope

    def get_nonce(self) -> str:
        return self.nonce

    def get_auth_time(self) -> None:
        return None

    def get_acr(self) -> None:
        return None

    def get_amr(self) -> None:
        return None


@dataclass
class _Token:
    access_token: str
    scope: str = "openid"

    def is_expired(self) -> bool:
        return False

    def is_revoked(self) -> bool:
        return False

    def get_scope(self) -> str:
        return self.scope


@cache
def _new_key() -> RSAKey:
    return RSAKey.generate_key(2048, {"kid": "first", "use": "sig"})


@dataclass
class OidcProvider:
    """Signs in ``claims`` without asking. ``forge`` may replace each ID token by another."""

    return_urls: list[str]
    claims: dict[str, Any] = field(default_factory=dict)
    forge: Callable[[OidcProvider, str], str] = lambda provider, token: token
    key: RSAKey = field(default_factory=_new_key)

    def __post_init__(self) -> None:
        self.codes: dict[str, _Code] = {}
        self.tokens: set[str] = set()
        self._server = make_server("127.0.0.1", 0, self._application(), threaded=True)
        self.issuer = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def sign(self, claims: dict[str, Any], **header: Any) -> str:
        """Signs a token by the key that the provider shows."""
        return jose.encode({"alg": "RS256", "kid": "first", **header}, claims, self.key)

    def _application(self) -> flask.Flask:
        app, client = flask.Flask("provider"), _Client(self.return_urls)
        server = AuthorizationServer(
            app,
            query_client=lambda client_id: client if client_id == CLIENT_ID else None,
            save_token=lambda token, request: self.tokens.add(token["access_token"]),
        )
        server.register_grant(_grant_of(self), [_extension_of(self), CodeChallenge(required=True)])
        protector = ResourceProtector()
        protector.register_token_validator(_validator_of(self))

        @app.get("/.well-known/openid-configuration")
        def discovery() -> dict[str, Any]:
            endpoints = {"authorization": "authorize", "token": "token", "userinfo": "userinfo"}
            named = {f"{name}_endpoint": f"{self.issuer}/{path}" for name, path in endpoints.items()}
            return {"issuer": self.issuer, "jwks_uri": f"{self.issuer}/keys", **named}

        @app.get("/keys")
        def keys() -> dict[str, Any]:
            return {"keys": [self.key.as_dict(private=False)]}

        @app.get("/authorize")
        def authorize() -> Any:
            request = FlaskOAuth2Request(flask.request)
            grant = server.get_consent_grant(request, end_user=self.claims)
            return server.create_authorization_response(request, grant_user=self.claims, grant=grant)

        @app.post("/token")
        def token() -> Any:
            response = server.create_token_response()
            if response.status_code != 200:
                return response
            body = response.get_json()
            return {**body, "id_token": self.forge(self, body["id_token"])}

        @app.get("/userinfo")
        @protector("openid")  # type: ignore[untyped-decorator]  # authlib has no types
        def userinfo() -> dict[str, Any]:
            assert current_token.access_token in self.tokens
            return self.claims

        return app


def _grant_of(provider: OidcProvider) -> type[AuthorizationCodeGrant]:
    class Grant(AuthorizationCodeGrant):
        TOKEN_ENDPOINT_AUTH_METHODS = ("client_secret_basic",)

        def save_authorization_code(self, code: str, request: Any) -> None:
            given = request.payload.data
            provider.codes[code] = _Code(
                code=code,
                redirect_uri=request.payload.redirect_uri,
                scope=request.payload.scope,
                nonce=given["nonce"],
                code_challenge=given["code_challenge"],
                code_challenge_method=given["code_challenge_method"],
            )

        def query_authorization_code(self, code: str, client: _Client) -> _Code | None:
            return provider.codes.get(code)

        def delete_authorization_code(self, authorization_code: _Code) -> None:
            del provider.codes[authorization_code.code]

        def authenticate_user(self, authorization_code: _Code) -> dict[str, Any]:
            return provider.claims

    return Grant


def _extension_of(provider: OidcProvider) -> OpenIDCode:
    class Extension(OpenIDCode):
        def exists_nonce(self, nonce: str, request: Any) -> bool:
            return any(code.nonce == nonce for code in provider.codes.values())

        def resolve_client_private_key(self, client: Any) -> RSAKey:
            return provider.key

        def get_client_claims(self, client: Any) -> dict[str, Any]:
            return {"iss": provider.issuer}

        def get_client_algorithm(self, client: Any) -> str:
            return "RS256"

        def generate_user_info(self, user: dict[str, Any], scope: str) -> dict[str, Any]:
            return {name: value for name, value in user.items() if name != "groups" or "profile" in scope}

    return Extension(require_nonce=True)


def _validator_of(provider: OidcProvider) -> BearerTokenValidator:
    class Validator(BearerTokenValidator):
        def authenticate_token(self, token_string: str) -> _Token | None:
            return _Token(token_string) if token_string in provider.tokens else None

    return Validator()
