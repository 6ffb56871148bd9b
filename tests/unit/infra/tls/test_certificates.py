"""Certificates name who was identified, not who they say they are, and are replaced before they expire."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from ssl import PEM_cert_to_DER_cert

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from ai.backend.common.errors import InvalidInput
from ai.backend.infra.tls import certificates

NOW = datetime(2026, 11, 1, tzinfo=UTC)


def _issued(authority: certificates.TlsIdentity, life_s: float = 3600.0) -> str:
    _, request = certificates.create_request("an impostor")
    return certificates.issue_client_certificate(authority, request, "worker-1", life_s=life_s, now=NOW)


def test_each_identity_has_a_key_of_its_own_and_no_period_of_validity() -> None:
    first, second = certificates.create_server_identity(), certificates.create_server_identity()
    assert certificates.fingerprint_of(first.certificate) != certificates.fingerprint_of(second.certificate)
    loaded = certificates.load_certificate(first.certificate)
    loaded.verify_directly_issued_by(loaded)
    assert loaded.not_valid_after_utc.year == 9999
    assert first.key not in repr(first)


def test_the_authority_says_who_the_client_is() -> None:
    loaded = certificates.load_certificate(_issued(certificates.create_authority()))
    assert [name.value for name in loaded.subject] == ["worker-1"]
    assert loaded.extensions.get_extension_for_class(x509.BasicConstraints).value.ca is False
    assert list(loaded.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value) == [
        ExtendedKeyUsageOID.CLIENT_AUTH
    ]


def test_the_issuer_is_told_by_signature_not_by_name() -> None:
    first, second = certificates.create_authority(), certificates.create_authority()
    der = PEM_cert_to_DER_cert(_issued(first))
    assert certificates.is_issued_by(der, certificates.load_authority(first.certificate))
    assert not certificates.is_issued_by(der, certificates.load_authority(second.certificate))
    forged_name = certificates.load_certificate(first.certificate).subject.rfc4514_string().removeprefix("CN=")
    forged = certificates.create_self_signed(forged_name, certificates.basic_constraints(is_authority=True))
    assert not certificates.is_issued_by(der, certificates.load_authority(forged.certificate))
    for text in (None, b"", b"\x30\x03\x02\x01\x00"):
        assert not certificates.is_issued_by(text, certificates.load_authority(first.certificate))


def test_a_certificate_is_replaced_after_two_thirds_of_its_life() -> None:
    issued = _issued(certificates.create_authority(), life_s=3300.0)  # an hour with the allowance for other clocks
    assert certificates.renewal_time(issued) == NOW + timedelta(minutes=35)


def _request_of_rsa_key() -> str:
    key = rsa.generate_private_key(65537, 2048)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "worker")])
    return x509.CertificateSigningRequestBuilder(name).sign(key, hashes.SHA256()).public_bytes(Encoding.PEM).decode()


def _request_with_the_key_of_another() -> str:
    (_, one), (_, other) = certificates.create_request("worker"), certificates.create_request("worker")
    first, second = x509.load_pem_x509_csr(one.encode()), x509.load_pem_x509_csr(other.encode())
    der = first.public_bytes(Encoding.DER).replace(first.signature, second.signature)
    return x509.load_der_x509_csr(der).public_bytes(Encoding.PEM).decode()


@pytest.mark.parametrize(
    "request_text", ["", "x" * 100_000, certificates.create_authority().certificate, _request_of_rsa_key()]
)
def test_a_wrong_request_gets_no_certificate(request_text: str) -> None:
    with pytest.raises(InvalidInput):
        certificates.issue_client_certificate(certificates.create_authority(), request_text, "worker")


def test_a_request_for_the_key_of_another_gets_no_certificate() -> None:
    with pytest.raises(InvalidInput):
        certificates.issue_client_certificate(
            certificates.create_authority(), _request_with_the_key_of_another(), "worker"
        )


def test_only_one_certificate_of_an_authority_is_an_authority() -> None:
    authority = certificates.create_authority()
    client = _issued(authority)
    for text in ("", client, certificates.create_server_identity().certificate, authority.certificate * 2):
        with pytest.raises(InvalidInput):
            certificates.load_authority(text)
