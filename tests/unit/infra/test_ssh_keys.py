"""SSH keys are made, derived and checked in the formats of OpenSSH."""

from __future__ import annotations

import base64
import struct

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePrivateKey, generate_private_key
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key as generate_rsa_key
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from ai.backend.infra.ssh_keys import are_of_one_pair, derive_key_pair, generate_key_pair, normalize_public_key

PAIR, OTHER = generate_key_pair("user@local"), generate_key_pair("user@local")
DAMAGED = PAIR.private.replace("AAAA", "!", 1)


def _public(key: RSAPrivateKey | EllipticCurvePrivateKey) -> str:
    return key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()


def _string(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data


def test_a_pair_is_in_the_formats_of_openssh() -> None:
    assert PAIR.public.startswith("ssh-ed25519 AAAA")
    assert PAIR.public.endswith(" user@local")
    assert PAIR.private.startswith("-----BEGIN OPENSSH PRIVATE KEY-----\n")
    assert PAIR.public != OTHER.public
    assert normalize_public_key(f"  {PAIR.public}\n") == PAIR.public


def test_a_derived_pair_follows_from_its_seed() -> None:
    first, second = (derive_key_pair(bytes([number]) * 32, "c") for number in (1, 2))
    assert derive_key_pair(b"\1" * 32, "c").public == first.public != second.public
    assert are_of_one_pair(first.public, first.private)


def test_halves_of_two_pairs_are_told_apart() -> None:
    assert are_of_one_pair(PAIR.public, PAIR.private)
    assert not are_of_one_pair(PAIR.public, OTHER.private)


@pytest.mark.parametrize("format_", [PrivateFormat.OpenSSH, PrivateFormat.PKCS8, PrivateFormat.TraditionalOpenSSL])
@pytest.mark.parametrize("kind", ["rsa", "ecdsa"])
def test_other_kinds_and_formats_are_read(kind: str, format_: PrivateFormat) -> None:
    keys = [generate_rsa_key(65537, 2048) if kind == "rsa" else generate_private_key(SECP256R1()) for _ in range(2)]
    private, other = (key.private_bytes(Encoding.PEM, format_, NoEncryption()).decode() for key in keys)
    public = normalize_public_key(_public(keys[0]))
    assert (are_of_one_pair(public, private), are_of_one_pair(public, other)) == (True, False)


def test_a_private_key_that_cannot_be_read_counts_as_belonging() -> None:
    key = generate_private_key(SECP256R1())
    for format_ in (PrivateFormat.PKCS8, PrivateFormat.TraditionalOpenSSL):
        locked = key.private_bytes(Encoding.PEM, format_, BestAvailableEncryption(b"a passphrase")).decode()
        assert are_of_one_pair(PAIR.public, locked)


def test_a_key_of_a_hardware_token_is_taken() -> None:
    kind = b"sk-ssh-ed25519@openssh.com"
    point = base64.b64decode(PAIR.public.split()[1])[-32:]
    encoded = base64.b64encode(_string(kind) + _string(point) + _string(b"ssh:")).decode()
    assert normalize_public_key(f"{kind.decode()} {encoded} token") == f"{kind.decode()} {encoded} token"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nonsense",
        "ssh-ed25519",
        f'command="rm -r ." {PAIR.public}',
        f"{PAIR.public}\nssh-rsa AAAA",
        f"{PAIR.public}\0",
        PAIR.public[:60],
        "ssh-ed25519 " + PAIR.public.split()[1][:20] + "!" + PAIR.public.split()[1][20:],
        "ssh-rsa " + PAIR.public.split()[1],
        "ssh-dss " + PAIR.public.split()[1],
        "ssh-ed25519-cert-v01@openssh.com " + PAIR.public.split()[1],
        PAIR.private,
    ],
    ids=range(12),
)
def test_other_text_is_no_public_key(text: str) -> None:
    with pytest.raises(ValueError, match="public key"):
        normalize_public_key(text)


@pytest.mark.parametrize(
    "text",
    [
        "x",
        PAIR.public,
        DAMAGED,
        "-----BEGIN OPENSSH PRIVATE KEY-----\n-----END OPENSSH PRIVATE KEY-----",
        "-----BEGIN RSA PRIVATE KEY-----\nx\n-----END RSA PRIVATE KEY-----",
        "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----",
    ],
    ids=range(6),
)
def test_other_text_is_no_private_key(text: str) -> None:
    with pytest.raises(ValueError, match=r".*"):
        are_of_one_pair(PAIR.public, text)
