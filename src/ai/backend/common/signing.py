"""Signs API requests by HMAC, and verifies the signatures.

Source: spec 03-07 ("API 요청 서명") and client wire contract 1.2, which wins where they differ: the published client
never hashes the body, so a verifier accepts the digest of the empty string as well as that of the body.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime

from ai.backend.common.errors import AuthenticationFailed

MAX_SKEW = timedelta(minutes=15)
HASH_NAMES = ("sha256", "sha384", "sha512", "sha3_256", "sha3_512")
DEFAULT_CONTENT_TYPE = "application/octet-stream"
_SCHEME = "BackendAI"
_USUAL_HEADER_PATTERN = re.compile(rf"{_SCHEME} signMethod=HMAC-SHA256, credential=([A-Za-z0-9]+):([0-9a-f]{{64}})")
_EMPTY_DIGESTS = {name: hashlib.new(name, b"").hexdigest() for name in HASH_NAMES}


@dataclass(frozen=True, slots=True, kw_only=True)
class Credential:
    """Holds the parsed ``Authorization`` header."""

    hash_name: str
    access_key: str
    signature: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedParts:
    """Holds the parts of a request that a signature covers.

    Attributes:
        method: the method on the wire, upper case.
        raw_target: path and query byte for byte as on the wire.
        date: the ``Date`` (or ``X-BackendAI-Date``) header, byte for byte.
        host: the authority of the endpoint, with its port if it was written.
        content_type: media type without parameters; the octet-stream default without such a header.
        version: the ``X-BackendAI-Version`` header.
    """

    method: str
    raw_target: str
    date: str
    host: str
    content_type: str
    version: str


def parse_authorization(header: str) -> Credential:
    """Parses ``BackendAI signMethod=HMAC-SHA256, credential=<access key>:<hex signature>``. Raises
    AuthenticationFailed."""
    usual_match = _USUAL_HEADER_PATTERN.fullmatch(header)
    if usual_match is not None:
        return Credential(hash_name="sha256", access_key=usual_match[1], signature=usual_match[2])
    scheme, _, parameter_text = header.partition(" ")
    params = dict(part.strip().partition("=")[::2] for part in parameter_text.split(","))
    access_key, _, signature = params.get("credential", "").partition(":")
    method_family, _, hash_name = params.get("signMethod", "").partition("-")
    hash_name = hash_name.lower().replace("-", "_")
    if scheme != _SCHEME or method_family != "HMAC" or hash_name not in HASH_NAMES or not access_key or not signature:
        raise AuthenticationFailed("The Authorization header is malformed.")
    return Credential(hash_name=hash_name, access_key=access_key, signature=signature)


def parse_date(text: str) -> datetime:
    """Parses an ISO 8601 or RFC 7231 date. A date without a zone is in UTC. Raises AuthenticationFailed."""
    for parse_format in (datetime.fromisoformat, parsedate_to_datetime):
        try:
            parsed_date = parse_format(text)
            return parsed_date.replace(tzinfo=UTC) if parsed_date.tzinfo is None else parsed_date.astimezone(UTC)
        except (ValueError, TypeError, OverflowError):  # of a number, or of the calendar's ends by the zone
            continue
    raise AuthenticationFailed("The Date header is malformed.")


def day_of(date: datetime) -> str:
    """Returns the UTC day of a date as ``YYYYmmdd``, from which the signing key is derived."""
    return f"{date.year:04}{date.month:02}{date.day:02}"  # a quarter of the time of strftime


def check_skew(date: datetime, *, now: datetime) -> None:
    """Raises AuthenticationFailed for a date that is more than 15 minutes away from ``now``."""
    if abs(now - date) > MAX_SKEW:
        raise AuthenticationFailed("The request's date is more than 15 minutes off; check the clock of this computer.")


def media_type(content_type: str | None) -> str:
    """Returns the media type in a ``Content-Type`` header, which is the part that the signature covers."""
    return (content_type or DEFAULT_CONTENT_TYPE).partition(";")[0].strip().lower()


def _hmac_digest(key: bytes, message: str, hash_name: str) -> bytes:
    return hmac.digest(key, message.encode(), hash_name)


def derive_key(secret_key: str, day: str, host: str, hash_name: str = "sha256") -> bytes:
    """Derives the signing key for one UTC day (``YYYYmmdd``) and one authority.

    A verifier may cache the key for the day.
    """
    return _hmac_digest(_hmac_digest(secret_key.encode(), day, hash_name), host.strip().lower(), hash_name)


def sign_with_key(parts: SignedParts, key: bytes, *, hash_name: str = "sha256", body: bytes = b"") -> str:
    """Returns the hex signature of a request under a key that :func:`derive_key` returned."""
    signed_text = (
        f"{parts.method}\n{parts.raw_target}\n{parts.date}\nhost:{parts.host.strip().lower()}\n"
        f"content-type:{parts.content_type}\nx-backendai-version:{parts.version}\n"
        f"{hashlib.new(hash_name, body).hexdigest() if body else _EMPTY_DIGESTS[hash_name]}"
    )
    return _hmac_digest(key, signed_text, hash_name).hex()


def sign(parts: SignedParts, secret_key: str, *, hash_name: str = "sha256", body: bytes = b"") -> str:
    """Returns the hex signature of a request. Leave ``body`` empty to sign as the published client does."""
    day = day_of(parse_date(parts.date))
    key = derive_key(secret_key, day, parts.host, hash_name)
    return sign_with_key(parts, key, hash_name=hash_name, body=body)


def authorization(access_key: str, signature: str, *, hash_name: str = "sha256") -> str:
    return f"{_SCHEME} signMethod=HMAC-{hash_name.upper()}, credential={access_key}:{signature}"
