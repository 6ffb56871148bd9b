"""Sign-in by tokens that another site signs, and what forges them."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from pydantic import ValidationError

from ai.backend.hook.token.plugin import TokenSettings, TokenSignOnHook
from ai.backend.plugin.hooks import AbstractHook, HookDenied, TokenSignOn
from ai.backend.plugin.testing.hooks import HookContract

ISSUER, AUDIENCE = "https://portal.example.org", "https://console.example.org"


class Portal:
    """Another site, which signs tokens."""

    def __init__(self, folder: Path) -> None:
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.public = self.key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        self.public_key_file = folder / "portal.pem"
        self.public_key_file.write_bytes(self.public)
        self.count = 0

    def settings(self, **more: Any) -> TokenSettings:
        given = {"issuer": ISSUER, "audience": AUDIENCE, "public_key_file": str(self.public_key_file)}
        groups = {"research": {"projects": ["lab"]}}
        return TokenSettings.model_validate({**given, "groups": groups, "algorithms": ["ES256"], **more})

    def hook(self, **more: Any) -> TokenSignOnHook:
        return TokenSignOnHook(self.settings(**more))

    def claims(self, **changes: Any) -> dict[str, Any]:
        self.count += 1
        now = int(time.time())
        claims = {
            "iss": ISSUER,
            "aud": AUDIENCE,
            "iat": now,
            "exp": now + 60,
            "jti": f"token-{self.count}",
            "email": "ann@example.org",
            "groups": ["research", "x"],
            **changes,
        }
        return {name: value for name, value in claims.items() if value is not None}

    def token(self, *, key: Any = None, algorithm: str = "ES256", **changes: Any) -> str:
        return jwt.encode(self.claims(**changes), key or self.key, algorithm=algorithm)


@pytest.fixture
def portal(tmp_path: Path) -> Portal:
    return Portal(tmp_path)


class TestToken(HookContract):
    @pytest.fixture(autouse=True)
    def _portal(self, tmp_path: Path) -> None:
        self.portal = Portal(tmp_path)

    def make(self) -> AbstractHook:
        return self.portal.hook()


def asked(token: str) -> TokenSignOn:
    return TokenSignOn(token=token, address="192.0.2.1")


async def test_a_token_names_a_user(portal: Portal) -> None:
    named = await portal.hook().sign_on_token(asked(portal.token(jti="one")))
    assert named is not None
    assert (named.user.email, named.user.project_names, named.token_id) == ("ann@example.org", ("lab",), "one")
    assert not named.user.may_be_admin


def unsigned(portal: Portal) -> str:
    def part(value: dict[str, Any]) -> str:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()

    return f"{part({'alg': 'none'})}.{part(portal.claims())}."


def signed_by_the_public_key(portal: Portal) -> str:
    """The confusion of a public key with a shared secret (RFC 8725, 2.1)."""

    def part(value: dict[str, Any]) -> bytes:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=")

    import hashlib
    import hmac

    text = part({"alg": "HS256", "typ": "JWT"}) + b"." + part(portal.claims())
    mac = base64.urlsafe_b64encode(hmac.digest(portal.public, text, hashlib.sha256)).rstrip(b"=")
    return (text + b"." + mac).decode()


def with_changed_claims(portal: Portal) -> str:
    head, _, signature = portal.token().split(".")
    payload = base64.urlsafe_b64encode(json.dumps(portal.claims(email="root@example.org")).encode()).rstrip(b"=")
    return f"{head}.{payload.decode()}.{signature}"


FORGED: dict[str, Callable[[Portal], str]] = {
    "of another key": lambda portal: portal.token(key=ec.generate_private_key(ec.SECP256R1())),
    "of another curve": lambda portal: portal.token(key=ec.generate_private_key(ec.SECP384R1()), algorithm="ES384"),
    "without a signature": unsigned,
    "signed by the public key": signed_by_the_public_key,
    "with changed claims": with_changed_claims,
    "for another site": lambda portal: portal.token(aud="https://other.example.org"),
    "for several sites": lambda portal: portal.token(aud=[AUDIENCE, "https://other.example.org"]),
    "for nobody": lambda portal: portal.token(aud=None),
    "expired": lambda portal: portal.token(iat=int(time.time()) - 120, exp=int(time.time()) - 60),
    "of the future": lambda portal: portal.token(iat=int(time.time()) + 600, exp=int(time.time()) + 660),
    "good for too long": lambda portal: portal.token(exp=int(time.time()) + 100_000),
    "without an end": lambda portal: portal.token(exp=None),
    "without a beginning": lambda portal: portal.token(iat=None),
    "without an id": lambda portal: portal.token(jti=None),
    "with an empty id": lambda portal: portal.token(jti=""),
    "without an address": lambda portal: portal.token(email=None),
    "with addresses": lambda portal: portal.token(email=["ann@example.org"]),
}


@pytest.mark.parametrize("what", FORGED)
async def test_forged_and_old_tokens_sign_nobody_in(portal: Portal, what: str) -> None:
    with pytest.raises(HookDenied):
        await portal.hook().sign_on_token(asked(FORGED[what](portal)))


async def test_tokens_of_others_are_left_to_other_plugins(portal: Portal) -> None:
    hook = portal.hook()
    for token in ("", "x", "a.b.c", portal.token(iss="https://elsewhere.example"), "[" * 8_000, portal.token(iss=None)):
        assert await hook.sign_on_token(asked(token)) is None


async def test_another_spelling_of_a_token_has_the_same_id(portal: Portal) -> None:
    token = portal.token(jti="one")
    head, payload, signature = token.split(".")
    raw = base64.urlsafe_b64decode(signature + "==")
    order = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
    other = raw[:32] + (order - int.from_bytes(raw[32:])).to_bytes(32)
    respelled = f"{head}.{payload}.{base64.urlsafe_b64encode(other).rstrip(b'=').decode()}"
    assert respelled != token
    named = await portal.hook().sign_on_token(asked(respelled))
    assert named is not None, "ECDSA signatures have two spellings"
    assert named.token_id == "one"


def test_settings_that_would_let_anybody_in_are_refused(portal: Portal, tmp_path: Path) -> None:
    wrong: list[dict[str, Any]] = [
        {"algorithms": ["HS256"]},
        {"algorithms": ["none"]},
        {"algorithms": []},
        {"audience": ""},
        {"issuer": ""},
    ]
    for more in wrong:
        with pytest.raises(ValidationError):
            portal.settings(**more)
    private = portal.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    for name, content in (("private.pem", private), ("empty.pem", b"")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ValidationError):
            portal.settings(public_key_file=str(tmp_path / name))
    with pytest.raises(ValidationError):
        portal.settings(public_key_file=str(tmp_path / "missing.pem"))
