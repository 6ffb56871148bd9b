"""Runs a certificate authority for an installation's servers, in a folder with its key and issued certificates.

Keys are ECDSA on P-256, which every client speaks, and certificates have the extensions that RFC 5280 asks for.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from ai.backend.common.errors import Conflict, InvalidInput, NotFound
from ai.backend.common.names import check_slug
from ai.backend.infra.files import write_atomically

_AUTHORITY_FILE, _AUTHORITY_KEY_FILE, _TRUSTED_FILE = "authority.pem", "authority-key.pem", "authorities.pem"
_AUTHORITY_FILES = frozenset({_AUTHORITY_FILE, _AUTHORITY_KEY_FILE, _TRUSTED_FILE})
_CLOCK_SKEW = timedelta(minutes=5)
_DNS_LABEL = r"[a-zA-Z0-9]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?"
_HOST_NAME = re.compile(rf"(\*\.)?({_DNS_LABEL}\.)*{_DNS_LABEL}")
_PEM = serialization.Encoding.PEM


class Authority:
    """Issues TLS certificates of servers.

    ``folder`` has the key of the authority, for its owner alone, and ``authorities.pem``, which clients trust.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @property
    def trusted_file(self) -> Path:
        """Returns the file of the certificates that clients trust, the present authority first, then earlier ones."""
        return self._folder / _TRUSTED_FILE

    def create(self, name: str, *, lifetime: timedelta, now: datetime, replace: bool = False) -> None:
        """Makes the key and certificate of the authority.

        With ``replace`` another one takes its place; the earlier stays in :attr:`trusted_file` until it expires, so
        that clients get the new one before servers use it. Raises Conflict if there is one, and InvalidInput for a bad
        name.
        """
        if (self._folder / _AUTHORITY_FILE).exists() and not replace:
            raise Conflict(f"{self._folder} has an authority already: give --replace to make another")
        if not 0 < len(name) <= 64:
            raise InvalidInput("the name of an authority has 1 to 64 characters")
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        key = ec.generate_private_key(ec.SECP256R1())
        subject = _x509_name(f"{name} {now:%Y-%m-%d}")
        identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
        builder = _certificate_builder(subject, subject, key, now, lifetime)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        builder = builder.add_extension(_key_usage(signs_certificates=True), critical=True)
        builder = builder.add_extension(identifier, critical=False)
        certificate = builder.sign(key, hashes.SHA256()).public_bytes(_PEM)
        valid_certificates = [
            old_certificate for old_certificate in self._read_trusted() if old_certificate.not_valid_after_utc > now
        ]
        bundle = certificate + b"".join(old_certificate.public_bytes(_PEM) for old_certificate in valid_certificates)
        write_atomically(self._folder / _AUTHORITY_KEY_FILE, _key_text(key))
        write_atomically(self._folder / _AUTHORITY_FILE, certificate, mode=0o644)
        write_atomically(self.trusted_file, bundle, mode=0o644)

    def issue(
        self, name: str, hosts: Sequence[str], *, lifetime: timedelta, now: datetime, folder: Path
    ) -> tuple[Path, Path]:
        """Writes a server's ``NAME.pem`` and ``NAME-key.pem`` into ``folder``, and returns both paths. Servers that run
        take them in use.

        ``hosts`` are host names and addresses. Raises NotFound without an authority, InvalidInput for a bad name or
        host, or an authority that expires before the certificate would, Conflict if its files do not belong together.
        """
        check_slug(name, what="name", allow_dots=True)
        if folder.resolve() == self._folder.resolve() and f"{name}.pem" in _AUTHORITY_FILES:
            raise InvalidInput(f"{name} is the name of a file of the authority: name another folder with -o")
        issuer, issuer_key = self._load()
        if issuer.not_valid_after_utc < now + lifetime:
            raise InvalidInput(
                f"The authority expires on {issuer.not_valid_after_utc:%Y-%m-%d}, before the certificate would:"
                " `backend.ai mgr pki init --replace` makes another."
            )
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _certificate_builder(_x509_name(name), issuer.subject, key, now, lifetime)
        for extension, is_critical in (
            (x509.BasicConstraints(ca=False, path_length=None), True),
            (_key_usage(signs_certificates=False), True),
            (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False),
            (x509.SubjectAlternativeName([_general_name(host) for host in hosts]), False),
            (x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False),
            (x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), False),
        ):
            builder = builder.add_extension(extension, is_critical)
        certificate = builder.sign(issuer_key, hashes.SHA256()).public_bytes(_PEM)
        folder.mkdir(parents=True, exist_ok=True)
        certificate_path, key_path = folder / f"{name}.pem", folder / f"{name}-key.pem"
        write_atomically(key_path, _key_text(key))
        write_atomically(certificate_path, certificate, mode=0o644)
        return certificate_path, key_path

    def _load(self) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
        path = self._folder / _AUTHORITY_FILE
        if not path.exists():
            raise NotFound(f"{self._folder} has no authority: `backend.ai mgr pki init` makes one")
        key = serialization.load_pem_private_key((self._folder / _AUTHORITY_KEY_FILE).read_bytes(), None)
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise InvalidInput(f"{self._folder / _AUTHORITY_KEY_FILE} is no key on P-256")
        certificate = x509.load_pem_x509_certificate(path.read_bytes())
        if certificate.public_key() != key.public_key():
            raise Conflict(
                f"{path} and its key do not belong together, since an `init` was interrupted: `backend.ai mgr pki init"
                " --replace` makes another"
            )
        return certificate, key

    def _read_trusted(self) -> list[x509.Certificate]:
        return x509.load_pem_x509_certificates(self.trusted_file.read_bytes()) if self.trusted_file.exists() else []


def expiry_of(path: Path) -> datetime:
    """Returns when the first certificate in a file expires. Raises InvalidInput, OSError."""
    try:
        return x509.load_pem_x509_certificates(path.read_bytes())[0].not_valid_after_utc
    except ValueError:
        raise InvalidInput(f"{path} has no certificate in PEM") from None


def _certificate_builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, now: datetime, lifetime: timedelta
) -> x509.CertificateBuilder:
    builder = x509.CertificateBuilder(issuer, subject, key.public_key(), x509.random_serial_number())
    return builder.not_valid_before(now.astimezone(UTC) - _CLOCK_SKEW).not_valid_after(now.astimezone(UTC) + lifetime)


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        pass
    if len(host) > 253 or not _HOST_NAME.fullmatch(host):
        raise InvalidInput(f"{host[:64]!r} is neither a host name nor an address", data={"host": "malformed"})
    return x509.DNSName(host)


def _x509_name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _key_text(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
