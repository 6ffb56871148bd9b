"""Loads the certificate of the relays' listener, which the operator gives or which is made once and stored."""

from __future__ import annotations

import datetime
import os
import ssl
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from ai.backend.common.errors import InvalidInput
from ai.backend.node.relay.tls import SERVER_NAME

_VALIDITY_PERIOD = datetime.timedelta(days=3650)
_BACKDATING = datetime.timedelta(days=1)
"""How far in the past a certificate becomes valid, as the clocks of nodes may be behind."""


def listener_context(certificate: Path, key: Path) -> tuple[ssl.SSLContext, str]:
    """Returns the TLS context of the relays' listener, and the certificate in PEM that relays trust.

    Raises InvalidInput.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.num_tickets = 0  # relays never resume a session of TLS
    try:
        certificate_pem = certificate.read_text()
        context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        message = f"the certificate of the relays' listener cannot be used: {error}"
        raise InvalidInput(message, data={"relay-certificate": str(certificate)}) from None
    return context, certificate_pem


def make_certificate(directory: Path) -> tuple[Path, Path]:
    """Makes a certificate in a directory that has none, and returns the paths of certificate and key."""
    certificate_path, key_path = directory / "relay.crt", directory / "relay.key"
    if certificate_path.exists() and key_path.exists():
        return certificate_path, key_path
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, SERVER_NAME)])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BACKDATING)
        .not_valid_after(now + _VALIDITY_PERIOD)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(SERVER_NAME)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    key_text = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    _write(key_path, key_text)
    _write(certificate_path, certificate.public_bytes(serialization.Encoding.PEM))
    return certificate_path, key_path


def _write(path: Path, content: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(content)
