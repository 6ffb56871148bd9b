"""Creates the TLS certificate of a manager's data connections at each start; peers trust its fingerprint only.

The agent receives the fingerprint over the link and compares it. So the certificate needs no authority, no host name
and no period of validity, and a wrong clock of an agent does no harm.
"""

from __future__ import annotations

import os
import ssl
from datetime import UTC, datetime

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

_NAME = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "backendai")])
_VALID_FROM = datetime(1970, 1, 1, tzinfo=UTC)
_VALID_UNTIL = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
"""RFC 5280, 4.1.2.5: the certificate has no expiration date."""


def tls_server_context() -> tuple[ssl.SSLContext, bytes]:
    """Returns a context for TLS 1.3 with a new certificate, and the certificate's SHA-256 fingerprint.

    Raises:
        OSError: there is no memory for it; ssl.SSLError is one.
    """
    key = Ed25519PrivateKey.generate()
    certificate = self_signed_certificate(key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.num_tickets = 0
    # The ssl module reads keys from files only; this file is in memory, so that the key reaches no disk.
    memory = os.memfd_create("certificate", os.MFD_CLOEXEC)
    try:
        os.write(memory, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        os.write(memory, certificate.public_bytes(Encoding.PEM))
        context.load_cert_chain(f"/proc/self/fd/{memory}")
    finally:
        os.close(memory)
    return context, certificate.fingerprint(SHA256())


def self_signed_certificate(key: Ed25519PrivateKey) -> x509.Certificate:
    """Returns a self-signed certificate of this key."""
    builder = x509.CertificateBuilder(_NAME, _NAME, key.public_key(), x509.random_serial_number())
    return builder.not_valid_before(_VALID_FROM).not_valid_after(_VALID_UNTIL).sign(key, None)
