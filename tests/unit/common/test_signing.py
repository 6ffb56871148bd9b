"""The signature, against an independent computation from the spec's text.

The digest that the spec prints cannot be had from the values that it prints (its text to sign still says
``x-sorna-version``, and the digest does not follow from that either), so the algorithm is written down a second time.
"""

from __future__ import annotations

import hashlib
import hmac
from datetime import UTC, datetime, timedelta

import pytest

from ai.backend.common.errors import AuthenticationFailed
from ai.backend.common.signing import (
    HASH_NAMES,
    MAX_SKEW,
    Credential,
    SignedParts,
    authorization,
    check_skew,
    media_type,
    parse_authorization,
    parse_date,
    sign,
)
from ai.backend.common.structs import replace

SECRET = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
PARTS = SignedParts(
    method="GET",
    raw_target="/v2",
    date="20160930T01:23:45Z",
    host="your.sorna.api.endpoint",
    content_type="application/json",
    version="v2.20170215",
)


def by_hand(parts: SignedParts, body: bytes, hash_name: str = "sha256") -> str:
    """The algorithm of spec 03-07 written down a second time."""

    def mac(key: bytes, text: str) -> bytes:
        return hmac.new(key, text.encode(), hash_name).digest()

    lines = [
        parts.method,
        parts.raw_target,
        parts.date,
        "host:" + parts.host,
        "content-type:" + parts.content_type,
        "x-backendai-version:" + parts.version,
        hashlib.new(hash_name, body).hexdigest(),
    ]
    signing_key = mac(mac(SECRET.encode(), "20160930"), parts.host)
    return mac(signing_key, "\n".join(lines)).hex()


@pytest.mark.parametrize("hash_name", HASH_NAMES)
@pytest.mark.parametrize("body", [b"", b'{"a": 1}'])
def test_the_algorithm_of_the_spec(hash_name: str, body: bytes) -> None:
    assert sign(PARTS, SECRET, hash_name=hash_name, body=body) == by_hand(PARTS, body, hash_name)


@pytest.mark.parametrize(
    "change",
    [
        {"method": "POST"},
        {"raw_target": "/v2?x=1"},
        {"date": "20160930T01:23:46Z"},
        {"content_type": "text/plain"},
        {"version": "v3"},
    ],
)
def test_every_part_is_covered(change: dict[str, str]) -> None:
    assert sign(replace(PARTS, **change), SECRET) != sign(PARTS, SECRET)


def test_a_wrong_secret_host_or_body_has_another_signature() -> None:
    signatures = [
        sign(PARTS, SECRET),
        sign(PARTS, SECRET + "x"),
        sign(replace(PARTS, host="elsewhere"), SECRET),
        sign(PARTS, SECRET, body=b"other"),
    ]
    assert len(set(signatures)) == 4


def test_the_host_is_signed_in_lower_case() -> None:
    assert sign(replace(PARTS, host="Your.Sorna.API.endpoint"), SECRET) == sign(PARTS, SECRET)


@pytest.mark.parametrize("hash_name", HASH_NAMES)
def test_the_header_is_read_as_it_is_written(hash_name: str) -> None:
    assert parse_authorization(authorization("AK", "abc123", hash_name=hash_name)) == Credential(
        hash_name=hash_name, access_key="AK", signature="abc123"
    )


def test_the_header_of_the_spec_is_read() -> None:
    header = "BackendAI signMethod=HMAC-SHA256, credential=AKIAIOSFODNN7EXAMPLE:022ae894b4ecce09"
    assert parse_authorization(header).access_key == "AKIAIOSFODNN7EXAMPLE"


@pytest.mark.parametrize(
    "header",
    [
        "",
        "Bearer x",
        "BackendAI",
        "BackendAI signMethod=HMAC-SHA256",
        "BackendAI signMethod=HMAC-MD5, credential=a:b",
        "BackendAI signMethod=SHA256, credential=a:b",
        "BackendAI signMethod=HMAC-SHA256, credential=a",
        "BackendAI signMethod=HMAC-SHA256, credential=:b",
        "BackendAI signMethod=HMAC-SHA256, credential=a:",
    ],
)
def test_other_headers_are_refused(header: str) -> None:
    with pytest.raises(AuthenticationFailed):
        parse_authorization(header)


@pytest.mark.parametrize(
    "text", ["20160930T01:23:45Z", "2016-09-30T01:23:45Z", "2016-09-30T10:23:45+09:00", "Fri, 30 Sep 2016 01:23:45 GMT"]
)
def test_dates_of_both_kinds_are_read(text: str) -> None:
    assert parse_date(text) == datetime(2016, 9, 30, 1, 23, 45, tzinfo=UTC)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "yesterday",
        "2016-13-30T01:23:45Z",
        "0001-01-01T00:00:00+23:59",
        "9999-12-31T23:59:59-23:59",
        "Fri, 99999999999999999999 Sep 2016 01:23:45 GMT",
    ],
)
def test_other_dates_are_refused(text: str) -> None:
    with pytest.raises(AuthenticationFailed):
        parse_date(text)


def test_the_skew_is_bounded_on_both_sides() -> None:
    now = datetime(2016, 9, 30, 1, 23, 45, tzinfo=UTC)
    for sign_ in (-1, 1):
        check_skew(now + sign_ * MAX_SKEW, now=now)
        with pytest.raises(AuthenticationFailed):
            check_skew(now + sign_ * (MAX_SKEW + timedelta(seconds=1)), now=now)


@pytest.mark.parametrize(
    ("header", "signed"),
    [
        (None, "application/octet-stream"),
        ("", "application/octet-stream"),
        ("Application/JSON; charset=utf-8", "application/json"),
        ("multipart/form-data; boundary=x", "multipart/form-data"),
    ],
)
def test_the_media_type_that_is_signed(header: str | None, signed: str) -> None:
    assert media_type(header) == signed
