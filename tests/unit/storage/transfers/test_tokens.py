"""Tokens of transfers are refused once they expire, for another operation, and if anything about them is forged."""

from __future__ import annotations

import base64
import json
import time
from datetime import datetime, tzinfo
from typing import Any, Self

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from ai.backend.common.errors import AuthenticationFailed
from ai.backend.common.structs import replace
from ai.backend.storage.transfers.tokens import ArchiveClaims, DownloadClaims, Tokens, UploadClaims

SECRET = "x" * 64


class FrozenDatetime(datetime):
    """The clock of the library that verifies tokens."""

    instant = 0.0

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> Self:
        return cls.fromtimestamp(cls.instant, tz)


CLAIMS = UploadClaims(volume="v", vfid="f", relpath="p", size=3, session="s")
TOKENS = Tokens(SECRET, 60.0)
PAYLOAD = {"op": "upload", "volume": "v", "vfid": "f", "relpath": "p", "size": 3, "session": "s"}


def payload(**changes: Any) -> dict[str, Any]:
    """The claims of a valid token with these changes; None removes a claim."""
    claims = {**PAYLOAD, "exp": int(time.time()) + 60, **changes}
    return {name: value for name, value in claims.items() if value is not None}


def part(data: object) -> str:
    """A part of a token as it is written."""
    return base64.urlsafe_b64encode(json.dumps(data).encode()).rstrip(b"=").decode()


def refused(token: str, message: str = "not valid") -> None:
    with pytest.raises(AuthenticationFailed, match=message):
        TOKENS.read(token, UploadClaims)


def test_a_token_tells_what_it_was_made_of() -> None:
    assert TOKENS.read(TOKENS.issue(CLAIMS), UploadClaims) == CLAIMS
    archive = ArchiveClaims(volume="v", virtual_folder_id="f", files=("a", "b"))
    assert TOKENS.read(TOKENS.issue(archive), ArchiveClaims) == archive
    assert TOKENS.read(jwt.encode(payload(), SECRET, algorithm="HS256"), UploadClaims) == CLAIMS


def test_a_token_expires() -> None:
    refused(TOKENS.issue(CLAIMS, expire_s=-1), "expired")
    refused(Tokens(SECRET, -1.0).issue(CLAIMS), "expired")
    claims = jwt.decode(TOKENS.issue(CLAIMS, expire_s=600), SECRET, algorithms=["HS256"])
    assert 590 < claims["exp"] - time.time() <= 600


def test_a_token_that_was_valid_expires_too(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = Tokens(SECRET, 60.0)
    own, other = tokens.issue(CLAIMS), Tokens(SECRET, 60.0).issue(CLAIMS)
    assert tokens.read(own, UploadClaims) == tokens.read(other, UploadClaims) == CLAIMS
    now = time.time() + 61
    monkeypatch.setattr(time, "time", lambda: now)
    monkeypatch.setattr("jwt.api_jwt.datetime", FrozenDatetime)
    FrozenDatetime.instant = now
    for token in (own, other):
        with pytest.raises(AuthenticationFailed, match="expired"):
            tokens.read(token, UploadClaims)


def test_a_token_is_verified_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens, other = Tokens(SECRET, 60.0), Tokens(SECRET, 60.0).issue(CLAIMS)
    assert tokens.read(other, UploadClaims) == CLAIMS
    own = tokens.issue(CLAIMS)
    monkeypatch.setattr(jwt, "decode", None)
    assert tokens.read(other, UploadClaims) == tokens.read(own, UploadClaims) == CLAIMS


def test_the_number_of_tokens_that_are_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ai.backend.storage.transfers.tokens._MAX_REMEMBERED", 3)
    tokens = Tokens(SECRET, 60.0)
    texts = [tokens.issue(replace(CLAIMS, size=size)) for size in range(10)]
    assert len(tokens._valid) == 3
    assert [tokens.read(text, UploadClaims).size for text in texts] == list(range(10))
    assert len(tokens._valid) == 3


def test_a_token_of_another_operation_is_refused() -> None:
    with pytest.raises(AuthenticationFailed, match="another operation"):
        TOKENS.read(TOKENS.issue(CLAIMS), DownloadClaims)


@pytest.mark.parametrize("name", sorted(PAYLOAD.keys() | {"exp"}))
def test_a_token_without_a_claim_is_refused(name: str) -> None:
    refused(jwt.encode(payload(**{name: None}), SECRET, algorithm="HS256"))


@pytest.mark.parametrize(
    "changes",
    [
        {"nbf": 2**40},
        {"iat": 2**40},
        {"aud": "another"},
        {"exp": "later"},
        {"exp": [2**40]},
        {"size": "3"},
    ],
    ids=str,
)
def test_claims_that_do_not_hold_are_refused(changes: dict[str, Any]) -> None:
    refused(jwt.encode(payload(**changes), SECRET, algorithm="HS256"))


def test_an_unsigned_token_is_refused() -> None:
    refused(jwt.encode(payload(), "", algorithm="none"))
    for name in ("none", "None", "NONE", "nOnE", ""):
        refused(f"{part({'alg': name, 'typ': 'JWT'})}.{part(payload())}.")
        refused(f"{part({'alg': name, 'typ': 'JWT'})}.{part(payload())}.{TOKENS.issue(CLAIMS).rpartition('.')[2]}")


def test_a_token_of_another_key_or_algorithm_is_refused() -> None:
    refused(Tokens("y" * 64, 60.0).issue(CLAIMS))
    for algorithm in ("HS384", "HS512"):
        refused(jwt.encode(payload(), SECRET, algorithm=algorithm))
    pair = generate_private_key(65537, 2048)
    refused(jwt.encode(payload(), pair, algorithm="RS256"))


def test_a_key_that_a_token_brings_along_is_not_used() -> None:
    """CVE-2018-0114: a header with a key, or with the address of one, is no reason to believe it."""
    own = base64.urlsafe_b64encode(b"y" * 64).rstrip(b"=").decode()
    headers = {"jwk": {"kty": "oct", "k": own}, "jku": "https://evil.example/keys", "kid": "../../dev/null"}
    refused(jwt.encode(payload(), "y" * 64, algorithm="HS256", headers=headers))


def test_a_public_key_is_no_secret() -> None:
    """A proxy whose secret is a public key by mistake does not take tokens that are signed with it (CVE-2022-29217)."""
    public = (
        generate_private_key(65537, 2048).public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    )
    with pytest.raises(jwt.InvalidKeyError):
        Tokens(public.decode(), 60.0).issue(CLAIMS)


def test_a_changed_token_is_refused() -> None:
    header, body, signature = TOKENS.issue(CLAIMS).split(".")
    refused(f"{header}.{part(payload(size=10**12))}.{signature}")
    refused(f"{part({'alg': 'HS256', 'typ': 'JWT', 'x': 1})}.{body}.{signature}")
    for at in range(len(signature) - 1):  # the last character has bits that count for nothing
        changed = "A" if signature[at] != "A" else "B"
        refused(f"{header}.{body}.{signature[:at]}{changed}{signature[at + 1 :]}")


@pytest.mark.parametrize(
    "token", ["", ".", "..", "x.y.z", "ü", "a.\udc80.b", "{}", f"{part([])}.{part([])}.x", "a" * 100_000], ids=ascii
)
def test_a_malformed_token_is_refused(token: str) -> None:
    refused(token)
