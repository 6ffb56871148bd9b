"""Sign-in by a real OpenID provider, and what forges its answers."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

import aiohttp
import jwt
import pytest
from pydantic import ValidationError
from yarl import URL

from ai.backend.hook.oidc.plugin import OidcSignOn
from ai.backend.hook.oidc.settings import OidcSettings
from ai.backend.plugin.hooks import AbstractHook, HookDenied, RedirectStart, SiteUser
from ai.backend.plugin.testing.hooks import HookContract
from tests.support.oidc_provider import CLIENT_ID, CLIENT_SECRET, OidcProvider

RETURN_URL = "https://console.example.org/server/sso/oidc/callback"
CLAIMS = {"sub": "17", "email": "ann@example.org", "email_verified": True, "name": "Ann", "groups": ["research", "x"]}


def settings_of(issuer: str, **more: Any) -> OidcSettings:
    given = {
        "issuer": issuer,
        "client_id": CLIENT_ID,
        "client_secret": CLIENT_SECRET,
        "return_urls": [RETURN_URL],
        "groups": {"research": {"projects": ["lab"]}},
        "allows_http": True,
    }
    return OidcSettings.model_validate({**given, **more})


@pytest.fixture(scope="module")
def running() -> Iterator[OidcProvider]:
    provider = OidcProvider([RETURN_URL])
    provider.start()
    yield provider
    provider.stop()


@pytest.fixture
def provider(running: OidcProvider) -> OidcProvider:
    running.claims, running.forge = dict(CLAIMS), lambda provider, token: token
    return running


@pytest.fixture
async def hook(provider: OidcProvider) -> AsyncIterator[OidcSignOn]:
    hook = OidcSignOn(settings_of(provider.issuer))
    await hook.start()
    yield hook
    await hook.stop()


async def visited(start: RedirectStart) -> Mapping[str, str]:
    """Returns the query with which the provider sends a browser back."""
    async with aiohttp.ClientSession() as browser, browser.get(start.url, allow_redirects=False) as response:
        assert response.status == 302, await response.text()
        back = URL(response.headers["Location"])
    assert str(back.with_query(None)) == RETURN_URL
    return dict(back.query)


async def signed_in(hook: AbstractHook) -> SiteUser:
    start = await hook.begin_redirect(RETURN_URL)
    assert start is not None
    return await hook.finish_redirect(start.secret, RETURN_URL, await visited(start))


class TestContract(HookContract):
    def make(self) -> AbstractHook:
        return OidcSignOn(settings_of("http://127.0.0.1:9"))


async def test_a_provider_signs_a_user_in(hook: OidcSignOn) -> None:
    assert await signed_in(hook) == SiteUser(
        email="ann@example.org",
        full_name="Ann",
        domain_name="default",
        project_names=("lab",),
        managed_projects=("lab",),
        may_create=True,
    )


async def test_a_browser_comes_back_with_what_it_took_along(hook: OidcSignOn, provider: OidcProvider) -> None:
    first, second = [await hook.begin_redirect(RETURN_URL) for _ in range(2)]
    assert first is not None
    assert second is not None
    query = URL(first.url).query
    assert (query["code_challenge_method"], query["response_type"]) == ("S256", "code")
    told = await visited(first)
    for parameters in (
        {**told, "state": "x"},
        {name: value for name, value in told.items() if name != "state"},
        {**told, "iss": "https://else.example"},
        {"state": told["state"], "error": "access_denied"},
        {**told, "code": "x"},
    ):
        with pytest.raises(HookDenied):
            await hook.finish_redirect(first.secret, RETURN_URL, parameters)
    with pytest.raises(HookDenied, match="another browser"):
        await hook.finish_redirect(second.secret, RETURN_URL, told)
    # An attacker's code in the browser of another: its state is that browser's, its verifier is not (RFC 9700, 4.5).
    own = await visited(second)
    with pytest.raises(HookDenied, match="did not confirm"):
        await hook.finish_redirect(second.secret, RETURN_URL, {**own, "code": told["code"]})
    assert (await hook.finish_redirect(first.secret, RETURN_URL, told)).email == "ann@example.org"
    with pytest.raises(HookDenied):
        await hook.finish_redirect(first.secret, RETURN_URL, told)


async def test_browsers_come_back_to_named_urls_alone(hook: OidcSignOn) -> None:
    for url in ("https://evil.example/", RETURN_URL + "/../x", RETURN_URL + "?next=https://evil.example", ""):
        with pytest.raises(HookDenied, match="do not name"):
            await hook.begin_redirect(url)


STRANGER = jwt.PyJWK.from_dict({"kty": "oct", "k": "c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0LXNlY3JldA", "alg": "HS256"})


def with_time(name: str, offset_s: int) -> Any:
    """Changes a claim to a time that counts from the sign-in, not from the collection of the tests."""

    def forge(provider: OidcProvider, token: str) -> str:
        return str(with_claims(**{name: int(time.time()) + offset_s})(provider, token))

    return forge


def with_claims(**changes: Any) -> Any:
    def forge(provider: OidcProvider, token: str) -> str:
        claims = {**jwt.decode(token, options={"verify_signature": False}), **changes}
        return provider.sign({name: value for name, value in claims.items() if value is not None})

    return forge


def unsigned(provider: OidcProvider, token: str) -> str:
    claims = jwt.decode(token, options={"verify_signature": False})
    return jwt.encode(claims, "", algorithm="none", headers={"kid": "first"})


def by_public_key(provider: OidcProvider, token: str) -> str:
    """Signed by HMAC with the public key as its secret, which everybody has."""
    claims = jwt.decode(token, options={"verify_signature": False})
    secret = jwt.PyJWK.from_dict({"kty": "oct", "k": provider.key.as_dict(private=False)["n"], "alg": "HS256"})
    return jwt.encode(claims, secret.key, algorithm="HS256", headers={"kid": "first"})


def by_unknown_key(provider: OidcProvider, token: str) -> str:
    claims = jwt.decode(token, options={"verify_signature": False})
    return jwt.encode(claims, STRANGER.key, algorithm="HS256", headers={"kid": "second"})


@pytest.mark.parametrize(
    "forge",
    [
        with_claims(aud="another client"),
        with_claims(aud=[CLIENT_ID, "another client"]),
        with_claims(aud=[CLIENT_ID, "another client"], azp="another client"),
        with_claims(iss="https://else.example"),
        with_claims(nonce="another"),
        with_claims(nonce=None),
        with_time("exp", -120),
        with_claims(exp=None),
        with_time("iat", 600),
        with_claims(sub=None),
        unsigned,
        by_public_key,
        by_unknown_key,
        lambda provider, token: token[:-4] + "AAAA",
        lambda provider, token: "",
        lambda provider, token: "a.b.c",
    ],
    ids=lambda forge: getattr(forge, "__name__", "forge"),
)
async def test_forged_tokens_sign_nobody_in(
    hook: OidcSignOn, provider: OidcProvider, forge: Any, caplog: pytest.LogCaptureFixture
) -> None:
    assert (await signed_in(hook)).email == CLAIMS["email"]
    provider.forge = forge
    with pytest.raises(HookDenied, match="did not confirm"):
        await signed_in(hook)
    assert "ID token" in caplog.text


async def test_addresses_must_be_verified_and_groups_give_no_role(provider: OidcProvider, hook: OidcSignOn) -> None:
    for change in ({"email_verified": False}, {"email_verified": "true"}, {"email": ""}, {"email": None}):
        provider.claims = {**CLAIMS, **change}
        with pytest.raises(HookDenied, match="e-mail address"):
            await signed_in(hook)
    provider.claims = {**CLAIMS, "groups": ["superadmin", "admin", "research"], "role": "superadmin"}
    user = await signed_in(hook)
    assert (user.project_names, user.may_be_admin) == (("lab",), False)
    provider.claims = {**CLAIMS, "groups": "research"}
    assert (await signed_in(hook)).project_names == ()


async def test_the_document_is_of_the_issuer(provider: OidcProvider) -> None:
    other = OidcSignOn(settings_of(provider.issuer + "/"))
    await other.start()
    with pytest.raises(Exception, match="another issuer"):
        await other.begin_redirect(RETURN_URL)
    await other.stop()
    strict = OidcSignOn(settings_of(provider.issuer, allows_http=False))
    await strict.start()
    with pytest.raises(Exception, match="may be used"):
        await strict.begin_redirect(RETURN_URL)
    await strict.stop()


def test_weak_settings_are_refused() -> None:
    wrong_settings: list[dict[str, Any]] = [
        {"algorithms": ["none"]},
        {"algorithms": ["HS256"]},
        {"return_urls": []},
        {"scopes": ["email"]},
    ]
    for wrong in wrong_settings:
        with pytest.raises(ValidationError):
            settings_of("https://id.example", **wrong)
    with pytest.raises(ValidationError):
        settings_of("ftp://id.example")
