"""The certificate of data connections, by the examples of RFC 8032 and by OpenSSL's own reading."""

from __future__ import annotations

import ssl
from hashlib import sha256

import pytest

from ai.backend.infra.rpc.certificate import public_key, self_signed, sign, tls_client_context, tls_server_context

EXAMPLES = [  # RFC 8032, 7.1
    (
        "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60",
        "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
        "",
        (
            "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b46bd"
            "25bf5f0595bbe24655141438e7a100b"
        ),
    ),
    (
        "4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb",
        "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
        "72",
        (
            "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da085ac1e43e15996e458f3613d0f11d8c"
            "387b2eaeb4302aeeb00d291612bb0c00"
        ),
    ),
]


@pytest.mark.parametrize(("seed", "public", "message", "signature"), EXAMPLES)
def test_keys_and_signatures_are_those_of_the_standard(seed: str, public: str, message: str, signature: str) -> None:
    assert public_key(bytes.fromhex(seed)).hex() == public
    assert sign(bytes.fromhex(seed), bytes.fromhex(message)).hex() == signature


def test_a_certificate_verifies_as_its_own_issuer() -> None:
    x509 = pytest.importorskip("cryptography.x509")
    found = x509.load_der_x509_certificate(self_signed(bytes(range(32))))
    found.verify_directly_issued_by(found)


def test_both_contexts_agree_and_the_fingerprint_is_of_what_is_shown() -> None:
    context, fingerprint = tls_server_context()
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = context.wrap_bio(to_server, to_client, server_side=True)
    client = tls_client_context().wrap_bio(to_client, to_server)
    for side in (client, server, client, server):
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            continue
    assert client.version() == "TLSv1.3"
    assert sha256(client.getpeercert(binary_form=True) or b"").digest() == fingerprint
    assert tls_server_context()[1] != fingerprint
