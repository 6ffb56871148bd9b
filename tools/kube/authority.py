"""A certificate authority of one cluster: the API server's certificate, and one for each client that it knows."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePrivateKey, generate_private_key
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_LIFETIME = timedelta(days=7)


@dataclass(frozen=True, slots=True)
class Pair:
    """Holds the paths of a certificate and of its key, in PEM."""

    certificate: Path
    key: Path


class Authority:
    """Issues certificates into ``folder``; its own is ``ca.crt`` there, with ``ca.key``.

    ``origin`` is the folder of another authority whose certificate and key it has; else it makes new ones.
    """

    def __init__(self, folder: Path, origin: Path | None = None) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.folder = folder
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "cluster")])
        self.certificate = folder / "ca.crt"
        if origin is not None:
            key = load_pem_private_key((origin / "ca.key").read_bytes(), None)
            assert isinstance(key, EllipticCurvePrivateKey)
            self._key = key
            self.certificate.write_bytes((origin / "ca.crt").read_bytes())
            return
        self._key = generate_private_key(SECP256R1())
        _write_key(folder / "ca.key", self._key)
        builder = _builder(self._name, self._name, self._key)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
        builder = builder.add_extension(usage, critical=True)
        self.certificate.write_bytes(builder.sign(self._key, SHA256()).public_bytes(Encoding.PEM))

    def issue(self, file_name: str, user: str, groups: tuple[str, ...] = (), *, hosts: tuple[str, ...] = ()) -> Pair:
        """Write a certificate of this user of these groups, and of these names and addresses where it is a server's."""
        group_attributes = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
        name = x509.Name([*group_attributes, x509.NameAttribute(NameOID.COMMON_NAME, user)])
        key = generate_private_key(SECP256R1())
        builder = _builder(name, self._name, key)
        usages = [ExtendedKeyUsageOID.CLIENT_AUTH, *([ExtendedKeyUsageOID.SERVER_AUTH] if hosts else [])]
        builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        if hosts:
            names = [_host(host) for host in hosts]
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        pair = Pair(self.folder / f"{file_name}.crt", self.folder / f"{file_name}.key")
        pair.certificate.write_bytes(builder.sign(self._key, SHA256()).public_bytes(Encoding.PEM))
        _write_key(pair.key, key)
        return pair

    def make_token_keys(self) -> tuple[Path, Path]:
        """Write the key that signs tokens of service accounts; return its path, and that of its public half."""
        key = generate_private_key(SECP256R1())
        private, public = self.folder / "tokens.key", self.folder / "tokens.pub"
        _write_key(private, key)
        public.write_bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
        return private, public


def _builder(subject: x509.Name, issuer: x509.Name, key: EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder(issuer, subject, key.public_key(), x509.random_serial_number())
    return builder.not_valid_before(now - timedelta(days=1)).not_valid_after(now + _LIFETIME)


def _host(host: str) -> x509.GeneralName:
    return x509.IPAddress(IPv4Address(host)) if host[0].isdigit() else x509.DNSName(host)


def _write_key(path: Path, key: EllipticCurvePrivateKey) -> None:
    path.touch(mode=0o600)
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption()))
