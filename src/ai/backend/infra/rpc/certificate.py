"""A certificate that lives as long as its process: Ed25519 (RFC 8032), signed by itself.

Nobody trusts what it says. Whoever connects compares its fingerprint with the one that came over the link, so it needs
no authority, no name and no dates, and the base install no library for certificates. OpenSSL does all of TLS; what is
here derives a public key and signs once.
"""

from __future__ import annotations

import os
import secrets
import ssl
from base64 import encodebytes
from hashlib import sha256, sha512

_P = 2**255 - 19
_ORDER = 2**252 + 27742317777372353535851937790883648493
_TWICE_D = -2 * 121665 * pow(121666, -1, _P) % _P
_BASE_X = 15112221349535400772501151409588531511454012693041857206046113283949847762202
_BASE_Y = 4 * pow(5, -1, _P) % _P
Point = tuple[int, int, int, int]
"""X, Y, Z and T of extended coordinates: x = X/Z, y = Y/Z, x*y = T/Z (RFC 8032, 5.1.4)."""
_BASE: Point = (_BASE_X, _BASE_Y, 1, _BASE_X * _BASE_Y % _P)
_ALGORITHM = bytes.fromhex("300506032b6570")
"""The object identifier of Ed25519 in a sequence (RFC 8410, 3)."""


def tls_server_context() -> tuple[ssl.SSLContext, bytes]:
    """For TLS 1.3 with a new certificate, and the SHA-256 fingerprint of that. Raises ssl.SSLError, OSError."""
    seed = secrets.token_bytes(32)
    certificate = self_signed(seed)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.num_tickets = 0
    # The library reads keys from files only; this one never reaches a disk.
    memory = os.memfd_create("certificate", os.MFD_CLOEXEC)
    try:
        os.write(memory, (_pem_key(seed) + ssl.DER_cert_to_PEM_cert(certificate)).encode())
        context.load_cert_chain(f"/proc/self/fd/{memory}")
    finally:
        os.close(memory)
    return context, sha256(certificate).digest()


def tls_client_context() -> ssl.SSLContext:
    """For TLS 1.3; whoever uses it compares the fingerprint."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def self_signed(seed: bytes) -> bytes:
    """An X.509 certificate in DER (RFC 5280, 4.1) of the key with this seed of 32 bytes."""
    name = _der(0x30, _der(0x31, _der(0x30, bytes.fromhex("0603550403") + _der(0x0C, b"backendai"))))
    validity = _der(0x30, _der(0x17, b"700101000000Z") + _der(0x18, b"99991231235959Z"))
    key = _der(0x30, _ALGORITHM + _der(0x03, b"\0" + public_key(seed)))
    serial = _der(0x02, b"\x01" + secrets.token_bytes(8))
    said = _der(0x30, _der(0xA0, _der(0x02, b"\x02")) + serial + _ALGORITHM + name + validity + name + key)
    return _der(0x30, said + _ALGORITHM + _der(0x03, b"\0" + sign(seed, said)))


def public_key(seed: bytes) -> bytes:
    return _encode(_times(_scalar(seed), _BASE))


def sign(seed: bytes, message: bytes) -> bytes:
    """The signature of RFC 8032, 5.1.6."""
    scalar, public = _scalar(seed), public_key(seed)
    nonce = _number(sha512(sha512(seed).digest()[32:] + message).digest()) % _ORDER
    point = _encode(_times(nonce, _BASE))
    challenge = _number(sha512(point + public + message).digest())
    return point + ((nonce + challenge * scalar) % _ORDER).to_bytes(32, "little")


def _pem_key(seed: bytes) -> str:
    key = _der(0x30, b"\x02\x01\0" + _ALGORITHM + _der(0x04, _der(0x04, seed)))
    return f"-----BEGIN PRIVATE KEY-----\n{encodebytes(key).decode()}-----END PRIVATE KEY-----\n"


def _der(tag: int, content: bytes) -> bytes:
    size = len(content)
    if size < 0x80:
        return bytes((tag, size)) + content
    length = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes((tag, 0x80 | len(length))) + length + content


def _number(data: bytes) -> int:
    return int.from_bytes(data, "little")


def _scalar(seed: bytes) -> int:
    return (_number(sha512(seed).digest()[:32]) & ((1 << 254) - 8)) | (1 << 254)


def _add(a: Point, b: Point) -> Point:
    minus = (a[1] - a[0]) * (b[1] - b[0]) % _P
    plus = (a[1] + a[0]) * (b[1] + b[0]) % _P
    both = a[3] * _TWICE_D * b[3] % _P
    scale = 2 * a[2] * b[2] % _P
    e, f, g, h = plus - minus, scale - both, scale + both, plus + minus
    return e * f % _P, g * h % _P, f * g % _P, e * h % _P


def _times(scalar: int, point: Point) -> Point:
    found: Point = (0, 1, 1, 0)
    while scalar:
        if scalar & 1:
            found = _add(found, point)
        point = _add(point, point)
        scalar >>= 1
    return found


def _encode(point: Point) -> bytes:
    inverse = pow(point[2], -1, _P)
    x, y = point[0] * inverse % _P, point[1] * inverse % _P
    return (y | (x & 1) << 255).to_bytes(32, "little")
