"""The certificate of data connections is valid X.509, new at each start, and shown as its fingerprint says."""

from __future__ import annotations

import ssl
from hashlib import sha256

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from ai.backend.infra.rpc.data.dialer import tls_client_context
from ai.backend.infra.rpc.data.server import self_signed_certificate, tls_server_context


def _handshake(server_context: ssl.SSLContext, client_context: ssl.SSLContext) -> ssl.SSLObject:
    """The client's side after a handshake in memory."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = server_context.wrap_bio(to_server, to_client, server_side=True)
    client = client_context.wrap_bio(to_client, to_server)
    for side in (client, server, client, server):
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            continue
    return client


def test_a_certificate_verifies_as_its_own_issuer() -> None:
    certificate = self_signed_certificate(Ed25519PrivateKey.generate())
    certificate.verify_directly_issued_by(certificate)
    other = self_signed_certificate(Ed25519PrivateKey.generate())
    with pytest.raises(InvalidSignature):
        certificate.verify_directly_issued_by(other)


def test_both_contexts_agree_and_the_fingerprint_is_of_what_is_shown() -> None:
    context, fingerprint = tls_server_context()
    client = _handshake(context, tls_client_context())
    assert client.version() == "TLSv1.3"
    assert sha256(client.getpeercert(binary_form=True) or b"").digest() == fingerprint


def test_each_start_has_a_key_of_its_own() -> None:
    (_, first), (_, second) = tls_server_context(), tls_server_context()
    assert first != second


def test_a_client_of_an_older_protocol_is_refused() -> None:
    context, _ = tls_server_context()
    old = tls_client_context()
    old.minimum_version = ssl.TLSVersion.TLSv1_2
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(ssl.SSLError):
        _handshake(context, old)
