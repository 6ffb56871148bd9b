"""Makes certificates: self-signed server certificates, small authorities, and client certificates that authorities
issue.

Keys are Ed25519, texts are PEM.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from ai.backend.common.errors import InvalidInput

_VALID_FROM = datetime(1970, 1, 1, tzinfo=UTC)
_VALID_UNTIL = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
"""RFC 5280, 4.1.2.5: the certificate has no expiration date."""
_CLOCK_SKEW = timedelta(minutes=5)
_MAX_PEM_CHARACTERS = 16 * 1024
CLIENT_LIFE_S = 24 * 3600.0
"""The seconds for which a client certificate is valid."""
_RENEWAL_SHARE_OF_LIFE = 2 / 3


@dataclass(frozen=True, slots=True)
class TlsIdentity:
    """Holds a private key and its certificate, both in PEM."""

    key: str = field(repr=False)
    certificate: str


def create_server_identity(name: str = "backendai") -> TlsIdentity:
    """Returns a new self-signed identity, which never expires. Peers trust exactly this certificate."""
    return create_self_signed(name, basic_constraints(is_authority=False))


def create_authority(name: str = "backendai authority") -> TlsIdentity:
    """Returns a new authority for client certificates. Its name is unique, so that verifiers can choose it by name."""
    return create_self_signed(f"{name} {secrets.token_hex(16)}", basic_constraints(is_authority=True))


def create_request(name: str) -> tuple[str, str]:
    """Returns a new private key and a certificate signing request for it."""
    key = Ed25519PrivateKey.generate()
    request = x509.CertificateSigningRequestBuilder(_name(name)).sign(key, None)
    return _key_text(key), request.public_bytes(serialization.Encoding.PEM).decode()


def issue_client_certificate(
    authority: TlsIdentity, request: str, name: str, *, life_s: float = CLIENT_LIFE_S, now: datetime | None = None
) -> str:
    """Returns a certificate that identifies the requester as ``name``, whatever name the request states.

    Raises InvalidInput for a request that cannot be read or is not signed with an Ed25519 key.
    """
    public_key = _requested_key(request)
    issuer = load_certificate(authority.certificate)
    authority_key = serialization.load_pem_private_key(authority.key.encode(), None)
    if not isinstance(authority_key, Ed25519PrivateKey):
        raise InvalidInput("the key of the authority is not an Ed25519 key")
    now = now or datetime.now(UTC)
    builder = x509.CertificateBuilder(issuer.subject, _name(name), public_key, x509.random_serial_number())
    for extension, is_critical in (
        (basic_constraints(is_authority=False), True),
        (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), True),
        (x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), False),
    ):
        builder = builder.add_extension(extension, is_critical)
    builder = builder.not_valid_before(now - _CLOCK_SKEW).not_valid_after(now + timedelta(seconds=life_s))
    return builder.sign(authority_key, None).public_bytes(serialization.Encoding.PEM).decode()


def renewal_time(certificate: str) -> datetime:
    """Returns when a client certificate should be replaced, which is after two thirds of its life.

    Raises InvalidInput.
    """
    parsed_certificate = load_certificate(certificate)
    return parsed_certificate.not_valid_before_utc + _RENEWAL_SHARE_OF_LIFE * (
        parsed_certificate.not_valid_after_utc - parsed_certificate.not_valid_before_utc
    )


def load_certificate(certificate: str) -> x509.Certificate:
    """Reads one certificate in PEM. Raises InvalidInput."""
    try:
        if len(certificate) > _MAX_PEM_CHARACTERS:
            raise ValueError
        (parsed_certificate,) = x509.load_pem_x509_certificates(certificate.encode())
    except (ValueError, UnsupportedAlgorithm):
        raise InvalidInput("the text is not one certificate in PEM") from None
    return parsed_certificate


def load_authority(certificate: str) -> x509.Certificate:
    """Reads the certificate of an authority in PEM. Raises InvalidInput, also for a certificate of no authority."""
    parsed_certificate = load_certificate(certificate)
    try:
        is_authority = parsed_certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
        parsed_certificate.verify_directly_issued_by(parsed_certificate)
    except (x509.ExtensionNotFound, InvalidSignature, ValueError, TypeError, UnsupportedAlgorithm):
        is_authority = False
    if not is_authority:
        raise InvalidInput("the certificate is not one of a self-signed authority")
    return parsed_certificate


def is_issued_by(certificate: bytes | None, authority: x509.Certificate) -> bool:
    """Returns True if the authority has signed the certificate.

    The certificate is in DER. Its validity is not examined.
    """
    try:
        x509.load_der_x509_certificate(certificate or b"").verify_directly_issued_by(authority)
    except (InvalidSignature, ValueError, TypeError, UnsupportedAlgorithm):
        return False
    return True


def fingerprint_of(certificate: str) -> bytes:
    """Returns the SHA-256 fingerprint of a certificate. Raises InvalidInput."""
    return load_certificate(certificate).fingerprint(hashes.SHA256())


def create_self_signed(name: str, constraints: x509.BasicConstraints) -> TlsIdentity:
    key = Ed25519PrivateKey.generate()
    builder = x509.CertificateBuilder(_name(name), _name(name), key.public_key(), x509.random_serial_number())
    builder = builder.add_extension(constraints, critical=True)
    certificate = builder.not_valid_before(_VALID_FROM).not_valid_after(_VALID_UNTIL).sign(key, None)
    return TlsIdentity(_key_text(key), certificate.public_bytes(serialization.Encoding.PEM).decode())


def _requested_key(request: str) -> Ed25519PublicKey:
    """Returns the public key of a signing request, after a check that the requester has the private key.

    Raises InvalidInput.
    """
    try:
        if len(request) > _MAX_PEM_CHARACTERS:
            raise ValueError
        parsed_request = x509.load_pem_x509_csr(request.encode())
        public_key = parsed_request.public_key()
        if isinstance(public_key, Ed25519PublicKey) and parsed_request.is_signature_valid:
            return public_key
    except (ValueError, TypeError, UnsupportedAlgorithm):
        pass
    raise InvalidInput("the text is not a certificate signing request in PEM with an Ed25519 key")


def basic_constraints(*, is_authority: bool) -> x509.BasicConstraints:
    return x509.BasicConstraints(ca=is_authority, path_length=0 if is_authority else None)


def _name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _key_text(key: Ed25519PrivateKey) -> str:
    pem = serialization.Encoding.PEM
    return key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()).decode()
